from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import AsyncIterator

LOOK_EVERY_SECONDS = 0.01
BUSY_SECONDS = 0.03
"""A timer that is this late shows that the event loop has more to do than it can."""
ALWAYS = 3
"""How many cases run at the same time on a busy machine, too."""


class Gate:
    """Lets cases begin: at most so many at a time, and only a few while the event loop is busy.

    Most cases only wait, so that many of them together take no longer than one. But if an event loop is busy, its
    answers come late, and a lease of a case would end before its renewal is sent.
    """

    def __init__(self, at_a_time: int) -> None:
        self._at_a_time = at_a_time
        self._running = 0
        self._late_seconds = 0.0

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Measures how busy the event loop is."""
        task = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            task.cancel()

    async def _watch(self) -> None:
        while True:
            due = time.monotonic() + LOOK_EVERY_SECONDS
            await asyncio.sleep(LOOK_EVERY_SECONDS)
            late_seconds = time.monotonic() - due
            # The worst of the last few looks.
            self._late_seconds = max(late_seconds, self._late_seconds * 0.9)

    async def enter(self) -> None:
        """Returns when another case may begin. One caller at a time: what waits here is polled."""
        while not self._has_room:
            await asyncio.sleep(LOOK_EVERY_SECONDS)
        self._running += 1
        # It counts as busy until its beginning has been measured.
        self._late_seconds = max(self._late_seconds, BUSY_SECONDS)

    def leave(self) -> None:
        self._running -= 1

    @property
    def _has_room(self) -> bool:
        return self._running < self._at_a_time and (self._running < ALWAYS or self._late_seconds < BUSY_SECONDS)
