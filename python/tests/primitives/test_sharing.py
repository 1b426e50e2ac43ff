"""Readers and writers, and permits, on the memory driver."""

from __future__ import annotations

import asyncio
from typing import Any, AsyncIterator, Awaitable, Callable, List

import pytest

from conformance.faulty_network import FaultyNetwork
from holdfast import (
    ClosedError,
    DeadlockError,
    DistributedLock,
    InvalidArgumentError,
    LeaseLostError,
    NotAcquiredError,
    ReadWriteLock,
    Semaphore,
    UnsupportedError,
)
from holdfast.drivers.memory import MemoryStore, memory_driver
from support.steered_clock import SteeredClock
from support.polling import waiters


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def opened(store: MemoryStore) -> AsyncIterator[Callable[..., Any]]:
    """Instances on one store, each with its own driver, as in separate processes."""
    instances: List[Any] = []

    def create(kind: Any, **options: Any) -> Any:
        driver = options.pop("driver", None)
        instance = kind(memory_driver(store) if driver is None else driver, **options)
        instances.append(instance)
        return instance

    yield create
    for instance in instances:
        await instance.close()


Open = Callable[..., Any]


async def test_readers_share_and_a_writer_is_alone(opened: Open) -> None:
    a, b = opened(ReadWriteLock), opened(ReadWriteLock)
    lock = opened(DistributedLock)
    async with a.read("page"), b.read("page") as lease:
        assert lease.held
        assert not await b.acquire_write("page")
        assert not await lock.acquire("page")
    async with a.write("page") as lease:
        assert not await b.acquire_read("page")
        refused = await b.acquire_write("page")
        assert refused.holder is not None and refused.holder.fencing_token == lease.fencing_token
    read = await b.acquire_read("page")
    assert read and read.lease.fencing_token > lease.fencing_token


async def test_holding_raises_on_contention_and_has_a_heartbeat(opened: Open) -> None:
    clock = SteeredClock()
    a, b = opened(ReadWriteLock, clock=clock), opened(ReadWriteLock)
    reader = await a.hold_read("page", timeout_seconds=600)
    with pytest.raises(NotAcquiredError):
        await b.hold_write("page")
    for _ in range(3):
        before = reader.expires_at
        clock.advance(240)
        while reader.expires_at == before:
            await asyncio.sleep(0.002)
    assert reader.held
    assert await reader.release() and not await reader.release()
    writer = await b.hold_write("page")
    with pytest.raises(NotAcquiredError):
        await a.hold_read("page")
    await writer.release()


async def test_readers_after_a_waiting_writer_wait_behind_it(opened: Open, store: MemoryStore) -> None:
    locks = opened(ReadWriteLock)
    order: List[str] = []

    async def use(block: Any, name: str) -> None:
        async with block:
            order.append(name)
            await asyncio.sleep(0)

    first = await locks.hold_read("page")
    tasks = [asyncio.create_task(use(locks.write("page", blocking=True), "writer"))]
    await waiters(memory_driver(store), 1)
    for number in (1, 2):
        tasks.append(asyncio.create_task(use(locks.read("page", blocking=True), f"reader {number}")))
        await waiters(memory_driver(store), number + 1)
    await first.release()
    await asyncio.gather(*tasks)
    assert order == ["writer", "reader 1", "reader 2"]


async def test_a_lock_is_entered_again_and_writing_inside_reading_is_a_deadlock(opened: Open) -> None:
    locks = opened(ReadWriteLock)
    async with locks.read("page"):
        async with locks.read("page", blocking=True):
            pass
        with pytest.raises(DeadlockError):
            async with locks.write("page", blocking=True):
                pass
        with pytest.raises(NotAcquiredError):
            async with locks.write("page"):
                pass
    async with locks.write("page"):
        async with locks.read("page"), locks.write("page"):
            pass


async def test_at_most_the_limit_of_permits_is_held(opened: Open) -> None:
    a, b = opened(Semaphore, limit=3), opened(Semaphore, limit=3)
    used = most = 0

    async def use(semaphore: Semaphore, permits: int) -> None:
        nonlocal used, most
        async with semaphore.permits("exports", permits=permits, blocking=True):
            used += permits
            most = max(most, used)
            await asyncio.sleep(0.001)
            used -= permits

    await asyncio.gather(*(use(each, 1 + index % 3) for index, each in enumerate((a, b) * 10)))
    assert most == 3
    lease = await a.hold("exports", permits=2)
    assert not await b.acquire("exports", permits=2)
    assert await b.acquire("exports")
    assert await lease.release() and not await lease.release()
    assert await b.acquire("exports", permits=2)


