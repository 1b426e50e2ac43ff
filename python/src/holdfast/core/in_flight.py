"""Counts the work of an instance that is in flight."""

from __future__ import annotations

import asyncio


class InFlight:
    """Counts the work that an instance has in flight, so that `close` can wait for it."""

    __slots__ = ("count", "_idle")

    def __init__(self) -> None:
        self.count = 0
        self._idle: list[asyncio.Future[None]] = []

    def begin(self) -> None:
        self.count += 1

    def end(self) -> None:
        self.count -= 1
        if self.count == 0 and self._idle:
            idle, self._idle = self._idle, []
            for future in idle:
                if not future.done():
                    future.set_result(None)

    async def idle(self) -> None:
        """Returns when nothing is in flight, including work that was started by what ended last."""
        while self.count > 0:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(future)
            await future


class InFlightOnce:
    """One piece of work that may be ended from two sides."""

    __slots__ = ("_in_flight", "_ended")

    def __init__(self, in_flight: InFlight) -> None:
        self._in_flight = in_flight
        self._ended = False

    def end(self) -> None:
        if not self._ended:
            self._ended = True
            self._in_flight.end()
