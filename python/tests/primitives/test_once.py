"""Once-only jobs on the memory driver."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any, AsyncIterator, Callable, Dict, List, Optional

import pytest

from conformance.faulty_network import FaultyNetwork, hold_reply
from holdfast import (
    ClosedError,
    DeadlockError,
    DistributedLock,
    InvalidArgumentError,
    Lease,
    LeaseLostError,
    NotAcquiredError,
    OnceOnly,
    ResultNotKeptError,
    StoreError,
    TickResult,
    UnsupportedError,
)
from holdfast._once.results import metadata_from, names_of, result_from
from holdfast._once.tick import TickNames, tick_names, tick_of
from holdfast._protocol import read
from holdfast.core.clock import Clock
from holdfast.core.driver import InspectQuery, LeaseRef
from holdfast.drivers.memory import MemoryStore, memory_driver
from support.polling import settled, waiters

Jobs = Callable[..., OnceOnly]
HOUR = 3_600


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def jobs_on(store: MemoryStore) -> AsyncIterator[Jobs]:
    """Instances on one store, each with its own driver, as in separate processes."""
    opened: List[OnceOnly] = []

    def create(driver: Any = None, **options: Any) -> OnceOnly:
        jobs = OnceOnly(memory_driver(store) if driver is None else driver, **options)
        opened.append(jobs)
        return jobs

    yield create
    for jobs in opened:
        await jobs.close()


class StoreClock(Clock):
    """The clock of a store, which a test sets forward."""

    ahead = 0.0

    def wall(self) -> float:
        return super().wall() + self.ahead


class Gate:
    """A job that says when it runs, and ends when it is opened."""

    def __init__(self, result: Any = None) -> None:
        self.begun = asyncio.Event()
        self.go = asyncio.Event()
        self.result = result
        self.run: Optional[Lease] = None

    async def __call__(self, run: Lease) -> Any:
        self.run = run
        self.begun.set()
        await self.go.wait()
        return self.result


async def leases(store: MemoryStore) -> List[str]:
    return [each.lock_name for each in (await memory_driver(store).inspect(InspectQuery())).leases]


async def waiting(store: MemoryStore, count: int) -> None:
    await waiters(memory_driver(store), count)


def test_names_results_and_ticks_match_the_test_vectors() -> None:
    vectors = json.loads(read("vectors/once-only.json"))
    for each in vectors["names"]:
        names = names_of(each["key"])
        assert (names.run, names.done) == (each["run"], each["done"])
    for each in vectors["results"]:
        assert metadata_from(each["result"]) == each["metadata"]
        assert result_from("key", each["metadata"]) == each["result"]
    for each in vectors["schedules"]:
        expected = TickNames(each["key"], each["run"], each["done"])
        assert tick_names(each["name"], each["tick"], each["overlap"]) == expected
    for each in vectors["ticks"]:
        assert tick_of(None, each["nowMs"], each["everyMs"]) == each["tick"]


async def test_a_job_runs_once_per_key_and_later_callers_get_the_same_result(jobs_on: Jobs) -> None:
    a, b = jobs_on(), jobs_on()
    runs = 0

    async def work(_: Lease) -> Any:
        nonlocal runs
        runs += 1
        return {"invoice": 7, "run": runs}

    assert await a.once("invoice:7", work, for_seconds=HOUR) == {"invoice": 7, "run": 1}
    assert await b.once("invoice:7", work, for_seconds=HOUR) == {"invoice": 7, "run": 1}
    assert await b.once("invoice:8", work, for_seconds=HOUR) == {"invoice": 7, "run": 2}


async def test_calls_during_the_run_wait_for_it_and_get_its_result(jobs_on: Jobs, store: MemoryStore) -> None:
    a, b = jobs_on(), jobs_on()
    job = Gate("from a")
    second_runs: List[int] = []
    first = asyncio.create_task(a.once("key", job, for_seconds=HOUR))
    await job.begun.wait()
    others = [
        asyncio.create_task(each.once("key", lambda run: second_runs.append(run.fencing_token), for_seconds=HOUR))
        for each in (a, b, b)
    ]
    await waiting(store, 3)
    with pytest.raises(NotAcquiredError):
        await b.once("key", lambda _: "not this", for_seconds=HOUR, blocking_timeout_seconds=0)
    job.go.set()
    assert await asyncio.gather(first, *others) == ["from a"] * 4
    assert second_runs == []
    assert await leases(store) == ["once:key:done"]


async def test_a_kept_result_reaches_all_waiting_calls_of_an_instance_at_once_each_with_its_own_copy(
    jobs_on: Jobs, store: MemoryStore
) -> None:
    network = FaultyNetwork(memory_driver(store))
    a, b = jobs_on(), jobs_on(network.driver)
    job = Gate({"paid": 1})
    run = asyncio.create_task(a.once("key", job, for_seconds=HOUR))
    await job.begun.wait()
    calls = [asyncio.create_task(b.once("key", lambda _: {"paid": 2}, for_seconds=HOUR)) for _ in range(200)]
    await waiting(store, 200)
    # Without the requests with which they begin to listen.
    asked = await settled(lambda: network.counts["acquire"].requests)
    job.go.set()
    results = await asyncio.gather(run, *calls)
    assert all(each == {"paid": 1} for each in results)
    assert len({id(each) for each in results}) == 201
    assert network.counts["acquire"].requests - asked < 10


async def test_a_job_that_fails_raises_its_own_error_keeps_nothing_and_can_be_repeated_at_once(
    jobs_on: Jobs, store: MemoryStore
) -> None:
    def work(_: Lease) -> None:
        raise OSError("no paper")

    with pytest.raises(OSError, match="no paper"):
        await jobs_on().once("key", work, for_seconds=HOUR)
    assert await leases(store) == []
    printed = await jobs_on().once("key", lambda _: "printed", for_seconds=HOUR, blocking_timeout_seconds=0)
    assert printed == "printed"


async def test_a_result_is_kept_for_its_period_from_the_end_of_the_run_also_after_its_instance_is_closed(
    jobs_on: Jobs,
) -> None:
    clock = StoreClock()
    store = MemoryStore(clock)
    first, second = jobs_on(memory_driver(store)), jobs_on(memory_driver(store))

    def work(_: Lease) -> int:
        clock.ahead += 10
        return 1

    assert await first.once("key", work, for_seconds=HOUR) == 1
    await first.close()
    clock.ahead += HOUR - 60
    assert await second.once("key", lambda _: 2, for_seconds=HOUR) == 1
    clock.ahead += 60
    assert await second.once("key", lambda _: 2, for_seconds=HOUR) == 2


async def test_none_is_a_result(jobs_on: Jobs) -> None:
    jobs = jobs_on()
    runs: List[int] = []
    for _ in range(2):
        assert await jobs.once("none", lambda _: runs.append(1), for_seconds=HOUR) is None
    assert len(runs) == 1


class UnreadableDict(Dict[str, int]):
    def items(self) -> Any:
        raise ValueError("no total")


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise ValueError("not printable")


class UnreadableList(List[int]):
    def __iter__(self) -> Any:
        raise UnprintableError


@pytest.mark.parametrize(
    "result, why",
    [
        (object(), "a value that JSON keeps unchanged"),
        ("x" * 20_000, "at most 16368 bytes as JSON"),
        ("\ud800", "a value that JSON keeps unchanged"),
        ({1: "a"}, "property name"),
        (2**60, "a value that JSON keeps unchanged"),
        (UnreadableDict(total=1), "no total"),
        (UnreadableList([1]), "UnprintableError"),
    ],
    ids=[
        *("no JSON", "too large", "a lone surrogate", "a key that is no text", "a large number"),
        *("reading it raises", "reading it raises what cannot be printed"),
    ],
)
async def test_a_result_that_cannot_be_kept_is_an_error_for_every_caller_and_the_job_does_not_run_again(
    jobs_on: Jobs, result: Any, why: str
) -> None:
    runs = 0

    def work(_: Lease) -> Any:
        nonlocal runs
        runs += 1
        return result

    a, b = jobs_on(), jobs_on()
    for jobs in (a, b, a):
        with pytest.raises(ResultNotKeptError, match=why) as raised:
            await jobs.once("key", work, for_seconds=HOUR)
        assert raised.value.code == "RESULT_NOT_KEPT"
    assert runs == 1


async def test_forget_lets_a_job_run_again(jobs_on: Jobs) -> None:
    a, b = jobs_on(), jobs_on()
    assert not await a.forget("key")
    await a.once("key", lambda _: 1, for_seconds=HOUR)
    assert await b.forget("key")
    assert await a.once("key", lambda _: 2, for_seconds=HOUR) == 2


async def test_a_run_whose_lease_is_lost_is_cancelled_and_keeps_nothing_and_its_successor_has_a_higher_token(
    jobs_on: Jobs, store: MemoryStore
) -> None:
    network = FaultyNetwork(memory_driver(store))
    cut_off = jobs_on(network.driver, call_timeout_seconds=0.05)
    job = Gate("stale")
    stale = asyncio.create_task(cut_off.once("key", job, for_seconds=HOUR, timeout_seconds=0.3))
    await job.begun.wait()
    network.cut()
    tokens: List[int] = []

    def take_over(run: Lease) -> str:
        tokens.append(run.fencing_token)
        return "taken over"

    taken = await jobs_on().once("key", take_over, for_seconds=HOUR)
    with pytest.raises(LeaseLostError):
        await stale
    network.heal()
    assert taken == "taken over"
    assert await cut_off.once("key", lambda _: "again", for_seconds=HOUR) == "taken over"
    assert job.run is not None and tokens[0] > job.run.fencing_token


async def test_a_job_that_ignores_the_loss_of_its_lease_keeps_nothing(jobs_on: Jobs, store: MemoryStore) -> None:
    network = FaultyNetwork(memory_driver(store))
    cut_off = jobs_on(network.driver, call_timeout_seconds=0.05)

    async def stubborn(run: Lease) -> str:
        network.cut()
        try:
            await asyncio.sleep(50)
        except asyncio.CancelledError:
            network.heal()
        return "stale"

    with pytest.raises(LeaseLostError):
        await cut_off.once("key", stubborn, for_seconds=HOUR, timeout_seconds=0.2)
    assert await jobs_on().once("key", lambda _: "fresh", for_seconds=HOUR) == "fresh"


async def test_a_run_whose_lease_was_ended_by_force_raises_and_keeps_nothing(
    jobs_on: Jobs, store: MemoryStore
) -> None:
    a, b = jobs_on(), jobs_on()
    job, other = Gate("forced"), Gate("other")
    forced = asyncio.create_task(a.once("key", job, for_seconds=HOUR))
    await job.begun.wait()
    # Between two heartbeats: the run does not know of it when it ends.
    driver = memory_driver(store)
    (record,) = (await driver.inspect(InspectQuery(lock_name="once:key:run"))).leases
    assert await driver.release([LeaseRef(record.lock_name, record.claim_id, record.fencing_token)]) == [True]
    following = asyncio.create_task(b.once("key", other, for_seconds=HOUR))
    await other.begun.wait()
    job.go.set()
    with pytest.raises(LeaseLostError):
        await forced
    other.go.set()
    assert await following == "other"
    assert await a.once("key", lambda _: "again", for_seconds=HOUR) == "other"


async def test_a_call_does_not_get_a_result_that_was_looked_up_before_it_began(
    jobs_on: Jobs, store: MemoryStore
) -> None:
    network = FaultyNetwork(memory_driver(store))
    mine, others = jobs_on(network.driver), jobs_on()
    assert await mine.once("key", lambda _: "old", for_seconds=HOUR) == "old"
    late = hold_reply()
    network.once("inspect", late.fault)
    early = asyncio.create_task(mine.once("key", lambda _: "not this", for_seconds=HOUR))
    await late.reached.wait()
    # The period of the old result is over, and the job runs again.
    assert await others.forget("key")
    job = Gate("new")
    run = asyncio.create_task(others.once("key", job, for_seconds=HOUR))
    await job.begun.wait()
    later = asyncio.create_task(mine.once("key", lambda _: "not this", for_seconds=HOUR))
    await waiting(store, 1)
    late.resume()
    assert await early == "old"
    job.go.set()
    assert await asyncio.gather(run, later) == ["new", "new"]


async def test_after_a_short_outage_at_the_end_of_the_run_the_result_is_kept(
    jobs_on: Jobs, store: MemoryStore
) -> None:
    network = FaultyNetwork(memory_driver(store))
    jobs = jobs_on(network.driver, call_timeout_seconds=0.05)

    def work(_: Lease) -> str:
        network.cut()
        asyncio.get_running_loop().call_later(0.15, network.heal)
        return "kept"

    assert await jobs.once("key", work, for_seconds=HOUR) == "kept"
    assert await jobs_on().once("key", lambda _: "again", for_seconds=HOUR) == "kept"


async def test_in_a_long_outage_the_error_says_that_the_job_ran_and_that_the_rest_is_unknown(
    jobs_on: Jobs, store: MemoryStore
) -> None:
    network = FaultyNetwork(memory_driver(store))
    jobs = jobs_on(network.driver, call_timeout_seconds=0.05)
    with pytest.raises(StoreError, match='the job "key" ran, but whether its result is kept is not known'):
        await jobs.once("key", lambda _: network.cut(), for_seconds=HOUR, timeout_seconds=0.3)
    network.heal()


async def test_a_cancelled_wait_leaves_nothing_behind_and_others_go_on(jobs_on: Jobs, store: MemoryStore) -> None:
    a, b = jobs_on(), jobs_on()
    job = Gate("done")
    first = asyncio.create_task(a.once("key", job, for_seconds=HOUR))
    await job.begun.wait()
    given_up = asyncio.create_task(b.once("key", lambda _: 1, for_seconds=HOUR))
    patient = asyncio.create_task(b.once("key", lambda _: 2, for_seconds=HOUR))
    await waiting(store, 2)
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    await waiting(store, 1)
    closed = jobs_on()
    ended = asyncio.create_task(closed.once("key", lambda _: 1, for_seconds=HOUR))
    await waiting(store, 2)
    await closed.close()
    with pytest.raises(ClosedError):
        await ended
    job.go.set()
    assert await asyncio.gather(first, patient) == ["done", "done"]


async def test_a_cancelled_job_is_cancelled_keeps_nothing_and_is_released_when_it_has_stopped(
    jobs_on: Jobs, store: MemoryStore
) -> None:
    begun, cleaning, cleaned = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work(_: Lease) -> str:
        begun.set()
        try:
            await asyncio.sleep(50)
        finally:
            cleaning.set()
            await cleaned.wait()
        return "never"

    call = asyncio.create_task(jobs_on().once("key", work, for_seconds=HOUR))
    await begun.wait()
    call.cancel()
    await cleaning.wait()
    assert await leases(store) == ["once:key:run"]
    cleaned.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await leases(store) == []
    again = await jobs_on().once("key", lambda _: "again", for_seconds=HOUR, blocking_timeout_seconds=0)
    assert again == "again"


async def test_a_cancellation_after_the_job_has_ended_keeps_the_result_first(
    jobs_on: Jobs, store: MemoryStore
) -> None:
    network = FaultyNetwork(memory_driver(store))
    jobs = jobs_on(network.driver)
    confirming = hold_reply()

    def work(_: Lease) -> str:
        network.once("renew", confirming.fault)
        return "done"

    call = asyncio.create_task(jobs.once("key", work, for_seconds=HOUR))
    await confirming.reached.wait()
    call.cancel()
    await asyncio.sleep(0)
    assert not call.done()
    confirming.resume()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await leases(store) == ["once:key:done"]
    assert await jobs_on().once("key", lambda _: "again", for_seconds=HOUR) == "done"


async def test_a_job_that_asks_for_its_own_result_gets_a_deadlock_error_at_once(jobs_on: Jobs) -> None:
    jobs = jobs_on()

    def nested(key: str) -> Callable[[Lease], Any]:
        return lambda _: jobs.once(key, lambda _: "inside", for_seconds=HOUR)

    with pytest.raises(DeadlockError, match="a run has no result before it has ended"):
        await jobs.once("key", nested("key"), for_seconds=HOUR)
    assert await jobs.once("key", nested("another"), for_seconds=HOUR) == "inside"


async def test_closing_during_a_run_keeps_nothing(jobs_on: Jobs) -> None:
    jobs = jobs_on()
    job = Gate()
    run = asyncio.create_task(jobs.once("key", job, for_seconds=HOUR))
    await job.begun.wait()
    await jobs.close()
    with pytest.raises(LeaseLostError):
        await run
    assert await jobs_on().once("key", lambda _: 2, for_seconds=HOUR) == 2


async def test_closing_waits_for_a_run_that_ends_in_time_and_its_result_is_kept(jobs_on: Jobs) -> None:
    jobs = jobs_on()
    job = Gate("done")
    run = asyncio.create_task(jobs.once("key", job, for_seconds=HOUR))
    await job.begun.wait()
    closing = asyncio.create_task(jobs.close(drain_seconds=30))
    await asyncio.sleep(0)
    job.go.set()
    assert await run == "done"
    await closing
    assert await jobs_on().once("key", lambda _: 2, for_seconds=HOUR) == "done"


async def test_a_run_does_not_start_if_its_lease_ended_while_it_looked_for_a_result(
    jobs_on: Jobs, store: MemoryStore
) -> None:
    network = FaultyNetwork(memory_driver(store))
    jobs = jobs_on(network.driver)
    looking = hold_reply()

    async def passes(forward: Callable[[], Any]) -> Any:
        return await forward()

    network.once("inspect", passes)  # the look before the claim
    network.once("inspect", looking.fault)
    job = Gate()
    run = asyncio.create_task(jobs.once("key", job, for_seconds=HOUR))
    await looking.reached.wait()
    await jobs.close(deadline_seconds=0.1)
    looking.resume()
    with pytest.raises(LeaseLostError):
        await run
    assert not job.begun.is_set()


async def test_bad_input_is_refused_before_anything_is_sent(jobs_on: Jobs) -> None:
    jobs = jobs_on()
    wrong: List[Any] = ["", "x" * 246, "a\0", 7, None, "🐢" * 123]
    for key in wrong:
        with pytest.raises(InvalidArgumentError) as refused:
            await jobs.once(key, lambda _: 1, for_seconds=HOUR)
        assert refused.value.argument == "key"
    for options in ({"for_seconds": 31_536_001}, {"for_seconds": 0}, {"for_seconds": None}):
        with pytest.raises(InvalidArgumentError) as refused:
            await jobs.once("key", lambda _: 1, **options)  # type: ignore[arg-type]
        assert refused.value.argument == "for_seconds"
    with pytest.raises(InvalidArgumentError, match="job must be"):
        await jobs.once("key", 1, for_seconds=HOUR)  # type: ignore[arg-type]
    for name, options in (("", {}), ("x" * 181, {}), ("a", {"every_seconds": 0}), ("a", {"for_seconds": -1})):
        with pytest.raises(InvalidArgumentError):
            jobs.every_tick(name, lambda _: 1, **options)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="every_seconds"):
        await jobs.every_tick("name", lambda _: 1)()
    with pytest.raises(InvalidArgumentError, match="tick must be"):
        await jobs.every_tick("name", lambda _: 1)("x" * 65)
    assert jobs._instance._holder is None
    assert await jobs.every_tick("x" * 180, lambda _: 1)("x" * 64) == TickResult(True, 1)
    assert await jobs.once("x" * 245, lambda _: 1, for_seconds=31_536_000) == 1


async def test_a_driver_that_cannot_keep_results_is_refused_with_the_reason_before_the_job_runs(
    jobs_on: Jobs, store: MemoryStore
) -> None:
    ran: List[int] = []
    session, bare, short = memory_driver(store), memory_driver(store), memory_driver(store)
    session.capabilities = replace(session.capabilities, expiry="session")
    bare.capabilities = replace(bare.capabilities, metadata=False)
    short.longest_ttl_ms = 60_000
    with pytest.raises(UnsupportedError, match="could not outlive the process"):
        await jobs_on(session).once("key", lambda _: ran.append(1), for_seconds=HOUR)
    with pytest.raises(UnsupportedError, match="keeps no metadata"):
        await jobs_on(bare).once("key", lambda _: ran.append(1), for_seconds=HOUR)
    with pytest.raises(InvalidArgumentError, match="for_seconds must be at most 60"):
        await jobs_on(short).once("key", lambda _: ran.append(1), for_seconds=HOUR)
    assert ran == []


async def test_a_run_does_not_exclude_a_lock_with_the_name_of_its_key(jobs_on: Jobs, store: MemoryStore) -> None:
    async with DistributedLock(memory_driver(store)) as lock:
        assert await lock.acquire("key")
        assert await jobs_on().once("key", lambda _: 1, for_seconds=HOUR) == 1


# Schedules

NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


class WallClock(Clock):
    """The system's clock, with another wall time."""

    def __init__(self, at: datetime) -> None:
        self.at = at.timestamp()

    def wall(self) -> float:
        return self.at


