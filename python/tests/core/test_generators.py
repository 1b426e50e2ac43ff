"""Blocks in generators: what a generator holds is its own, while it is suspended and when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from pathlib import Path
from typing import Any, AsyncIterator, Iterator

import pytest

from holdfast import DistributedLock, LeaseLostError, NotAcquiredError, SyncDistributedLock
from support.locks import Locks

NAME = "job"


@pytest.fixture
async def locks() -> AsyncIterator[Locks]:
    locks = Locks()
    yield locks
    await locks.close()


@pytest.fixture
def sync_lock(tmp_path: Path) -> Iterator[SyncDistributedLock]:
    with SyncDistributedLock(f"sqlite:{tmp_path}/locks.db") as lock:
        yield lock


def holding(lock: SyncDistributedLock, name: str = NAME) -> Iterator[Any]:
    with lock.lock(name) as lease:
        yield lease


async def async_holding(lock: DistributedLock, name: str = NAME) -> AsyncIterator[Any]:
    async with lock.lock(name) as lease:
        yield lease


def test_failure_81_a_thread_does_not_enter_a_lock_that_a_suspended_generator_holds(
    sync_lock: SyncDistributedLock,
) -> None:
    generator = holding(sync_lock)
    lease = next(generator)
    assert not sync_lock.acquire(NAME)
    with pytest.raises(NotAcquiredError):
        with sync_lock.lock(NAME):
            raise AssertionError("two holders")
    assert lease.held
    generator.close()  # type: ignore[attr-defined]
    with sync_lock.lock(NAME) as second:
        assert second.fencing_token > lease.fencing_token


async def test_failure_81_a_task_does_not_enter_a_lock_that_a_suspended_generator_holds(locks: Locks) -> None:
    lock = locks()
    generator = async_holding(lock)
    lease = await generator.__anext__()
    assert not await lock.acquire(NAME)
    with pytest.raises(NotAcquiredError):
        async with lock.lock(NAME):
            raise AssertionError("two holders")
    assert lease.held
    await generator.aclose()  # type: ignore[attr-defined]
    async with lock.lock(NAME) as second:
        assert second.fencing_token > lease.fencing_token


def test_failure_81_a_block_around_a_generators_block_keeps_its_own_names(sync_lock: SyncDistributedLock) -> None:
    """A generator's block leaves the block around its consumer as it was."""
    with sync_lock.lock("outer") as outer:
        generator = holding(sync_lock)
        next(generator)
        with sync_lock.lock("outer") as again:
            assert again.fencing_token == outer.fencing_token
        assert not sync_lock.acquire(NAME)
        generator.close()  # type: ignore[attr-defined]
        with sync_lock.lock("outer") as again:
            assert again.fencing_token == outer.fencing_token


@pytest.mark.timeout(20)
def test_failure_81_a_generator_that_entered_a_threads_lock_does_not_delay_its_release(
    sync_lock: SyncDistributedLock,
) -> None:
    with sync_lock.lock(NAME):
        generator = holding(sync_lock)
        inner = next(generator)
        assert inner.held
    # Nothing says when the generator goes on. Its part of the lock has ended with the block.
    assert not inner.held
    with sync_lock.lock(NAME):
        pass
    with pytest.raises(LeaseLostError):
        next(generator)


@pytest.mark.timeout(20)
async def test_failure_81_a_generator_that_entered_a_tasks_lock_does_not_delay_its_release(locks: Locks) -> None:
    lock = locks()
    async with lock.lock(NAME):
        generator = async_holding(lock)
        inner = await generator.__anext__()
        assert inner.held
    # The task is not cancelled: it is not inside the generator.
    await asyncio.sleep(0.01)
    assert not inner.held
    async with lock.lock(NAME):
        pass
    with pytest.raises(LeaseLostError):
        await generator.__anext__()


@pytest.mark.timeout(20)
async def test_failure_81_a_generator_of_another_task_does_not_delay_the_release(locks: Locks) -> None:
    lock = locks()
    entered, end = asyncio.Event(), asyncio.Event()

    async def consume() -> None:
        with pytest.raises(LeaseLostError):
            async for _ in async_holding(lock):
                entered.set()
                await end.wait()

    async with lock.lock(NAME):
        consumer = asyncio.ensure_future(consume())
        await entered.wait()
    assert locks.holders == 0
    end.set()
    await consumer


