"""SQLITE_BUSY: another process is in its own transaction."""

from __future__ import annotations

import random
import sqlite3
import time
from typing import Callable, TypeVar

from .errors import is_busy, store_error_from

T = TypeVar("T")

MAX_BUSY_SECONDS = 2.0
"""How long to try for the write lock before the store counts as unavailable. A transaction of ours takes well under a
millisecond."""

_SPINS = 16
_SPIN_SECONDS = 0.000_05
_FIRST_PAUSE_SECONDS = 0.001
_GROWTH = 1.5
_MAX_PAUSE_SECONDS = 0.128
_EAGER_EVERY_SECONDS = 0.5
"""The longest pause is halved each time that a call has waited for so long, down to this one."""
_EAGER_PAUSE_SECONDS = 0.016
_URGENT_PAUSE_SECONDS = 0.008
_CROWD_PAUSE_SECONDS = 0.008
"""If the last wait needed such a pause, the next one does not begin with short ones."""
_FORGET_AFTER_SECONDS = 1.0


class Patience:
    """How the connections of many processes wait for one write lock. The processes that wait must leave the machine to
    the one that works, and it must not have to pass the lock on after each transaction: its caches are warm. So the
    pauses grow, with jitter. A process that has waited long pauses less again, so that none waits too long. A wait
    begins with half of the pause that the last one needed."""

    def __init__(self) -> None:
        self.pause: Callable[[float], None] = time.sleep
        """Heartbeats may run in it."""
        self._last_pause = 0.0
        self._forget_at = 0.0

    def until_free(self, path: str, attempt: Callable[[], T], busy_until: float, is_urgent: bool = False) -> T:
        """Repeats `attempt` while another process has the lock that it needs, until `busy_until` of the monotonic
        clock. An attempt that fails for that reason must have changed nothing. Blocks the thread: only the driver's own
        calls it. What is urgent goes before others: its pauses stay short."""
        started = time.monotonic()
        pause = 0.0
        tries = 0
        while True:
            try:
                return attempt()
            except (sqlite3.Error, OSError) as error:
                now = time.monotonic()
                if not is_busy(error) or now >= busy_until:
                    raise store_error_from(error, path) from error
            tries += 1
            if is_urgent:
                time.sleep(_jittered(_urgent_pause(tries)))
            else:
                pause = self._next_pause(pause, tries, now, now - started)
                self.pause(_jittered(pause))

    def _next_pause(self, before: float, tries: int, now: float, waited: float) -> float:
        known = self._last_pause if now < self._forget_at else 0.0
        if before == 0.0 and tries <= _SPINS and known < _CROWD_PAUSE_SECONDS:
            # Most transactions of another process are over by then.
            return 0.0
        longest = max(_MAX_PAUSE_SECONDS / 2.0 ** int(waited / _EAGER_EVERY_SECONDS), _EAGER_PAUSE_SECONDS)
        pause = min(max(known / 2, _FIRST_PAUSE_SECONDS) if before == 0.0 else before * _GROWTH, longest)
        self._last_pause = pause
        self._forget_at = now + pause + _FORGET_AFTER_SECONDS
        return pause


def _urgent_pause(tries: int) -> float:
    if tries <= _SPINS:
        return 0.0
    return min(_FIRST_PAUSE_SECONDS * 2.0 ** min(tries - _SPINS - 1, 10), _URGENT_PAUSE_SECONDS)


def _jittered(pause: float) -> float:
    return pause * (0.5 + random.random() / 2) if pause > 0 else _SPIN_SECONDS
