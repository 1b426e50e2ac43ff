"""Ticks of a schedule on the memory driver: what a tick that does not run returns, and what an outage leaves."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone
from typing import Any, AsyncIterator, Callable, List, Optional

import pytest

from conformance.faulty_network import FaultyNetwork
from holdfast import InvalidArgumentError, Lease, OnceOnly, StoreError, TickResult
from holdfast.drivers.memory import MemoryStore, memory_driver
from support.polling import waiters

Jobs = Callable[..., OnceOnly]
NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
LATER = NOON + timedelta(minutes=1)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def jobs_on(store: MemoryStore) -> AsyncIterator[Jobs]:
    opened: List[OnceOnly] = []

    def create(driver: Any = None, **options: Any) -> OnceOnly:
        jobs = OnceOnly(memory_driver(store) if driver is None else driver, **options)
        opened.append(jobs)
        return jobs

    yield create
    for jobs in opened:
        await jobs.close()


class Gate:
    """A job that says when it runs, and ends when it is opened."""

    def __init__(self, error: Optional[Exception] = None) -> None:
        self.begun = asyncio.Event()
        self.go = asyncio.Event()
        self.error = error

    async def __call__(self, run: Lease) -> str:
        self.begun.set()
        await self.go.wait()
        if self.error is not None:
            raise self.error
        return "done"


def skipped(reason: Any) -> TickResult[Any]:
    return TickResult(False, reason=reason)


async def test_elsewhere_and_a_tick_that_waits_takes_over_if_the_job_fails(jobs_on: Jobs, store: MemoryStore) -> None:
    a, b = jobs_on(), jobs_on()
    job = Gate(OSError("no paper"))
    failing = asyncio.create_task(a.every_tick("report", job)(NOON))
    await job.begun.wait()
    assert await b.every_tick("report", lambda _: 1, blocking_timeout_seconds=0)(NOON) == skipped("elsewhere")
    waiting = asyncio.create_task(b.every_tick("report", lambda _: object)(NOON))
    await waiters(memory_driver(store), 1)
    job.go.set()
    with pytest.raises(OSError, match="no paper"):
        await failing
    # The result need not be JSON.
    assert await waiting == TickResult(True, object)
    assert await a.every_tick("report", lambda _: "again")(NOON) == skipped("elsewhere")


async def test_overlap_is_skipped_unless_it_is_allowed(jobs_on: Jobs) -> None:
    a, b = jobs_on(), jobs_on()
    job = Gate()
    tick = a.every_tick("report", job)
    first = asyncio.create_task(tick(NOON))
    await job.begun.wait()
    assert await tick(LATER) == skipped("overlap")
    assert await b.every_tick("report", lambda _: 1)(LATER) == skipped("overlap")
    assert await b.every_tick("report", lambda _: 1, overlap=True)(LATER) == TickResult(True, 1)
    job.go.set()
    assert await first == TickResult(True, "done")

    async def early(_: Lease) -> Any:
        return await a.every_tick("nested", lambda _: 1)(LATER)

    assert await a.every_tick("nested", early)(NOON) == TickResult(True, skipped("overlap"))


async def test_a_tick_that_waits_ends_with_its_instance_and_later_ones_do_not_run(
    jobs_on: Jobs, store: MemoryStore
) -> None:
    job, closing = Gate(), jobs_on()
    run = asyncio.create_task(jobs_on().every_tick("report", job)(NOON))
    await job.begun.wait()
    tick = closing.every_tick("report", lambda _: 1)
    waiting = asyncio.create_task(tick(NOON))
    await waiters(memory_driver(store), 1)
    await closing.close()
    assert await waiting == skipped("closed")
    assert await tick(LATER) == skipped("closed")
    job.go.set()
    assert await run


@pytest.mark.parametrize("missed, expected", [("last", [7]), ("all", [1, 2, 3, 4, 5, 6, 7]), ("skip", [])])
async def test_failure_85_after_an_outage_at_most_one_late_run_by_default_and_never_two_at_a_time(
    jobs_on: Jobs, store: MemoryStore, missed: Any, expected: List[int]
) -> None:
    networks = [FaultyNetwork(memory_driver(store)) for _ in range(2)]
    ran: List[int] = []
    running = most = 0

    async def work(number: int) -> None:
        nonlocal running, most
        ran.append(number)
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1

    jobs = [jobs_on(each.driver, call_timeout_seconds=0.1) for each in networks]
    # Each call has a job of its own, as with `SyncOnceOnly`: `every_tick` does not tell its job which tick it is.
    options: Any = dict(every_seconds=None, missed=missed, overlap=False, for_seconds=600)
    options.update(timeout_seconds=30, blocking_timeout_seconds=None)
    schedules = [each._ticks("report", **options) for each in jobs]

    async def tick(schedule: Any, number: int) -> Any:
        try:
            return await schedule(NOON + timedelta(minutes=number), lambda _: work(number))
        except StoreError as error:
            return error

    for network in networks:
        network.cut()
    ends = []
    for number in range(1, 8):
        ends += [asyncio.create_task(tick(each, number)) for each in schedules]
        await asyncio.sleep(0.03)
    if missed == "skip":
        assert not any(isinstance(end, TickResult) and end.ran for end in await asyncio.gather(*ends))
    for network in networks:
        network.heal()
    results = await asyncio.gather(*ends)
    assert ran == expected
    assert most <= 1
    assert sum(isinstance(end, TickResult) and end.ran for end in results) == len(expected)


async def test_bad_options_of_a_schedule_are_refused(jobs_on: Jobs) -> None:
    for options in ({"missed": "none"}, {"overlap": 1}):
        with pytest.raises(InvalidArgumentError):
            jobs_on().every_tick("report", lambda _: 1, **options)
