"""The two clocks of a client."""

from __future__ import annotations

import asyncio
import time

import pytest
from conformance.faulty_network import FaultyNetwork
from holdfast import Clock, DistributedLock, LeaseLostError
from holdfast.core.clock import Random
from holdfast.core.scheduler import Entry, Scheduler
from holdfast.drivers.memory import memory_driver


class TwoClocks(Clock):
    """Clocks that a test can step."""

    def __init__(self) -> None:
        self.monotonic_ahead = 0.0
        self.wall_ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.monotonic_ahead

    def wall(self) -> float:
        return time.time() + self.wall_ahead


async def test_failure_3_a_suspended_machine_has_lost_its_lease_in_the_first_statement() -> None:
    clock = TwoClocks()
    lock = DistributedLock(memory_driver(), clock=clock)
    lease = await lock.hold("a")
    assert lease.held
    clock.wall_ahead = 60  # the monotonic clock stood still
    assert not lease.held
    assert lease.lost.is_set() and lease.remaining_seconds == 0
    await lock.close()


async def test_failure_3_the_loss_is_reported_within_a_second_although_no_timer_was_due() -> None:
    clock = TwoClocks()
    lock = DistributedLock(memory_driver(), clock=clock)
    with pytest.raises(LeaseLostError):
        async with lock.lock("a"):
            clock.wall_ahead = 60
            await asyncio.sleep(30)
    await lock.close()


async def test_a_wall_clock_that_steps_back_ends_nothing() -> None:
    clock = TwoClocks()
    network = FaultyNetwork(memory_driver())
    lock = DistributedLock(network.driver, clock=clock)
    async with lock.lock("a", timeout_seconds=600) as lease:
        clock.wall_ahead = -3_600
        for beat in range(3):
            clock.monotonic_ahead += 240
            # The timer of the scheduler looks at the clocks once a second.
            while network.counts["renew"].answered == beat:
                await asyncio.sleep(0.01)
        assert lease.held
    await lock.close()


async def test_rule_2_a_stall_longer_than_the_ttl_is_noticed_before_any_timer_runs() -> None:
    """FAILURES 2: a renewal that is due must not hide the loss."""
    lock = DistributedLock(memory_driver())
    lease = await lock.hold("a", timeout_seconds=0.3)
    time.sleep(0.31)
    assert not lease.held
    assert await lock.acquire("a")
    await lock.close()


async def test_rule_2_a_due_renewal_after_a_stall_does_not_renew_its_way_past_the_loss() -> None:
    lock = DistributedLock(memory_driver())
    lease = await lock.hold("a", timeout_seconds=0.3)
    time.sleep(0.31)
    await asyncio.sleep(0.01)  # the timer of the heartbeat runs first
    assert lease.lost.is_set()
    await lock.close()


class Task:
    def __init__(self, log: "list[str]", name: str) -> None:
        self.schedule: "Entry | None" = None
        self._log = log
        self._name = name

    def due(self) -> None:
        self._log.append(self._name)


async def test_the_scheduler_runs_tasks_in_their_order_with_one_timer() -> None:
    log: "list[str]" = []
    scheduler = Scheduler(Clock(), Random())
    a, b, c = (Task(log, name) for name in "abc")
    now_ms = Clock().now().monotonic_ms
    scheduler.set(c, now_ms + 15)
    scheduler.set(a, now_ms + 500)
    scheduler.set(b, now_ms + 10)
    scheduler.set(a, now_ms + 5)
    while len(log) < 3:
        await asyncio.sleep(0.005)
    assert log == ["a", "b", "c"]
    for task in (a, b, c):
        scheduler.clear(task)
    scheduler.close()


async def test_the_scheduler_keeps_no_entries_of_cleared_tasks() -> None:
    scheduler = Scheduler(Clock(), Random())
    at_ms = Clock().now().monotonic_ms + 60_000
    kept = Task([], "kept")
    scheduler.set(kept, at_ms)
    for _ in range(10_000):
        task = Task([], "released")
        scheduler.set(task, at_ms)
        scheduler.clear(task)
    assert len(scheduler._heap) < 200
    scheduler.close()
