"""Cancellation at every await. After any step, nothing stays behind in the store."""

from __future__ import annotations

import asyncio
from typing import Any, Awaitable, Callable

import pytest
from holdfast import DistributedLock

from support.locks import Locks, until

STEPS = 14
"""More than the steps of any of these operations on the memory driver."""


async def after(steps: int) -> None:
    for _ in range(steps):
        await asyncio.sleep(0)


async def cancelled_at(steps: int, work: Awaitable[Any]) -> None:
    """Cancels the work after so many turns of the event loop. It may have ended before."""
    task = asyncio.ensure_future(work)
    await after(steps)
    task.cancel()
    try:
        result = await task
    except asyncio.CancelledError:
        return
    if getattr(result, "lease", None) is not None:
        await result.lease.release()


async def free_lock(locks: Locks) -> Any:
    return await locks().acquire("a")


async def block(locks: Locks) -> None:
    async with locks().lock("a"):
        await asyncio.sleep(0)


async def block_that_enters_again(locks: Locks) -> None:
    lock = locks()
    async with lock.lock("a"):
        async with lock.lock("a"):
            await asyncio.sleep(0)


async def block_with_children(locks: Locks) -> None:
    lock = locks()

    async def child() -> None:
        async with lock.lock("a"):
            await asyncio.sleep(0)

    async with lock.lock("a"):
        tasks = [asyncio.ensure_future(child()) for _ in range(2)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()


async def several(locks: Locks) -> None:
    async with locks().locks(["a", "b", "c"]):
        await asyncio.sleep(0)


async def minimum_hold(locks: Locks) -> None:
    async with locks().lock("a", min_hold_seconds=0.05):
        await asyncio.sleep(0)


async def release_by_name(locks: Locks) -> None:
    lock = locks()
    result = await lock.acquire("a", timeout_seconds=0.2)
    try:
        await lock.extend("a", 0.3)
    finally:
        assert result
        await lock.release("a")


async def extending(locks: Locks) -> Any:
    lock = locks(reacquire="extend")
    first = await lock.acquire("a", timeout_seconds=0.2)
    try:
        second = await lock.acquire("a", timeout_seconds=0.2)
        assert second
        await second.lease.release()
    finally:
        assert first
        await first.lease.release()


@pytest.mark.parametrize("steps", range(STEPS))
@pytest.mark.parametrize(
    "work",
    [
        free_lock,
        block,
        block_that_enters_again,
        block_with_children,
        several,
        minimum_hold,
        release_by_name,
        extending,
    ],
)
async def test_a_cancellation_leaves_nothing_behind(work: Callable[[Locks], Awaitable[Any]], steps: int) -> None:
    locks = Locks()
    await cancelled_at(steps, work(locks))
    await until(lambda: locks.holders == 0 and locks.waiters == 0)
    await locks.close()


@pytest.mark.parametrize("steps", range(STEPS))
@pytest.mark.parametrize("names", [["a"], ["a", "b"]], ids=["one", "several"])
async def test_a_cancelled_waiter_leaves_nothing_behind(names: "list[str]", steps: int) -> None:
    """The lock is released in the same turn in which the waiter is cancelled, before it and after it."""
    locks = Locks()
    holder = locks()
    await holder.acquire("a")

    async def wait() -> None:
        async with locks().locks(names, blocking=True):
            await asyncio.sleep(0)

    task = asyncio.ensure_future(wait())
    await until(lambda: locks.waiters == 1)
    releasing = asyncio.ensure_future(holder.release("a"))
    await cancelled_at(steps, task)
    await releasing
    await until(lambda: locks.holders == 0 and locks.waiters == 0)
    await locks.close()


@pytest.mark.parametrize("steps", range(10))
async def test_a_program_that_cancels_all_tasks_can_go_on(steps: int) -> None:
    """`asyncio.run` cancels all tasks at its end, and waits for them: none of them may hang, not even those that wait
    for a call whose task was cancelled before its first step."""
    locks = Locks()
    lock = locks(call_timeout_seconds=30)
    await lock.acquire("held")

    async def work() -> None:
        async with lock.lock("a"):
            await lock.acquire("held", blocking=True)

    tasks = [asyncio.ensure_future(work()) for _ in range(3)]
    await after(steps)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
    await lock.release("held")
    assert await asyncio.wait_for(lock.acquire("b"), 10)
    await lock.release("b")
    await until(lambda: locks.holders == 0 and locks.waiters == 0)
    await locks.close()


async def test_a_caller_that_is_cancelled_while_the_store_opens_does_not_stop_it() -> None:
    lock = DistributedLock("memory:opening")
    first = asyncio.ensure_future(lock.acquire("a"))
    second = asyncio.ensure_future(lock.acquire("b"))
    await asyncio.sleep(0)
    first.cancel()
    assert await second
    await lock.close()


@pytest.mark.parametrize("reacquire", ["refuse", "extend"])
@pytest.mark.parametrize("how", ["cancelled", "refused"])
async def test_what_was_given_up_is_withdrawn_before_the_caller_goes_on(how: str, reacquire: str) -> None:
    """The caller may be the last step of a program: Ctrl-C while it waits. Nothing is sent after its end, and a waiter
    that stays in the queue delays the others."""
    locks = Locks()
    lock, network = locks.behind_network(reacquire=reacquire)

    async def takes_some_turns(forward: Callable[[], Awaitable[Any]]) -> Any:
        await after(10)
        return await forward()

    network.always("release", takes_some_turns)
    await locks().hold("a")
    waiting = asyncio.ensure_future(lock.acquire("a", blocking_timeout_seconds=0.2 if how == "refused" else 60))
    await until(lambda: locks.waiters == 1)
    if how == "cancelled":
        waiting.cancel()
    left = []
    waiting.add_done_callback(lambda _: left.append(locks.waiters))
    await asyncio.wait({waiting})
    assert left == [0]
    await locks.close()


async def test_a_store_that_does_not_answer_does_not_delay_a_cancellation_for_long() -> None:
    locks = Locks()
    lock, network = locks.behind_network()
    await locks().hold("a")
    waiting = asyncio.ensure_future(lock.acquire("a", blocking=True))
    await until(lambda: locks.waiters == 1)
    network.cut()
    waiting.cancel()
    # Far less than the timeout of a call.
    done, _ = await asyncio.wait({waiting}, timeout=4)
    assert done and waiting.cancelled()
    network.heal()
    await locks.close()
