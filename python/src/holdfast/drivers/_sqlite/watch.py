"""Decides when a waiting process checks the database for changes of other processes."""

from __future__ import annotations

import asyncio
from typing import Callable, Literal, Optional

from ...errors import StoreError
from .bell import BellWatch, open_watch

How = Literal["rung", "poll"]

# Without a bell: fast after a change, and slower the longer nothing changes.
_POLL_SECONDS = 0.005
_MAX_POLL_SECONDS = 0.020
_SAFETY_POLL_SECONDS = 0.200
"""Covers a ring that was missed or never made, because a process was killed after its commit."""
_REST_PER_NAME_SECONDS = 0.000_3
"""A check of many names is followed by a rest, so that a busy database does not keep waiting processes busy."""


class Watch:
    """Lives in the event loop. `check` starts a check in the driver's thread. Its result is how many lock names had to
    be checked, and it never fails. A poll must cost almost nothing if nothing has changed."""

    def __init__(self, path: str, check: Callable[[How], asyncio.Future[int]]) -> None:
        self._path = path
        self._check = check
        self._loop = asyncio.get_running_loop()
        self._timer: Optional[asyncio.TimerHandle] = None
        self._rest_until = 0.0
        self._poll_seconds = _POLL_SECONDS
        self._is_checking = False
        self._rung_again = False
        self._stopped = False
        self._bell: Optional[BellWatch] = None
        self._watch_bell()

    @property
    def is_mine(self) -> bool:
        """Whether it lives in the running event loop."""
        return self._loop is asyncio.get_running_loop()

    def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        self._drop_bell()

    def abandon(self) -> None:
        """In a forked process: the event loop and its selector belong to the parent, and must not be touched."""
        self._stopped = True
        if self._bell is not None:
            self._bell.close()

    def _watch_bell(self) -> None:
        self._bell = open_watch(self._path)
        if self._bell is not None:
            try:
                self._loop.add_reader(self._bell.fd, self._on_ring)
            except NotImplementedError:
                # An event loop that watches no file descriptors.
                self._bell.close()
                self._bell = None
        self._poll_in(self._pause())

    def _drop_bell(self) -> None:
        bell, self._bell = self._bell, None
        if bell is not None:
            if not self._loop.is_closed():
                self._loop.remove_reader(bell.fd)
            bell.close()

    def _on_ring(self) -> None:
        if self._bell is None:
            return
        if not self._bell.drain():
            # The bell was removed. The next process that rings needs one.
            self._drop_bell()
            self._watch_bell()
        self._look("rung")

    def _pause(self) -> float:
        return self._poll_seconds if self._bell is None else _SAFETY_POLL_SECONDS

    def _poll_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._stopped:
            self._timer = self._loop.call_later(seconds, self._look, "poll")

    def _look(self, how: How) -> None:
        if self._stopped:
            return
        now = self._loop.time()
        if self._is_checking:
            # What is checked now may have been read before the bell was rung.
            self._rung_again = True
            if how == "poll":
                self._poll_in(self._pause())
            return
        if now < self._rest_until:
            self._poll_in(self._rest_until - now)
            return
        try:
            checking = self._check(how)
        except StoreError:
            # The thread could not be started.
            self._poll_in(self._pause())
            return
        self._is_checking = True
        checking.add_done_callback(lambda checked: self._checked(how, now, checked))

    def _checked(self, how: How, started: float, checked: asyncio.Future[int]) -> None:
        self._is_checking = False
        looked = 0 if checked.cancelled() or checked.exception() is not None else checked.result()
        self._rest_until = started + looked * _REST_PER_NAME_SECONDS
        self._poll_seconds = _POLL_SECONDS if looked > 0 else min(self._poll_seconds * 1.2, _MAX_POLL_SECONDS)
        if how == "poll":
            self._poll_in(self._pause())
        if self._rung_again:
            self._rung_again = False
            self._look("rung")