async def test_a_claim_for_many_permits_is_not_overtaken(opened: Open, store: MemoryStore) -> None:
    semaphore = opened(Semaphore, limit=3)
    order: List[int] = []

    async def use(permits: int) -> None:
        async with semaphore.permits("exports", permits=permits, blocking=True):
            order.append(permits)

    held = await semaphore.hold("exports")
    tasks = []
    for number, permits in enumerate((3, 1), 1):
        tasks.append(asyncio.create_task(use(permits)))
        await waiters(memory_driver(store), number)
    await held.release()
    await asyncio.gather(*tasks)
    assert order == [3, 1]


async def test_permits_inside_permits_are_counted(opened: Open) -> None:
    semaphore = opened(Semaphore, limit=3)
    async with semaphore.permits("exports"):
        async with semaphore.permits("exports", permits=2, blocking=True):
            assert not await semaphore.acquire("exports")
        with pytest.raises(DeadlockError):
            await semaphore.acquire("exports", permits=3, blocking=True)


async def test_the_limit_belongs_to_the_claim(opened: Open) -> None:
    small, large = opened(Semaphore, limit=1), opened(Semaphore, limit=3)
    await small.hold("exports")
    assert not await small.acquire("exports")
    assert await large.acquire("exports")


@pytest.mark.parametrize("kind", ["read", "write", "permits"])
async def test_a_lost_lease_cancels_the_block_which_raises(opened: Open, store: MemoryStore, kind: str) -> None:
    network = FaultyNetwork(memory_driver(store))
    options = {"driver": network.driver, "call_timeout_seconds": 0.05}
    instance = opened(Semaphore, limit=2, **options) if kind == "permits" else opened(ReadWriteLock, **options)
    block: Any = getattr(instance, kind)("name", timeout_seconds=0.2)
    with pytest.raises(LeaseLostError):
        async with block:
            network.cut()
            await asyncio.sleep(50)
    network.heal()


async def test_bad_input_is_refused_before_anything_is_sent(opened: Open) -> None:
    wrong: List[Any] = [0, 1_000_001, 1.5, True, None]
    for limit in wrong:
        with pytest.raises(InvalidArgumentError, match="limit must be"):
            Semaphore("memory:", limit=limit)
    semaphore = opened(Semaphore, limit=3)
    for permits in (0, 4, True):
        with pytest.raises(InvalidArgumentError, match="permits must be a whole number from 1 to 3"):
            await semaphore.acquire("exports", permits=permits)
        with pytest.raises(InvalidArgumentError):
            semaphore.permits("exports", permits=permits)
    with pytest.raises(InvalidArgumentError, match="lock_name must be"):
        await opened(ReadWriteLock).acquire_read("")
    with pytest.raises(InvalidArgumentError, match="timeout_seconds must be"):
        ReadWriteLock("memory:", defaults={"timeout_seconds": 0})


async def test_a_driver_without_shared_mode_or_limits_is_refused_with_the_reason(opened: Open) -> None:
    from dataclasses import replace

    driver = memory_driver()
    driver.capabilities = replace(driver.capabilities, shared=False, limit=False, reasons={"shared": "it cannot"})
    locks, semaphore = opened(ReadWriteLock, driver=driver), opened(Semaphore, driver=driver, limit=1)
    calls: List[Callable[[], Awaitable[Any]]] = [lambda: locks.acquire_read("a"), lambda: semaphore.acquire("a")]
    for call in calls:
        with pytest.raises(UnsupportedError, match="it cannot"):
            await call()
    assert await locks.acquire_write("a")


async def test_defaults_apply_and_a_closed_instance_refuses(opened: Open) -> None:
    a = opened(ReadWriteLock, defaults={"timeout_seconds": 7, "metadata": {"by": "test"}})
    result = await a.acquire_read("page")
    assert result.lease.metadata == {"by": "test"} and 6 < result.lease.remaining_seconds <= 7
    await a.close()
    assert not result.lease.held
    with pytest.raises(ClosedError):
        await a.acquire_read("page")
