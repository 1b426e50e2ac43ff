"""Calls that wait for the result of a run elsewhere."""

from __future__ import annotations

import asyncio
from typing import Any, Coroutine, Union

from ..core.holder import ClaimResult
from ..core.lease import HeldLease
from .results import FoundResult


class WaitingCalls:
    """The calls of one instance that wait for a run.

    All of them get a result as soon as one has found it. Otherwise each would take the lease in turn, only to find the
    same result.
    """

    def __init__(self) -> None:
        self._calls: dict[str, set[_WaitingCall]] = {}

    async def wait(
        self, key: str, began_ms: float, acquire: Coroutine[Any, Any, ClaimResult]
    ) -> Union[ClaimResult, FoundResult]:
        """Returns what `acquire` returns, or the result that another call has found meanwhile. If it does not return a
        lease, `acquire` has left nothing behind."""
        call = _WaitingCall(began_ms)
        calls = self._calls.setdefault(key, set())
        calls.add(call)
        claiming = asyncio.ensure_future(acquire)
        try:
            either: set[asyncio.Future[Any]] = {claiming, call.found}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if claiming.done() and (claiming.exception() is None or not call.found.done()):
                return claiming.result()
            return call.found.result()
        except asyncio.CancelledError:
            if claiming.done() and not claiming.cancelled() and claiming.exception() is None:
                granted = claiming.result()
                if isinstance(granted, HeldLease):
                    granted.discard_in_background()
            raise
        finally:
            # A claim that is cancelled is withdrawn.
            claiming.cancel()
            calls.discard(call)
            if not calls and self._calls.get(key) is calls:
                del self._calls[key]

    def found(self, key: str, result: FoundResult) -> None:
        """Ends the waits for the key with this result. Calls that began after the store was asked go on waiting: the
        answer may be late, and the result's period may have been over when they began."""
        for call in self._calls.get(key, ()):
            if call.began_ms <= result.asked_ms and not call.found.done():
                call.found.set_result(result)


class _WaitingCall:
    def __init__(self, began_ms: float) -> None:
        self.began_ms = began_ms
        """On the monotonic clock."""
        self.found: asyncio.Future[FoundResult] = asyncio.get_running_loop().create_future()
