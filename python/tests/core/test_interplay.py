"""Features that meet: each is tested alone elsewhere."""

from __future__ import annotations

import asyncio
from typing import Any, AsyncIterator, Awaitable, Callable, List

import pytest
from holdfast import DistributedLock, InvalidArgumentError, Lease, LeaseLostError, StoreError, SyncDistributedLock
from holdfast.core.driver import Refusal
from holdfast.drivers.memory import MemoryDriver, memory_driver

from conformance.faulty_network import Forward
from support.locks import Locks

NAME = "order:123"
ENDS: List[Any] = [
    pytest.param(lambda lease, lock: lease.release(), id="lease.release()"),
    pytest.param(lambda lease, lock: lock.release(NAME), id="lock.release(name)"),
    pytest.param(lambda lease, lock: lock.release_all(), id="lock.release_all()"),
]


@pytest.fixture
async def locks() -> AsyncIterator[Locks]:
    opened = Locks()
    yield opened
    await opened.close()


async def slow(forward: Forward) -> Any:
    await asyncio.sleep(0.02)
    answer = await forward()
    await asyncio.sleep(0.02)
    return answer


async def begun(work: Awaitable[Any]) -> "asyncio.Future[Any]":
    """What a block begins and does not await."""
    task = asyncio.ensure_future(work)
    for _ in range(3):
        await asyncio.sleep(0)
    return task


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("reacquire", ["refuse", "extend"])
async def test_a_block_confirms_its_lease_although_it_does_not_await_its_release(
    locks: Locks, end: Callable[[Lease, DistributedLock], Awaitable[Any]], reacquire: str
) -> None:
    lock, network = locks.behind_network(reacquire=reacquire)
    other = locks()
    network.always("release", slow)
    with pytest.raises(LeaseLostError):
        async with lock.lock(NAME) as lease:
            await other.force_release(NAME, by="ada")
            assert await other.acquire(NAME)
            task = await begun(end(lease, lock))
    await task


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("reacquire", ["refuse", "extend"])
async def test_the_lock_is_free_when_a_block_has_ended(
    locks: Locks, end: Callable[[Lease, DistributedLock], Awaitable[Any]], reacquire: str
) -> None:
    lock, network = locks.behind_network(reacquire=reacquire)
    other = locks()
    network.always("release", slow)
    async with lock.lock(NAME) as lease:
        task = await begun(end(lease, lock))
    assert (await other.acquire(NAME, timeout_seconds=0.05)).acquired
    await task
    await asyncio.sleep(0.06)
    async with await lock.hold(NAME) as lease:
        task = await begun(end(lease, lock))
    assert (await other.acquire(NAME)).acquired
    await task


async def test_a_block_that_waits_for_a_release_does_not_end_with_its_cancellation(locks: Locks) -> None:
    lock, network = locks.behind_network()
    network.always("release", slow)
    async with lock.lock(NAME) as lease:
        task = await begun(lease.release())
        task.cancel()
    assert (await locks().acquire(NAME)).acquired
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_name_in_a_block_whose_lease_is_lost_means_no_other_lease(locks: Locks) -> None:
    lock = locks()
    lost, end = asyncio.Event(), asyncio.Event()
    answers: List[Any] = []

    async def one() -> None:
        async with lock.lock(NAME, timeout_seconds=0.05, heartbeat=False):
            try:
                await asyncio.sleep(10)
            finally:
                lost.set()
                await end.wait()
                answers.append(await lock.extend(NAME, 60))
                answers.append(await lock.release(NAME))

    first = asyncio.ensure_future(one())
    await lost.wait()
    async with lock.lock(NAME) as lease:
        end.set()
        with pytest.raises(LeaseLostError):
            await first
        assert answers == [False, False]
        assert lease.held and lease.remaining_seconds < 40
        assert not await locks().acquire(NAME)


async def test_a_name_in_a_block_means_what_the_block_has_acquired_again(locks: Locks) -> None:
    lock = locks()
    async with lock.lock(NAME) as lease:
        await lease.release()
        assert await lock.release(NAME) is False
        assert await lock.acquire(NAME)
        assert await lock.extend(NAME, 60) is True
        assert await lock.release(NAME) is True
        assert await lock.release(NAME) is False


