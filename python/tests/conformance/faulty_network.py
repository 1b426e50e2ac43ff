"""A network between a client and a real driver, which a case can break.

The store is not simulated: every call that passes is a real one.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Awaitable, Callable, Dict, List, Optional, Sequence, Set, cast

from holdfast.core.driver import (
    Capabilities,
    Claim,
    Driver,
    DriverListener,
    ForcingDriver,
    Grant,
    InspectPage,
    InspectQuery,
    LeaseRecord,
    LeaseRef,
    RateRequest,
    Refusal,
    Renewal,
    StopListening,
)

METHODS = ("acquire", "renew", "release", "inspect", "listen", "consume")

Forward = Callable[[], Awaitable[Any]]
Fault = Callable[[Forward], Awaitable[Any]]
"""What happens to a call. `forward` sends it to the store. A fault calls it once, or not at all."""


@dataclass
class CallCounts:
    calls: int = 0
    answered: int = 0
    """The calls that the store answered."""
    requests: int = 0
    """The requests in all lists."""


class FaultyNetwork:
    def __init__(self, real: Driver) -> None:
        self.real = real
        self.driver: Driver = _DriverBehind(self)
        self.counts = {method: CallCounts() for method in METHODS}
        self.muted = False
        self.refused: Dict[str, Set[str]] = {}
        """For each lock name, the claims that the client knows to be refused and that wait."""
        self._next: Dict[str, List[Fault]] = {method: [] for method in METHODS}
        self._standing: Dict[str, Fault] = {}
        self._hanging: Set[asyncio.Future[Any]] = set()
        self._subscriptions: List[_Subscription] = []

    async def call(self, method: str, requests: int, send: Forward) -> Any:
        counts = self.counts[method]
        counts.calls += 1
        counts.requests += requests

        async def forward() -> Any:
            answer = await send()
            counts.answered += 1
            return answer

        faults = self._next[method]
        fault = faults.pop(0) if faults else self._standing.get(method)
        return await (forward() if fault is None else fault(forward))

    async def hangs(self, forward: Forward) -> Any:
        """A fault: nothing is sent and nothing comes back, until `heal`."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._hanging.add(future)
        return await future

    def once(self, method: str, fault: Fault) -> None:
        """The next call of this method meets the fault. Several faults are used up in their order."""
        self._next[method].append(fault)

    def always(self, method: str, fault: Fault) -> None:
        """Every call of this method meets the fault, until `heal`."""
        self._standing[method] = fault

    def cut(self) -> None:
        """The network is gone silently: no call is answered or fails, and no wake-up arrives."""
        self.muted = True
        for method in METHODS:
            self._standing[method] = self.hangs

    def mute(self) -> None:
        """Wake-ups are lost from now on."""
        self.muted = True

    def deliver(self, message: Callable[[DriverListener], None]) -> None:
        """Sends a message to the listeners, true or not, as another client could."""
        for subscription in list(self._subscriptions):
            message(subscription.listener)

    def break_subscription(self) -> None:
        """The subscription breaks, and the driver notices."""
        broken, self._subscriptions = self._subscriptions, []
        for subscription in broken:
            subscription.broken = True
            subscription.listener.disconnected(ConnectionError("the subscription broke"))

    def heal(self) -> None:
        """Everything works again. Calls that hang fail now."""
        self.muted = False
        self._standing.clear()
        for faults in self._next.values():
            faults.clear()
        for future in self._hanging:
            if not future.done():
                future.set_exception(ConnectionError("the connection was closed"))
        self._hanging.clear()

    async def listen(self, listener: DriverListener) -> StopListening:
        subscription = _Subscription(self, listener)
        stop_real = await self.real.listen(subscription)
        self._subscriptions.append(subscription)

        async def stop() -> None:
            if subscription in self._subscriptions:
                self._subscriptions.remove(subscription)
            await stop_real()

        return stop