@pytest.mark.timeout(20)
def test_failure_81_an_outer_block_that_ends_first_in_its_thread_waits_for_nothing(
    sync_lock: SyncDistributedLock,
) -> None:
    outer, inner = sync_lock.lock(NAME), sync_lock.lock(NAME)
    outer.__enter__()
    lease = inner.__enter__()
    outer.__exit__(None, None, None)
    assert not lease.held
    with pytest.raises(LeaseLostError):
        inner.__exit__(None, None, None)


@pytest.mark.timeout(20)
async def test_failure_81_an_outer_block_that_ends_first_in_its_task_waits_for_nothing(locks: Locks) -> None:
    lock = locks()

    async def work() -> None:
        outer = contextlib.AsyncExitStack()
        await outer.enter_async_context(lock.lock(NAME))
        async with lock.lock(NAME):
            await outer.aclose()
            await asyncio.sleep(60)

    with pytest.raises(LeaseLostError):
        await work()
    assert locks.holders == 0


def test_a_block_inside_a_context_manager_of_contextlib_is_entered_again_in_its_body(
    sync_lock: SyncDistributedLock,
) -> None:
    """Such a generator is a `with` under another name: it is resumed when its body has ended."""
    managed = contextlib.contextmanager(holding)
    with managed(sync_lock) as lease:
        with sync_lock.lock(NAME) as again:
            assert again.fencing_token == lease.fencing_token
    with contextlib.ExitStack() as stack:
        lease = stack.enter_context(managed(sync_lock))
        with sync_lock.lock(NAME) as again:
            assert again.fencing_token == lease.fencing_token


async def test_a_block_inside_an_async_context_manager_of_contextlib_is_entered_again_in_its_body(
    locks: Locks,
) -> None:
    lock = locks()
    managed = contextlib.asynccontextmanager(async_holding)
    async with managed(lock) as lease, lock.lock(NAME) as again:
        assert again.fencing_token == lease.fencing_token
    async with contextlib.AsyncExitStack() as stack:
        lease = await stack.enter_async_context(managed(lock))
        async with lock.lock(NAME) as again:
            assert again.fencing_token == lease.fencing_token


def test_a_context_manager_of_contextlib_inside_a_generator_is_the_generators(
    sync_lock: SyncDistributedLock,
) -> None:
    def fixture() -> Iterator[Any]:
        with contextlib.contextmanager(holding)(sync_lock) as lease:
            yield lease

    generator = fixture()
    next(generator)
    assert not sync_lock.acquire(NAME)
    generator.close()  # type: ignore[attr-defined]


async def async_fixture(lock: DistributedLock) -> AsyncIterator[Any]:
    async with contextlib.AsyncExitStack() as stack:
        yield await stack.enter_async_context(lock.lock(NAME))


@pytest.fixture
async def lease_of_a_fixture(locks: Locks) -> AsyncIterator[Any]:
    async with locks().lock(NAME) as lease:
        yield lease


async def test_the_lease_of_a_fixture_is_not_entered_by_the_test(lease_of_a_fixture: Any, locks: Locks) -> None:
    assert lease_of_a_fixture.held and locks.holders == 1
    assert not await locks().acquire(NAME)


async def test_a_stack_inside_a_generator_is_the_generators(locks: Locks) -> None:
    lock = locks()
    generator = async_fixture(lock)
    await generator.__anext__()
    assert not await lock.acquire(NAME)
    await generator.aclose()  # type: ignore[attr-defined]
    assert locks.holders == 0


def test_a_generator_that_is_collected_releases_its_lock(sync_lock: SyncDistributedLock) -> None:
    generator = holding(sync_lock)
    next(generator)
    del generator
    gc.collect()
    deadline = time.monotonic() + 15
    while sync_lock.is_locked(NAME):
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def test_a_coroutine_that_a_generator_awaits_enters_its_own_lock_again(locks: Locks) -> None:
    lock = locks()

    async def step() -> bool:
        async with lock.lock(NAME), lock.lock(NAME) as again:
            return again.held

    async def steps() -> AsyncIterator[bool]:
        yield await step()

    assert [each async for each in steps()] == [True]