async def test_a_hand_off_to_waiting_re_acquisitions_costs_as_much_for_each_however_many(locks: Locks) -> None:
    async def requests(waiters: int) -> float:
        lock, network = locks.behind_network(reacquire="extend")
        other = locks()
        taken = await other.hold(NAME, timeout_seconds=1_000)

        async def job() -> None:
            async with lock.lock(NAME, blocking_timeout_seconds=50):
                await asyncio.sleep(0.001)

        for method in ("acquire", "renew", "release"):
            network.always(method, slow)
        jobs = [asyncio.ensure_future(job()) for _ in range(waiters)]
        await asyncio.sleep(0.2)
        before = sum(each.requests for each in network.counts.values())
        await taken.release()
        await asyncio.gather(*jobs)
        return (sum(each.requests for each in network.counts.values()) - before) / waiters

    few, many = await requests(10), await requests(80)
    assert many < few * 2, (few, many)


async def test_waiting_re_acquisitions_keep_their_place(locks: Locks) -> None:
    lock, network = locks.behind_network(reacquire="extend")
    for method in ("acquire", "renew", "release"):
        network.always(method, slow)
    third = locks()
    taken = await locks().hold(NAME, timeout_seconds=1_000)
    order: List[str] = []

    async def job(on: DistributedLock, who: str) -> None:
        async with on.lock(NAME, blocking_timeout_seconds=50):
            order.append(who)

    jobs = []
    for on, who in ((lock, "a1"), (lock, "a2"), (lock, "a3"), (third, "b1"), (third, "b2")):
        jobs.append(asyncio.ensure_future(job(on, who)))
        await asyncio.sleep(0.1)
    await taken.release()
    await asyncio.gather(*jobs)
    assert sorted(order[:3]) == ["a1", "a2", "a3"], order


async def test_a_minimum_hold_beyond_what_the_driver_keeps_is_refused_before_anything_is_sent() -> None:
    driver = memory_driver()
    driver.longest_ttl_ms = 60_000  # as redlock has, with its default longest_ttl_seconds
    lock = DistributedLock(driver)
    with pytest.raises(InvalidArgumentError, match="min_hold_seconds.*at most 60.*memory"):
        await lock.acquire(NAME, min_hold_seconds=120)
    assert not await lock.is_locked(NAME)
    assert await lock.acquire(NAME, min_hold_seconds=60)
    await lock.close()


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("it cannot be printed")


@pytest.mark.parametrize("answer", [Unprintable(), 10**5_000, Refusal(ask_again_ms=10**5_000)], ids=["a", "b", "c"])
async def test_an_answer_that_cannot_be_printed_fails_its_own_request(answer: Any) -> None:
    class Driver(MemoryDriver):
        async def acquire(self, claims: Any) -> Any:
            return [answer, *(await super().acquire(claims))[1:]]

        async def inspect(self, query: Any) -> Any:
            return answer

    lock = DistributedLock(Driver())
    odd, fine = await asyncio.gather(lock.acquire("a"), lock.acquire("b"), return_exceptions=True)
    assert isinstance(odd, StoreError) and "memory" in str(odd)
    assert not isinstance(fine, BaseException), fine
    with pytest.raises(StoreError, match="memory"):
        await lock.inspect("a")
    await lock.close()


@pytest.mark.parametrize("several", [False, True])
async def test_the_end_of_an_inner_block_asks_the_store_and_nothing_follows_a_forced_release(
    locks: Locks, several: bool
) -> None:
    lock, network = locks.behind_network()
    steps: List[str] = []
    with pytest.raises(LeaseLostError):
        async with lock.lock(NAME, heartbeat=False):
            async with lock.locks([NAME]) if several else lock.lock(NAME):
                await locks().force_release(NAME, by="ada")
                steps.append("inner")
            steps.append("after the inner block")
    assert steps == ["inner"] and network.counts["renew"].calls == 1


def test_the_end_of_an_inner_block_of_a_thread_raises_the_loss(sqlite_url: str) -> None:
    with SyncDistributedLock(sqlite_url) as lock, SyncDistributedLock(sqlite_url) as other:
        with pytest.raises(LeaseLostError):
            with lock.lock(NAME):
                with pytest.raises(LeaseLostError):
                    with lock.lock(NAME):
                        other.force_release(NAME, by="ada")