class _Subscription:
    """Passes messages on unless the network is muted or the subscription is broken."""

    def __init__(self, network: FaultyNetwork, listener: DriverListener) -> None:
        self._network = network
        self.listener = listener
        self.broken = False

    @property
    def _is_heard(self) -> bool:
        return not self._network.muted and not self.broken

    def wake(self, lock_name: str, claim_id: Optional[str] = None) -> None:
        if self._is_heard:
            self.listener.wake(lock_name, claim_id)

    def granted(self, claim_id: str, grant: Grant) -> None:
        if self._is_heard:
            self.listener.granted(claim_id, grant)

    def lost(self, claim_id: str, cause: Exception) -> None:
        if self._is_heard:
            self.listener.lost(claim_id, cause)

    def disconnected(self, cause: Exception) -> None:
        if self._is_heard:
            self.listener.disconnected(cause)


class _DriverBehind:
    """The driver as the client behind the network sees it."""

    def __init__(self, network: FaultyNetwork) -> None:
        self._network = network
        self._real = network.real

    @property
    def name(self) -> str:
        return self._real.name

    @property
    def place(self) -> Optional[str]:
        return self._real.place

    @property
    def capabilities(self) -> Capabilities:
        return self._real.capabilities

    @property
    def longest_ttl_ms(self) -> Optional[float]:
        return self._real.longest_ttl_ms

    async def acquire(self, claims: Sequence[Claim]) -> Any:
        answers = await self._network.call("acquire", len(claims), lambda: self._real.acquire(claims))
        for claim, answer in zip(claims, answers or ()):
            if claim.waiter_ttl_ms > 0 and isinstance(answer, Refusal):
                self._network.refused.setdefault(claim.lock_name, set()).add(claim.claim_id)
        return answers

    async def renew(self, renewals: Sequence[Renewal]) -> Any:
        return await self._network.call("renew", len(renewals), lambda: self._real.renew(renewals))

    async def release(self, leases: Sequence[LeaseRef]) -> Any:
        return await self._network.call("release", len(leases), lambda: self._real.release(leases))

    async def inspect(self, query: InspectQuery) -> InspectPage:
        page: InspectPage = await self._network.call("inspect", 1, lambda: self._real.inspect(query))
        return page

    async def listen(self, listener: DriverListener) -> StopListening:
        stop: StopListening = await self._network.call("listen", 1, lambda: self._network.listen(listener))
        return stop

    async def consume(self, requests: Sequence[RateRequest]) -> Any:
        return await self._network.call("consume", len(requests), lambda: self._real.consume(requests))

    async def force_release(self, leases: Sequence[LeaseRecord], *, by: str, end_session: bool) -> Any:
        return await cast(ForcingDriver, self._real).force_release(leases, by=by, end_session=end_session)

    async def close(self) -> None:
        await self._real.close()


async def fails(forward: Forward) -> Any:
    """The request never reaches the store. A plain error, as from a driver that forgot to wrap its client's error."""
    raise ConnectionRefusedError("the connection was refused")


async def loses_reply(forward: Forward) -> Any:
    """The store has done it, and the caller gets no reply."""
    await forward()
    raise ConnectionError("the connection broke before the reply came")


class HeldCall:
    """Holds a call back, before the store sees it or after the store has done what was asked."""

    def __init__(self, *, before: bool) -> None:
        self._before = before
        self._gate = asyncio.Event()
        self.reached = asyncio.Event()
        """Is set when the call is held: not sent yet, or answered by the store."""
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        """The store's own answer."""

    async def fault(self, forward: Forward) -> Any:
        if self._before:
            await self._pause()
        answer = await forward()
        if not self.answer.done():
            self.answer.set_result(answer)
        if not self._before:
            await self._pause()
        return answer

    async def _pause(self) -> None:
        self.reached.set()
        await self._gate.wait()

    def resume(self) -> None:
        self._gate.set()


def hold_request() -> HeldCall:
    return HeldCall(before=True)


def hold_reply() -> HeldCall:
    return HeldCall(before=False)
