"""What an argument means does not depend on its type: members of enums are their values."""

from __future__ import annotations

import enum
from typing import Any, List

import pytest

from holdfast import (
    DistributedLock,
    Fence,
    InvalidArgumentError,
    LeaderElection,
    LocalShare,
    OnceOnly,
    Rate,
    RateLimiter,
    ReadWriteLock,
    Semaphore,
    StaleTokenError,
)
from holdfast.core.driver import InspectQuery
from holdfast.drivers.memory import MemoryDriver, MemoryStore, memory_driver


class Key(str, enum.Enum):
    """From Python 3.11 on, a member is formatted as `Key.P`."""

    P = "payment:7"

    def __str__(self) -> str:
        return "Key.P"

    def __format__(self, _: str) -> str:
        return "Key.P"


class Size(enum.IntEnum):
    TWO = 2


class Recorded(MemoryDriver):
    """Keeps the texts and numbers that reach the driver."""

    seen: List[Any]

    async def acquire(self, claims: Any) -> Any:
        for each in claims:
            self.seen += [each.lock_name, each.holder_id, each.limit, each.permits, each.ttl_ms]
        return await super().acquire(claims)

    async def release(self, leases: Any) -> Any:
        self.seen += [each.lock_name for each in leases]
        return await super().release(leases)

    async def inspect(self, query: InspectQuery) -> Any:
        self.seen += [query.lock_name, query.prefix]
        return await super().inspect(query)

    async def consume(self, requests: Any) -> Any:
        for each in requests:
            self.seen += [each.name, each.cost, *(number for limit in each.limits for number in vars(limit).values())]
        return await super().consume(requests)


@pytest.fixture
def driver() -> Recorded:
    made = Recorded(MemoryStore())
    made.seen = []
    return made


def assert_exact(seen: List[Any], *names: str) -> None:
    assert {type(each) for each in seen} <= {str, int, float, type(None)}
    assert "Key.P" not in "".join(each for each in seen if isinstance(each, str))
    for name in names:
        assert name in seen, seen


async def test_failure_84_a_member_of_an_enum_names_the_same_lock_as_its_text(driver: Recorded) -> None:
    async with DistributedLock(driver, holder_id=Key.P) as lock:
        assert lock.holder_id == "payment:7" and type(lock.holder_id) is str
        async with lock.lock(Key.P, timeout_seconds=Size.TWO) as lease:
            assert type(lease.lock_name) is str and lease.lock_name == "payment:7"
            assert await lock.is_locked("payment:7")
            assert await lock.is_locked(Key.P)
            assert (await lock.inspect(Key.P)).lock_name == "payment:7"
            refused = await DistributedLock(driver).acquire(Key.P)
            assert "Key.P" not in (refused.error or "")
        await lock.acquire("payment:7")
        assert await lock.extend(Key.P, Size.TWO)
        assert await lock.release(Key.P)
        async with lock.locks([Key.P, "other"]) as leases:
            assert [type(each.lock_name) for each in leases] == [str, str]
        [ended] = (await lock.acquire("payment:7"),) and await lock.force_release(Key.P, by=Key.P)
        assert type(ended.lock_name) is str
    async with ReadWriteLock(driver) as rw, Semaphore(driver, limit=Size.TWO) as semaphore:
        async with rw.read(Key.P):
            pass
        assert type(semaphore.limit) is int
        async with semaphore.permits("permits", permits=Size.TWO):
            pass
    assert_exact(driver.seen, "payment:7")


async def test_failure_84_a_once_only_key_is_the_same_job_in_every_spelling(driver: Recorded) -> None:
    """`once(Key.P)` would otherwise run a job that another process, or Node, has run."""
    async with OnceOnly(driver) as jobs:
        assert await jobs.once("payment:7", lambda _: "first", for_seconds=60) == "first"
        assert await jobs.once(Key.P, lambda _: "second", for_seconds=60) == "first"
        tick = jobs.every_tick(Key.P, lambda _: "ran", every_seconds=60)
        assert (await tick(Key.P)).result == "ran"
        assert await jobs.forget("payment:7@payment:7")
        assert await jobs.forget(Key.P)
    assert_exact(driver.seen)


async def test_failure_84_an_election_and_a_rate_limit_have_one_name_for_each_text(driver: Recorded) -> None:
    async with LeaderElection(driver, name=Key.P) as election:
        assert type(election.name) is str
        term = await election.campaign(value=1)
        assert type(term.name) is str
        await term.resign()
    limits = [Rate(Size.TWO, 60, Size.TWO)]
    async with RateLimiter(driver, limits=limits) as limiter:
        assert await limiter.consume(Key.P)
        assert await limiter.consume("payment:7", cost=Size.TWO - 1)
        assert not await limiter.consume(Key.P)
        assert not await limiter.peek(Key.P)
        await limiter.block(Key.P, Size.TWO)
        await limiter.reset(Key.P)
        assert await limiter.consume("payment:7", cost=Size.TWO)
    async with RateLimiter(driver, limits=limits, local_share=LocalShare(Size.TWO, Size.TWO)) as shared:
        assert not await shared.consume(Key.P)
    assert_exact(driver.seen, "payment:7")


def test_failure_84_a_fence_has_one_mark_for_each_text() -> None:
    fence = Fence()
    fence.accept("payment:7", 200)
    with pytest.raises(StaleTokenError) as stale:
        fence.accept(Key.P, 100)
    assert type(stale.value.resource) is str
    fence.accept(Key.P, Size.TWO + 300)
    assert fence.largest("payment:7") == 302 and fence.largest(Key.P) == 302
    assert type(fence.largest(Key.P)) is int
    assert fence.reset(Key.P)
    assert len(fence) == 0


@pytest.mark.parametrize("seconds", [10**400, -(10**400), 10**5_000], ids=["large", "small", "no text"])
async def test_a_number_that_no_float_can_hold_is_an_invalid_argument(seconds: int) -> None:
    lock = DistributedLock("memory:")
    with pytest.raises(InvalidArgumentError, match="timeout_seconds") as refused:
        await lock.acquire("x", timeout_seconds=seconds)
    assert len(str(refused.value)) < 200
    with pytest.raises(InvalidArgumentError):
        await lock.acquire("x", blocking_timeout_seconds=seconds)
    with pytest.raises(InvalidArgumentError):
        await lock.acquire("x", metadata={"n": seconds})
    with pytest.raises(InvalidArgumentError):
        RateLimiter("memory:", limits=Rate(1, seconds))
    with pytest.raises(InvalidArgumentError):
        RateLimiter("memory:", limits=Rate(seconds, 1))
    with pytest.raises(InvalidArgumentError):
        RateLimiter("memory:", limits=Rate(1, 1), local_share=LocalShare(1, seconds))
    with pytest.raises(InvalidArgumentError):
        Fence().accept("x", seconds)
