"""`reacquire="extend"`: an instance that asks for a name that it already holds extends its lease."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Optional, Union

from ._claims import Claims
from ._inner_lease import InnerLease
from ._instance import Instance
from ._options import LockOptions
from .core.hand_over import HandOver
from .core.holder import ClaimRequest, ClaimResult, Holder, Refused
from .core.lease import HeldLease, Lease


class ExtendingClaims(Claims):
    """Each call gets a use of the one lease, and the last use to end releases the lock."""

    def __init__(self, instance: Instance, defaults: Optional[LockOptions] = None) -> None:
        super().__init__(instance, defaults)
        self._claiming: dict[str, dict[asyncio.Future[_Use], None]] = {}
        """The claims in flight. When one of them is granted, the others get a use of its lease and stop waiting."""

    def taken(self, lease: HeldLease) -> None:
        super().taken(lease)
        if self.own.get(lease.lock_name) is lease:
            for overtaken in self._claiming.get(lease.lock_name, ()):
                if not overtaken.done():
                    # In this step: the lease must not end before every claim that it overtakes has a use of it.
                    overtaken.set_result(self._join(lease))

    async def restore(self, handed_over: HandOver, *, heartbeat: bool, ttl_ms: Optional[int]) -> Lease:
        lease = await super().restore(handed_over, heartbeat=heartbeat, ttl_ms=ttl_ms)
        return self._use_of(lease) if isinstance(lease, HeldLease) else lease

    async def take(self, request: ClaimRequest) -> Union[ClaimResult, Lease]:
        holder = self.instance.holder or await self.instance.open()
        name = request.lock_name
        started_ms = holder.clock.monotonic() * 1_000
        joined: Optional[_Use] = None
        while True:
            own = self.own.get(name) if joined is None else joined.lease
            if own is not None:
                use = await self._extended(joined or self._join(own), request)
                if use is not None:
                    return use
                joined = None
            # One waiting time in all, however often other claims of this instance come first.
            waited_ms = holder.clock.monotonic() * 1_000 - started_ms
            left_ms = max(0.0, request.wait_ms - waited_ms)
            result = await self._claim(holder, replace(request, wait_ms=left_ms), own)
            if isinstance(result, HeldLease):
                return self._use_of(result)
            if isinstance(result, _Use):
                joined = result
            elif result is not None:
                return Refused(result.refusal, result.waited_ms + request.wait_ms - left_ms)

    async def _extended(self, joined: _Use, request: ClaimRequest) -> Optional[InnerLease]:
        """None: the lease was lost or released meanwhile. The use has then ended."""
        lease, use = joined.lease, joined.use
        try:
            if await lease.lengthen(request.ttl_ms) and use.held:
                if request.heartbeat:
                    lease.start_heartbeat()
                return use
        except BaseException:
            joined.leave()
            raise
        joined.leave()
        return None

    async def _claim(
        self, holder: Holder, request: ClaimRequest, tried: Optional[HeldLease]
    ) -> Union[HeldLease, Refused, _Use, None]:
        """A use, or None: another claim of this instance was granted meanwhile."""
        name = request.lock_name
        overtaken: asyncio.Future[_Use] = holder.loop.create_future()
        acquiring = holder.begin(request, self.lease_ended)
        claiming = self._claiming.setdefault(name, {})
        claiming[overtaken] = None
        try:
            either: set[asyncio.Future[Any]] = {acquiring.future, overtaken}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not acquiring.future.done():
                acquiring.cancel()
                return overtaken.result()
            result = acquiring.future.result()
            if isinstance(result, HeldLease):
                # Its own grant was newer: the lease that it has joined has ended.
                _leave(overtaken)
                del claiming[overtaken]
                self.taken(result)
                return result
            if not overtaken.done():
                await acquiring.withdrawn()
            if overtaken.done():
                return overtaken.result()
            own = self.own.get(name)
            # A lease that could not be extended a moment ago is no reason to try again.
            return None if own is not None and own is not tried and own.held else result
        except asyncio.CancelledError:
            _leave(overtaken)
            acquiring.cancel()
            await acquiring.withdrawn()
            raise
        except BaseException:
            if overtaken.done():
                return overtaken.result()
            raise
        finally:
            claiming.pop(overtaken, None)
            if not claiming:
                self._claiming.pop(name, None)

    def _join(self, lease: HeldLease) -> _Use:
        lease.uses += 1
        return _Use(lease, self._use_of(lease))

    def _use_of(self, lease: HeldLease) -> InnerLease:
        def ended(use: InnerLease) -> Optional[asyncio.Future[bool]]:
            lease.uses -= 1
            return lease.begin_dispose() if lease.uses == 0 else None

        return InnerLease(lease, ended)


class _Use:
    """A use of a lease that its call does not have yet."""

    __slots__ = ("lease", "use")

    def __init__(self, lease: HeldLease, use: InnerLease) -> None:
        self.lease = lease
        self.use = use

    def leave(self) -> None:
        """If it was the last use, the release goes on in the background."""
        self.use.begin_release().add_done_callback(lambda done: done.cancelled() or done.exception())


def _leave(overtaken: asyncio.Future[_Use]) -> None:
    """The claim does not need the use that it was given, or stops waiting for one."""
    if overtaken.done() and not overtaken.cancelled():
        overtaken.result().leave()
    else:
        overtaken.cancel()
