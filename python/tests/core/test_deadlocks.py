"""Which claims count as waiting for each other, and which do not."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, AsyncIterator, Callable, Sequence

import pytest

from holdfast import DeadlockError, DistributedLock, StoreError
from holdfast.core.deadlock.find import find_cycles
from holdfast.core.driver import InspectQuery, LeaseRecord, WaiterRecord

from conformance.faulty_network import Forward
from support.locks import Locks, until

SOON: Any = {"deadlock_after_seconds": 0.1}
LONG: Any = {"blocking_timeout_seconds": 50}


@pytest.fixture
async def locks() -> AsyncIterator[Locks]:
    opened = Locks()
    yield opened
    await opened.close()


def held(name: str, claim_id: str, **changes: Any) -> LeaseRecord:
    fields: Any = {"mode": "exclusive", "permits": 1, "fencing_token": 1, "acquired_at_ms": 1.0, **changes}
    return LeaseRecord(name, claim_id, f"holder of {claim_id}", **fields)


def waits(name: str, claim_id: str, since_ms: float, **changes: Any) -> WaiterRecord:
    fields: Any = {"mode": "exclusive", "permits": 1, **changes}
    return WaiterRecord(name, claim_id, f"holder of {claim_id}", waiting_since_ms=since_ms, **fields)


def victims(*records: Any) -> Sequence[str]:
    leases = [each for each in records if isinstance(each, LeaseRecord)]
    return sorted(find_cycles(leases, [each for each in records if isinstance(each, WaiterRecord)]))


TWO = (held("x", "p.1"), held("y", "q.1"))


def test_the_youngest_claim_of_a_cycle_is_its_victim_and_who_only_waits_behind_it_is_not() -> None:
    cycle = (*TWO, waits("y", "p.1.1", 10), waits("x", "q.1.1", 20))
    assert victims(*cycle) == ["q.1.1"]
    assert victims(*cycle, waits("x", "r.1.1", 30), held("z", "r.1")) == ["q.1.1"]
    # Of the same moment: the larger id, in every process.
    assert victims(*TWO, waits("y", "p.1.1", 10), waits("x", "q.1.1", 10)) == ["q.1.1"]


def test_only_ancestors_count() -> None:
    # The claims are made outside of the blocks that hold x and y: in a sibling, and in another task.
    assert victims(*TWO, waits("y", "p.2", 10), waits("x", "q.2", 20)) == []
    siblings = (held("o", "p.1"), held("x", "p.1.1"), held("y", "p.1.2"))
    assert victims(*siblings, waits("y", "p.1.1.1", 10)) == []
    # But the leases that are taken together with a claim wait with it.
    together = (held("x", "p.1+1"), held("y", "q.1"))
    assert victims(*together, waits("y", "p.1+2", 10), waits("x", "q.1.1", 20)) == ["q.1.1"]
    # An id of another client with more levels than ours is alone.
    deep = "q" + ".1" * 9
    assert victims(held("x", "p.1"), held("y", deep), waits("y", "p.1.1", 10), waits("x", f"{deep}.1", 20)) == []


def test_what_can_still_be_granted_is_no_deadlock() -> None:
    one = {"mode": "shared", "limit": 2}
    permits = (held("s", "p.1", **one), held("s", "r.1", **one), held("y", "q.1"))
    assert victims(*permits, waits("y", "p.1.1", 10), waits("s", "q.1.1", 20, **one)) == []
    full = (held("s", "p.1", **{**one, "permits": 2}), held("y", "q.1"))
    assert victims(*full, waits("y", "p.1.1", 10), waits("s", "q.1.1", 20, **one)) == ["q.1.1"]
    readers = (held("x", "p.1", mode="shared"), held("y", "q.1"))
    assert victims(*readers, waits("y", "p.1.1", 10), waits("x", "q.1.1", 20, mode="shared")) == []


def test_a_chain_of_ten_thousand_neither_recurses_nor_takes_long() -> None:
    count = 10_000
    ring = [held(f"n{at}", f"p{at}.1") for at in range(count)]
    waiting = [waits(f"n{(at + 1) % count}", f"p{at}.1.1", at) for at in range(count)]
    assert victims(*ring, *waiting) == [f"p{count - 1}.1.1"]
    assert victims(*ring[1:], *waiting) == []


async def cycle_of(first: DistributedLock, second: DistributedLock, take: Callable[..., Any]) -> list[Any]:
    """Two tasks, each of which holds one lock and waits for that of the other."""
    have = [asyncio.Event(), asyncio.Event()]

    async def both(lock: DistributedLock, at: int) -> None:
        async with take(lock, f"n{at}"):
            have[at].set()
            await have[1 - at].wait()
            async with lock.lock(f"n{1 - at}", **LONG):
                pass

    return await asyncio.gather(both(first, 0), both(second, 1), return_exceptions=True)


@pytest.mark.parametrize("reacquire", ["refuse", "extend"])
async def test_one_of_two_claims_that_wait_for_each_other_ends_and_leaves_no_marker(
    locks: Locks, reacquire: str
) -> None:
    a, b = (locks(reacquire=reacquire, **SOON) for _ in range(2))
    ends = await cycle_of(a, b, lambda lock, name: lock.lock(name))
    assert sorted(map(str, map(type, ends))) == sorted(map(str, (type(None), DeadlockError)))
    await until(lambda: not locks.page.leases and not locks.page.waiters)


async def test_locks_that_are_taken_together_keep_each_other_while_they_wait(locks: Locks) -> None:
    a, b = locks(**SOON), locks(**SOON)
    ends = await cycle_of(a, b, lambda lock, name: lock.locks([name, f"{name} beside"]))
    assert sum(isinstance(end, DeadlockError) for end in ends) == 1


@pytest.mark.parametrize("reacquire", ["refuse", "extend"])
async def test_linear_code_says_with_under_what_it_keeps_and_without_it_no_deadlock_is_found(
    locks: Locks, reacquire: str
) -> None:
    a, b = (locks(reacquire=reacquire, **SOON) for _ in range(2))
    leases = {"x": await a.hold("x"), "y": await b.hold("y")}

    async def unrelated() -> None:
        # For all that is known, other code releases what this instance holds.
        await (await a.hold("y", **LONG)).release()

    beside = asyncio.ensure_future(unrelated())

    async def linear(lock: DistributedLock, own: str, other: str) -> None:
        try:
            await (await lock.hold(other, under=leases[own], **LONG)).release()
        finally:
            await leases[own].release()

    ends = await asyncio.gather(linear(a, "x", "y"), linear(b, "y", "x"), return_exceptions=True)
    assert sum(isinstance(end, DeadlockError) for end in ends) == 1
    assert ends.count(None) == 1
    await beside


async def test_a_claim_that_waits_without_a_lock_around_it_neither_looks_nor_writes_a_marker(locks: Locks) -> None:
    holder = await locks().hold("n")
    lock, network = locks.behind_network(**SOON)
    waiting = asyncio.ensure_future(lock.hold("n", **LONG))
    await until(lambda: locks.waiters == 1)
    await asyncio.sleep(0.3)  # three times as long as another claim waits before it looks
    assert network.counts["inspect"].calls == 0 and locks.holders == 1
    await holder.release()
    await waiting


async def test_a_store_that_rejects_markers_for_good_switches_the_search_off(
    locks: Locks, caplog: pytest.LogCaptureFixture
) -> None:
    # The claim itself asks again after 200 s, and writes its marker after 1.5 s: the store rejects it by then.
    lock, network = locks.behind_network(waiter_ttl_seconds=600, deadlock_after_seconds=3)
    holder = await locks().hold("n")

    async def rejects(forward: Forward) -> Any:
        raise StoreError("NOPERM", retryable=False)

    async def wait() -> None:
        async with lock.lock("around"):
            async with lock.lock("n", **LONG):
                pass

    with caplog.at_level(logging.WARNING, "holdfast"):
        waiting = asyncio.ensure_future(wait())
        await until(lambda: locks.waiters == 1)
        network.always("acquire", rejects)
        await until(lambda: "does not look for deadlocks" in caplog.text)
        network.heal()
    assert not waiting.done(), "the claim itself goes on waiting"
    await holder.release()
    await waiting
    assert locks.store.inspect(InspectQuery()).leases == []
