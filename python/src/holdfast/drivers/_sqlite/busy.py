"""SQLITE_BUSY: another process is in its own transaction."""

from __future__ import annotations

import sqlite3
import time
from typing import Callable, TypeVar

from .errors import is_busy, store_error_from

T = TypeVar("T")

MAX_BUSY_SECONDS = 2.0
"""How long to try for the write lock before the store counts as unavailable. A transaction of ours takes well under a
millisecond."""

_SPINS = 16


def until_free(path: str, attempt: Callable[[], T], busy_until: float) -> T:
    """Repeats `attempt` while another process has the lock that it needs, until `busy_until` of the monotonic clock. An
    attempt that fails for that reason must have changed nothing. Blocks the thread: only the driver's own calls it."""
    tries = 0
    while True:
        try:
            return attempt()
        except (sqlite3.Error, OSError) as error:
            if not is_busy(error) or time.monotonic() >= busy_until:
                raise store_error_from(error, path) from error
        tries += 1
        # The first pauses are short: most transactions of another process are over by then.
        time.sleep(0.000_05 if tries <= _SPINS else 0.001 + tries % 3 / 1_000)
