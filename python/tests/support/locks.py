"""Locks on one memory store, for the tests of the engine."""

from __future__ import annotations

import asyncio
from typing import Any, Callable, Dict, List, Tuple

from conformance.faulty_network import FaultyNetwork
from holdfast import DistributedLock
from holdfast.core.driver import InspectPage, InspectQuery
from holdfast.drivers.memory import MemoryStore, memory_driver

from support.steered_clock import SteeredClock


class Locks:
    """Instances on one store, each with a driver of its own, as processes have them."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self._options: Dict[str, Any] = {}
        self._open: List[DistributedLock] = []

    def steer(self) -> SteeredClock:
        """From now on, the store and what is opened on it have a clock that the test advances. First call of a test."""
        clock = SteeredClock()
        self.store = MemoryStore(clock)
        self._options = {"clock": clock, "call_timeout_seconds": 3_600}
        return clock

    def __call__(self, **options: Any) -> DistributedLock:
        return self._opened(DistributedLock(memory_driver(self.store), **{**self._options, **options}))

    def behind_network(self, **options: Any) -> Tuple[DistributedLock, FaultyNetwork]:
        network = FaultyNetwork(memory_driver(self.store))
        return self._opened(DistributedLock(network.driver, **{**self._options, **options})), network

    def _opened(self, lock: DistributedLock) -> DistributedLock:
        self._open.append(lock)
        return lock

    @property
    def page(self) -> InspectPage:
        return self.store.inspect(InspectQuery(page_size=10_000))

    @property
    def holders(self) -> int:
        return len(self.page.leases)

    @property
    def waiters(self) -> int:
        return len(self.page.waiters)

    async def close(self) -> None:
        for lock in self._open:
            await lock.close(deadline_seconds=0.2)


async def until(condition: Callable[[], Any]) -> None:
    """The limit is that of the test."""
    while not condition():
        await asyncio.sleep(0.002)
