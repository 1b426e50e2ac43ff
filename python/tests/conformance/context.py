"""What a case works with: unique lock names, and a driver for each process that it wants to play."""

from __future__ import annotations

import secrets
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, AsyncIterator, Callable, Dict, Generic, List, TypeVar

from holdfast import DistributedLock
from holdfast.core.driver import Capabilities, Claim, Driver

from .faulty_network import FaultyNetwork
from .mutex import MutexInstance, MutexSubject, Taken
from .stores import Store
from .timing import LONG_MS, PATIENCE_SECONDS, outlast, sleep_ms

Primitive = TypeVar("Primitive")

PATIENT = {"call_timeout_seconds": PATIENCE_SECONDS}
"""An answer that a loaded machine delivers late is still an answer."""


@dataclass
class Process(Generic[Primitive]):
    """A primitive with a driver of its own, as one process has, and a network between them that the case can break."""

    primitive: Primitive
    network: FaultyNetwork
    real_driver: Driver


@dataclass
class LockProcess(Process[DistributedLock]):
    @property
    def lock(self) -> DistributedLock:
        return self.primitive


@dataclass
class MutexProcess(Process[MutexInstance]):
    holder_id: str

    async def take(self, lock_name: str, **options: Any) -> Taken:
        return await self.primitive.take(lock_name, **options)

    async def close(self) -> None:
        await self.primitive.close()


class Context:
    def __init__(self, store: Store, cleanup: AsyncExitStack) -> None:
        self._store = store
        self._cleanup = cleanup
        self._claims = 0
        self._networks: List[FaultyNetwork] = []
        self._instances: List[Any] = []
        self.lock_name = f"conformance:{secrets.token_urlsafe(9)}"
        """Unique to this case, so that a server can be shared by many runs."""

    @property
    def capabilities(self) -> Capabilities:
        capabilities = self._store.capabilities
        assert capabilities is not None, "no driver has been opened"
        return capabilities

    def name(self, suffix: object) -> str:
        """Another unique name, which begins with `lock_name`."""
        return f"{self.lock_name}:{suffix}"

    def claim(self, **changes: Any) -> Claim:
        """By default on `lock_name`, exclusive, with a long TTL, and not waiting."""
        self._claims += 1
        claim_id = f"{self.lock_name}.{self._claims}"
        fields: Dict[str, Any] = {
            "lock_name": self.lock_name,
            "claim_id": claim_id,
            "holder_id": f"holder of {claim_id}",
            "ttl_ms": LONG_MS,
        }
        return Claim(**{**fields, **changes})

    async def driver(self) -> Driver:
        """A new driver on the same store, as another process would have."""
        driver = await self._store.driver(self._cleanup)
        self._store.capabilities = driver.capabilities
        self._cleanup.push_async_callback(driver.close)
        return driver

    async def lease_ends(self, driver: Driver, ttl_ms: float) -> None:
        """Lets a driver's lease end without being released: its time runs out, or its session dies."""
        if self.capabilities.expiry == "session":
            await self._store.end_session(driver)
        else:
            await outlast(ttl_ms)

    async def lose_data(self) -> None:
        assert self._store.lose_data is not None
        # The lost counter was never behind the clock, so the clock must have advanced for a higher token.
        await sleep_ms(2)
        await self._store.lose_data()

    async def step_clock(self, ms: float) -> None:
        """Sets the store's clock, forwards or back."""
        assert self._store.step_clock is not None
        await self._store.step_clock(ms)

    async def open(self, make: Callable[[Driver], Primitive]) -> Process[Primitive]:
        real_driver = await self.driver()
        network = FaultyNetwork(real_driver)
        self._networks.append(network)
        primitive = make(network.driver)
        self._instances.append(primitive)
        return Process(primitive, network, real_driver)

    async def lock(self, **options: Any) -> LockProcess:
        """The same for a `DistributedLock`. Its claims wait by default, so that a grant that a loaded machine delivers
        too late is asked for again."""
        options = {"defaults": {"blocking": True}, **PATIENT, **options}
        opened = await self.open(lambda driver: DistributedLock(driver, **options))
        return LockProcess(opened.primitive, opened.network, opened.real_driver)

    async def mutex(self, subject: MutexSubject, **options: Any) -> MutexProcess:
        """The same for a primitive that is tested as a mutex."""
        holder_id = f"holder {len(self._instances) + 1} of {self.lock_name}"
        options = {**PATIENT, **options}
        opened = await self.open(lambda driver: subject.open(driver, holder_id=holder_id, **options))
        return MutexProcess(opened.primitive, opened.network, opened.real_driver, holder_id)

    async def cut_off(self, process: Process[Any]) -> None:
        """Cuts a process off from the store, so that its leases end there by themselves."""
        process.network.cut()
        if self.capabilities.expiry == "session":
            await self._store.end_session(process.real_driver)

    async def close(self) -> None:
        for network in self._networks:
            network.heal()
        for instance in self._instances:
            await instance.close()


@asynccontextmanager
async def open_context(store: Store) -> AsyncIterator[Context]:
    """Closes everything that a case has opened, even if it failed."""
    async with AsyncExitStack() as cleanup:
        context = Context(store, cleanup)
        # Runs before the drivers that the case has opened are closed.
        try:
            yield context
        finally:
            await context.close()