async def test_each_tick_runs_once_over_all_instances(jobs_on: Jobs) -> None:
    ran: List[int] = []
    elsewhere = NOON.astimezone(timezone(timedelta(hours=5)))
    ticks = [NOON, elsewhere, NOON + timedelta(milliseconds=1), "daily:7", "daily:7"]
    for index, at in enumerate(ticks):
        await jobs_on().every_tick("report", lambda _, index=index: ran.append(index))(at)  # type: ignore[misc]
    assert ran == [0, 2, 3]
    with pytest.raises(InvalidArgumentError, match="with a time zone"):
        await jobs_on().every_tick("report", lambda _: None)(datetime(2026, 3, 1))


@pytest.mark.parametrize(
    "every_seconds, at_ms, expected",
    [
        # Slightly early, in time, slightly late, very late; then the next tick.
        (60, [-2, 0, 3, 20_000, 59_000, 60_000], [0, 5]),
        # Minute 30 of every hour works like minute 0.
        (3_600, [1_799_998, 1_800_000, 1_810_000, 5_400_000], [0, 3]),
        (0.25, [0, 60, 240, 260], [0, 2]),
    ],
)
async def test_without_a_tick_the_current_time_is_rounded_to_the_period(
    jobs_on: Jobs, every_seconds: float, at_ms: List[int], expected: List[int]
) -> None:
    ran: List[int] = []
    for index, ms in enumerate(at_ms):
        jobs = jobs_on(clock=WallClock(NOON + timedelta(milliseconds=ms)))
        job = lambda _, index=index: ran.append(index)  # noqa: E731
        tick = jobs.every_tick("report", job, every_seconds=every_seconds)  # type: ignore[misc]
        await tick()
    assert ran == expected


async def test_rule_2_a_run_that_has_extended_its_lease_is_not_shortened_while_its_result_is_kept(
    jobs_on: Jobs, store: MemoryStore
) -> None:
    network = FaultyNetwork(memory_driver(store))
    confirming = hold_reply()

    async def work(run: Lease) -> None:
        assert await run.extend(600)
        network.once("renew", confirming.fault)

    call = asyncio.create_task(jobs_on(network.driver).once("key", work, for_seconds=HOUR))
    await confirming.reached.wait()
    [lease] = (await memory_driver(store).inspect(InspectQuery(lock_name="once:key:run"))).leases
    confirming.resume()
    await call
    assert lease.expires_at_ms is not None and lease.expires_at_ms - lease.acquired_at_ms > 590_000
