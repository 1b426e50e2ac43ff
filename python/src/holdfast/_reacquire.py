"""`reacquire="extend"`: an instance that asks for a name that it already holds extends its lease."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Optional, Union
from weakref import WeakKeyDictionary

from ._claims import Claims
from ._inner_lease import InnerLease
from ._instance import Instance
from ._options import LockDefaults
from .core.holder import ClaimRequest, ClaimResult, Holder, Refused
from .core.lease import HeldLease, Lease


class ExtendingClaims(Claims):
    """Each call gets a use of the one lease, and the last use to end releases the lock."""

    def __init__(self, instance: Instance, defaults: Optional[LockDefaults] = None) -> None:
        super().__init__(instance, defaults)
        self._uses: WeakKeyDictionary[HeldLease, int] = WeakKeyDictionary()
        self._claiming: dict[str, set[asyncio.Future[None]]] = {}
        """The claims in flight. When one of them is granted, the others stop waiting and extend its lease."""

    def taken(self, lease: HeldLease) -> None:
        super().taken(lease)
        if self.own.get(lease.lock_name) is lease:
            self._uses[lease] = 1
            for overtaken in self._claiming.get(lease.lock_name, ()):
                if not overtaken.done():
                    overtaken.set_result(None)

    async def take(self, request: ClaimRequest) -> Union[ClaimResult, Lease]:
        holder = self.instance.holder or await self.instance.open()
        name = request.lock_name
        started_ms = holder.clock.monotonic() * 1_000
        while True:
            own = self.own.get(name)
            if own is not None and await own.lengthen(request.ttl_ms) and own.held:
                # In the same step as the check: in a later one the last other use may have released the lease.
                self._uses[own] = self._uses.get(own, 0) + 1
                if request.heartbeat:
                    own.start_heartbeat()
                return self._use_of(own)
            # One waiting time in all, however often other claims of this instance come first.
            waited_ms = holder.clock.monotonic() * 1_000 - started_ms
            left_ms = max(0.0, request.wait_ms - waited_ms)
            result = await self._claim(holder, replace(request, wait_ms=left_ms), own)
            if isinstance(result, HeldLease):
                return self._use_of(result)
            if result is not None:
                return Refused(result.refusal, result.waited_ms + request.wait_ms - left_ms)

    async def _claim(
        self, holder: Holder, request: ClaimRequest, tried: Optional[HeldLease]
    ) -> Union[HeldLease, Refused, None]:
        """None: another claim of this instance was granted meanwhile."""
        name = request.lock_name
        overtaken: asyncio.Future[None] = holder.loop.create_future()
        acquiring = holder.begin(request, self.lease_ended)
        claiming = self._claiming.setdefault(name, set())
        claiming.add(overtaken)
        try:
            either: set[asyncio.Future[Any]] = {acquiring.future, overtaken}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not acquiring.future.done():
                acquiring.cancel()
                return None
            result = acquiring.future.result()
            if isinstance(result, HeldLease):
                self.taken(result)
                return result
            await acquiring.withdrawn()
            own = self.own.get(name)
            # A lease that could not be extended a moment ago is no reason to try again.
            return None if own is not None and own is not tried and own.held else result
        except asyncio.CancelledError:
            acquiring.cancel()
            await acquiring.withdrawn()
            raise
        finally:
            claiming.discard(overtaken)
            if not claiming:
                self._claiming.pop(name, None)

    def _use_of(self, lease: HeldLease) -> InnerLease:
        def ended(use: InnerLease) -> Optional[asyncio.Future[bool]]:
            left = self._uses.get(lease, 1) - 1
            self._uses[lease] = left
            return lease.begin_release() if left == 0 else None

        return InnerLease(lease, ended)
