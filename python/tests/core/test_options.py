"""The options of calls and constructors: their names, and what a number of seconds is."""

from __future__ import annotations

import inspect
import warnings
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Callable, List

import pytest

import holdfast
from holdfast import (
    DistributedLock,
    InvalidArgumentError,
    LeaderElection,
    LocalShare,
    OnceOnly,
    Rate,
    RateLimiter,
    ReadWriteLock,
    Semaphore,
    SyncDistributedLock,
    SyncReadWriteLock,
    SyncSemaphore,
)
from holdfast.core.arguments import ttl_ms_from


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


async def test_an_unknown_option_is_our_error_and_names_the_nearest_one_in_every_call() -> None:
    lock, rw, semaphore = DistributedLock("memory:"), ReadWriteLock("memory:"), Semaphore("memory:", limit=2)
    calls: List[Any] = [lock.acquire, lock.hold, lock.lock, rw.acquire_read, rw.acquire_write, rw.hold_read]
    calls += [rw.hold_write, rw.read, rw.write, semaphore.acquire, semaphore.hold, semaphore.permits]
    sync, sync_rw, sync_semaphore = (
        SyncDistributedLock("memory:"),
        SyncReadWriteLock("memory:"),
        SyncSemaphore("memory:", limit=2),
    )
    calls += [sync.acquire, sync.hold, sync.lock, sync_rw.acquire_read, sync_rw.read, sync_semaphore.permits]
    warnings.simplefilter("ignore", RuntimeWarning)  # The synchronous calls block this event loop.
    for call in calls:
        with pytest.raises(InvalidArgumentError, match='no option "timeout_second": did you mean timeout_seconds') as e:
            await _awaited(call("x", timeout_second="secret"))
        assert "secret" not in str(e.value) and e.value.value == "timeout_second"
    for name, meant in (("ttl", "timeout_seconds"), ("blocking_timeout", "blocking_timeout_seconds")):
        with pytest.raises(InvalidArgumentError, match=f"did you mean {meant}"):
            lock.locks(["a", "b"], **{name: 1})  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match=r"no option \"zzz\" \(known: "):
        lock.lock("x", zzz=1)  # type: ignore[call-arg]
    with pytest.raises(InvalidArgumentError, match='defaults has no option "ttl"'):
        DistributedLock("memory:", defaults={"ttl": 1})  # type: ignore[typeddict-item]


def test_an_unknown_option_of_a_constructor_is_our_error() -> None:
    made: List[Callable[..., object]] = [DistributedLock, ReadWriteLock, OnceOnly, SyncDistributedLock]
    for make in made:
        with pytest.raises(InvalidArgumentError, match="did you mean holder_id"):
            make("memory:", holderid="a")
    with pytest.raises(InvalidArgumentError, match=r"pass it to each call, or defaults=\{'timeout_seconds'"):
        DistributedLock("memory:", timeout_seconds=60)  # type: ignore[call-arg]
    with pytest.raises(InvalidArgumentError, match="no option"):
        RateLimiter("memory:", limits="1/second", holder_id="a")  # type: ignore[call-arg]


async def test_a_timedelta_is_accepted_wherever_seconds_are() -> None:
    minute, soon = timedelta(minutes=1), timedelta(milliseconds=100)
    async with DistributedLock("memory:", call_timeout_seconds=minute, waiter_ttl_seconds=minute) as lock:
        block = lock.lock("x", timeout_seconds=minute, blocking_timeout_seconds=soon, max_hold_seconds=minute)
        async with block as lease:
            assert 50 < lease.remaining_seconds <= 60
            assert await lease.extend(timedelta(hours=1)) and await lock.extend("x", timedelta(hours=1))
            assert 3_500 < lease.remaining_seconds <= 3_600
        await lock.close(drain_seconds=soon, deadline_seconds=minute)
    async with OnceOnly("memory:") as jobs:
        assert await jobs.once("k", lambda run: 1, for_seconds=minute, timeout_seconds=minute) == 1
        jobs.every_tick("t", lambda run: 1, every_seconds=minute, for_seconds=minute)
    async with LeaderElection("memory:", name="e", timeout_seconds=minute) as election:
        assert (await election.campaign(blocking_timeout_seconds=soon, max_term_seconds=minute)).held
    rate, share = Rate(5, minute), LocalShare(2, minute)
    assert (rate.period_seconds, share.for_seconds) == (60.0, 60.0)
    async with RateLimiter("memory:", limits=rate, local_share=share, fallback_seconds=minute) as limiter:
        assert limiter.limits[0].period_seconds == 60
        assert await limiter.wait("k", blocking_timeout_seconds=soon)


@pytest.mark.parametrize(
    "seconds",
    [10**400, -(10**400), float("nan"), float("inf"), True, Decimal(3), Fraction(3), "3", None, timedelta(0), [3]],
    ids=lambda value: str(value)[:10],
)
async def test_what_is_no_number_of_seconds_is_our_error_and_names_the_argument(seconds: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="seconds must be a number of seconds .int or float. from 0.05 to"):
        ttl_ms_from("timeout_seconds", seconds)
    lock = DistributedLock("memory:")
    if seconds is not None:
        with pytest.raises(InvalidArgumentError, match="^timeout_seconds must be"):
            await lock.acquire("x", timeout_seconds=seconds)
    with pytest.raises(InvalidArgumentError, match="^seconds must be"):
        await lock.extend("x", seconds)
    with pytest.raises(InvalidArgumentError, match=r"limits\.period_seconds must be"):
        RateLimiter("memory:", limits=Rate(1, seconds))


async def test_metadata_can_be_any_mapping_also_inside() -> None:
    class Row:
        """Like the rows of many database clients, which are no dict."""

    async with DistributedLock("memory:") as lock:
        inner = MappingProxyType({"b": [MappingProxyType({"c": 1})]})
        async with lock.lock("x", metadata=MappingProxyType({"a": inner})):
            [shown] = (await lock.inspect("x")).leases
            assert shown.metadata == {"a": {"b": [{"c": 1}]}}
        for wrong in (Row(), [("a", 1)], "a", {"a": Row()}, MappingProxyType({1: 2})):
            with pytest.raises(InvalidArgumentError, match="^metadata"):
                lock.lock("x", metadata=wrong)  # type: ignore[arg-type]


def test_none_means_that_an_option_is_not_set() -> None:
    lock = DistributedLock("memory:", defaults={"timeout_seconds": None, "blocking": None})
    lock.lock("x", timeout_seconds=None, blocking=None, metadata=None, heartbeat=None, max_hold_seconds=None)


def test_the_options_are_described_once_where_editors_look() -> None:
    source = inspect.getsource(holdfast.LockOptions)
    for name in holdfast.LockOptions.__annotations__:
        assert f'    {name}: ' in source and source.split(f"    {name}: ")[1].splitlines()[1].lstrip().startswith('"""')
