"""Events: which come when, and what a listener can and cannot do."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, AsyncIterator, Callable, Iterator, List

import pytest

from holdfast import (
    ClosedError,
    DistributedLock,
    InvalidArgumentError,
    LeaderElection,
    LeaseLostError,
    OnceOnly,
    RateLimiter,
    RateLimitedError,
    ReadWriteLock,
    Semaphore,
    StoreError,
    SyncDistributedLock,
    UnsupportedError,
    events,
)
from holdfast.core.driver import InspectQuery, LeaseRef
from holdfast.core.events import EVENTS
from holdfast.drivers.memory import memory_driver
from support.locks import Locks, until


@pytest.fixture
async def locks() -> AsyncIterator[Locks]:
    locks = Locks()
    yield locks
    await locks.close()


@pytest.fixture
def process_listeners() -> Iterator[Callable[..., None]]:
    """Listens to all instances of the process until the end of the test."""
    stops: List[Callable[[], None]] = []
    yield lambda event, listener: stops.append(events.on(event, listener))
    for stop in stops:
        stop()


def story_of(lock: Any, *names: str) -> List[str]:
    """Gets the name of each event, as it comes."""
    story: List[str] = []
    for name in names or EVENTS:
        lock.on(name, lambda _, name=name: story.append(name))
    return story


async def test_the_life_of_a_claim_is_reported_to_the_instance_and_to_the_process(locks, process_listeners):
    lock = locks()
    emitted: List[events.Event] = []
    published: List[events.Event] = []
    for name in EVENTS:
        lock.on(name, emitted.append)
        process_listeners(name, published.append)
    async with lock.lock("a"):
        assert await lock.acquire("a"), "a re-entry, which has no event"
        other = asyncio.create_task(locks_waiting(locks, "a"))
        await until(lambda: locks.waiters == 1)
    await other
    kinds = [type(event) for event in emitted]
    assert kinds == [events.Requested, events.Acquired, events.Running, events.Released]
    requested, acquired, running, released = emitted
    assert (requested.lock_name, requested.holder_id, requested.waits) == ("a", lock.holder_id, False)
    assert {event.claim_id for event in emitted} == {requested.claim_id}
    assert acquired.fencing_token == running.fencing_token == released.fencing_token > 0
    assert 0 <= acquired.waited_ms and 0 <= released.held_ms < 60_000
    assert [event for event in published if event.claim_id == requested.claim_id] == emitted
    others = [type(event) for event in published if event.claim_id != requested.claim_id]
    assert others == [events.Requested, events.Waiting, events.Acquired, events.Running, events.Released]


async def locks_waiting(locks: Locks, name: str) -> None:
    async with locks().lock(name, blocking=True):
        pass


async def test_a_claim_ends_with_exactly_one_of_acquired_refused_and_acquire_failed(locks):
    lock = locks()
    story = story_of(lock, "requested", "waiting", "acquired", "refused", "acquire_failed")
    failures: List[BaseException] = []
    lock.on("acquire_failed", lambda event: failures.append(event.error))

    def told() -> List[str]:
        said = story[:]
        story.clear()
        return said

    lease = await lock.hold("a")
    assert told() == ["requested", "acquired"]
    assert not await lock.acquire("a")
    assert told() == ["requested", "refused"]
    assert not await lock.acquire("a", blocking_timeout_seconds=0.05)
    assert told() == ["requested", "waiting", "refused"]
    cancelled = asyncio.create_task(lock.acquire("a", blocking=True))
    await until(lambda: locks.waiters == 1)
    cancelled.cancel()
    await asyncio.wait({cancelled})
    assert told() == ["requested", "waiting", "acquire_failed"]
    closed = asyncio.create_task(lock.acquire("a", blocking=True))
    await until(lambda: locks.waiters == 1)
    await lock.close()
    with pytest.raises(ClosedError):
        await closed
    assert told() == ["requested", "waiting", "acquire_failed"]
    assert [type(error) for error in failures] == [asyncio.CancelledError, ClosedError]
    assert not lease.held


async def test_a_claim_that_is_cancelled_in_the_turn_of_its_grant_is_released_once(locks):
    lock = locks()
    story = story_of(lock, "requested", "acquired", "acquire_failed", "released", "lost")
    await lock.hold("open")
    story.clear()
    for turns in range(12):
        task = asyncio.create_task(lock.acquire("a"))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled() and task.result():
            await task.result().lease.release()
        await until(lambda: locks.holders == 1)
        assert story in ([], ["requested", "acquire_failed"], ["requested", "acquired", "released"])
        story.clear()


async def test_waiting_and_refused_name_the_holder_and_the_place_in_the_queue(locks):
    lock = locks(holder_id="me")
    seen: List[Any] = []
    lock.on("refused", lambda event: seen.append((event.holder.holder_id, event.holder.metadata)))
    lock.on("waiting", lambda event: seen.append((event.holder.fencing_token, event.ahead)))
    lease = await lock.hold("a", metadata={"job": "nightly"})
    await lock.acquire("a")
    waiters = [asyncio.create_task(lock.acquire("a", blocking=True)) for _ in range(2)]
    await until(lambda: locks.waiters == 2)
    assert seen == [("me", {"job": "nightly"}), (lease.fencing_token, 0), (lease.fencing_token, 1)]
    for waiter in waiters:
        waiter.cancel()
    await asyncio.wait(waiters)


@pytest.mark.parametrize("reason", ["expired", "missing", "force-released", "failed"])
async def test_lost_says_why_before_the_block_is_cancelled(locks, reason):
    lock, network = locks.behind_network()
    lost: List[events.Lost] = []
    lock.on("lost", lost.append)
    with pytest.raises(LeaseLostError) as thrown:
        async with lock.lock("a", timeout_seconds=0.2, max_hold_seconds=0.05 if reason == "expired" else None) as lease:
            if reason == "missing":
                claim_id = locks.page.leases[0].claim_id
                await memory_driver(locks.store).release([LeaseRef("a", claim_id)])
            elif reason == "force-released":
                await lock.force_release("a", by="me")
            elif reason == "failed":
                network.always("renew", refusing)
            await lease.lost
            assert [event.reason for event in lost] == [reason]
            await asyncio.sleep(60)
    assert [(event.reason, event.error) for event in lost] == [(reason, thrown.value)]
    assert lost[0].lock_name == "a" and lost[0].fencing_token == lease.fencing_token and lost[0].held_ms >= 0


async def refusing(*_: Any) -> Any:
    raise UnsupportedError("a driver that cannot renew")


async def test_renewals_forced_releases_and_what_the_store_does_not_answer_are_reported(locks):
    lock, network = locks.behind_network()
    story = story_of(lock)
    took: List[float] = []
    lock.on("renewed", lambda event: took.append(event.took_ms))
    lease = await lock.hold("a", timeout_seconds=0.2)
    await until(lambda: took)
    assert took[0] >= 0
    await lease.release()
    held = await locks().hold("b", timeout_seconds=60)
    story.clear()
    assert await lock.force_release("b", by="me")
    assert story == ["requested", "acquired", "force_released", "released"]
    assert not await held.extend(60)
    lease = await lock.hold("c", timeout_seconds=60)
    story.clear()

    async def cut(*_: Any) -> Any:
        raise StoreError("cut", retryable=False)

    network.always("release", cut)
    network.always("acquire", cut)
    with pytest.raises(StoreError):
        await lease.release()
    with pytest.raises(StoreError):
        await lock.acquire("d")
    await until(lambda: story.count("release_failed") >= 2)
    assert story[:1] == ["release_failed"] and "store_failed" in story and story.count("acquire_failed") == 1


async def test_a_store_that_cannot_be_opened_is_reported(tmp_path):
    (tmp_path / "locks.db").write_bytes(b"no database at all" * 100)
    async with DistributedLock(f"sqlite:{tmp_path}/locks.db") as lock:
        seen: List[events.StoreFailed] = []
        lock.on("store_failed", seen.append)
        with pytest.raises(StoreError):
            await lock.acquire("a")
    assert [event.operation for event in seen] == ["open"]


async def test_a_rate_limiter_reports_each_decision_once(process_listeners, lock_name):
    seen: List[events.Consumed] = []
    process_listeners("consumed", seen.append)
    async with RateLimiter("memory:", limits="1/minute") as limiter:
        await limiter.consume(lock_name)
        await limiter.peek(lock_name)
        with pytest.raises(RateLimitedError):
            await limiter.check(lock_name)
        with pytest.raises(RateLimitedError):
            await limiter.wait(lock_name, blocking_timeout_seconds=0.01)
    assert seen == [events.Consumed(lock_name, 1, allowed, False) for allowed in (True, False, False)]


async def test_a_fallback_decides_and_the_store_that_failed_is_reported(lock_name):
    async with RateLimiter("memory:", limits="1/minute") as fallback:
        async with RateLimiter("redis://127.0.0.1:1", limits="1/minute", fallback=fallback) as limiter:
            story = story_of(limiter)
            assert story_of(fallback) == []
            seen: List[events.Consumed] = []
            limiter.on("consumed", seen.append)
            await limiter.consume(lock_name)
    assert story == ["store_failed", "consumed"]
    assert [(event.allowed, event.fallback) for event in seen] == [(True, True)]


@pytest.mark.parametrize("make", [DistributedLock, ReadWriteLock, Semaphore, OnceOnly, SyncDistributedLock])
def test_every_primitive_has_on_and_refuses_what_cannot_be_called(make):
    options = {"limit": 1} if make is Semaphore else {}
    lock = make("memory:", **options)
    stop = lock.on("lost", print)
    stop()
    stop()
    with pytest.raises(InvalidArgumentError, match="event must be one of requested, .*lost.* but is \"lots\""):
        lock.on("lots", print)
    with pytest.raises(InvalidArgumentError, match="listener must be a function"):
        lock.on("lost", None)

    async def listener(_: object) -> None:
        raise AssertionError("called")

    with pytest.raises(InvalidArgumentError, match="not a coroutine function"):
        lock.on("lost", listener)


class Unprintable(BaseException):
    def __str__(self) -> str:
        raise RuntimeError("unprintable")

    __repr__ = __str__


@pytest.mark.parametrize("thrown", [ValueError("wrong"), Unprintable(), asyncio.CancelledError(), GeneratorExit()])
async def test_failure_86_a_listener_that_raises_costs_a_warning_and_nothing_else(locks, caplog, thrown):
    lock = locks()
    calls: List[object] = []

    def listener(_: object) -> None:
        raise thrown

    for name in ("requested", "acquired", "running", "released"):
        lock.on(name, listener)
        lock.on(name, calls.append)
    async with lock.lock("a") as lease:
        assert lease.held
    assert locks.holders == 0 and len(calls) == 4
    warnings = [record for record in caplog.records if record.name == "holdfast"]
    assert [(each.levelno, each.getMessage()) for each in warnings] == [
        (logging.WARNING, f'a listener of "{name}" raised an error')
        for name in ("requested", "acquired", "running", "released")
    ]


@contextmanager
def raising(at: str) -> Iterator[None]:
    if at == "begin":
        raise ValueError("begin")
    yield
    raise ValueError("end")


@pytest.mark.parametrize("at", ["begin", "end"])
@pytest.mark.parametrize("named", [False, True])
async def test_what_running_puts_around_a_block_cannot_keep_it_from_releasing(locks, at, named):
    lock = locks()
    lock.on("running", lambda event: event.around.append(raising(at)))
    with pytest.raises(ValueError, match=at):
        async with lock.named("a") if named else lock.lock("a"):
            pass
    assert locks.holders == 0


async def test_a_listener_that_returns_a_coroutine_is_warned_of(locks, caplog):
    lock = locks()

    async def late() -> None:
        raise AssertionError("run")

    lock.on("acquired", lambda _: late())
    assert await lock.acquire("a")
    assert "returned a coroutine" in caplog.text


def test_a_listener_that_exits_ends_the_event_loop_and_leaves_no_lease_half_ended(lock_name):
    ended: List[bool] = []

    async def main() -> None:
        lock = DistributedLock("memory:")

        def stop(_: object) -> None:
            raise SystemExit(3)

        lock.on("acquired", stop)
        lease = await lock.hold(lock_name)
        ended.append(lease.held)
        await asyncio.sleep(60)

    with pytest.raises(SystemExit):
        asyncio.run(main())
    assert ended == [True]


async def test_failure_47_a_listener_and_what_it_starts_run_outside_of_every_block(locks):
    lock = locks()
    results: List[Any] = []
    tasks: List[asyncio.Task[Any]] = []

    async def take() -> None:
        results.append(bool(await lock.acquire("a")))

    lock.on("requested", lambda event: event.lock_name == "b" and tasks.append(asyncio.create_task(take())))
    async with lock.lock("a"):
        async with lock.lock("b"):
            await asyncio.wait(tasks)
            assert await lock.acquire("a"), "the block itself still enters its lock again"
    assert results == [False]


async def test_requested_is_called_in_the_context_of_the_caller(locks):
    caller: ContextVar[str] = ContextVar("caller", default="none")
    lock = locks()
    seen: List[str] = []
    lock.on("requested", lambda _: seen.append(caller.get()))
    for name in ("first", "second"):
        caller.set(name)
        async with lock.lock(name):
            pass
    assert seen == ["first", "second"]


async def test_a_listener_that_removes_itself_and_registers_again_is_called_once_for_one_event(locks):
    lock = locks()
    calls: List[int] = []

    def again(_: object) -> None:
        calls.append(1)
        nonlocal stop
        stop()
        stop = lock.on("acquired", again)

    def never(_: object) -> None:
        raise AssertionError("it was removed during the event")

    stop = lock.on("acquired", again)
    lock.on("acquired", lambda _: stop_never())
    stop_never = lock.on("acquired", never)
    await lock.acquire("a")
    await lock.acquire("b")
    assert len(calls) == 2


def test_listeners_of_the_synchronous_api_run_in_the_thread_of_its_event_loop(tmp_path: Path):
    caller: ContextVar[str] = ContextVar("caller", default="none")
    seen: List[Any] = []
    with SyncDistributedLock(f"sqlite:{tmp_path}/locks.db") as lock:
        for name in ("requested", "acquired", "running", "released"):
            lock.on(name, lambda event: seen.append((type(event), threading.current_thread().name, caller.get())))
        caller.set("main")
        with lock.lock("a"):
            pass
    # `running` is the exception: it belongs to the code that has the block.
    assert [kind for kind, _, _ in seen] == [events.Requested, events.Acquired, events.Running, events.Released]
    assert [thread for _, thread, _ in seen] == ["holdfast", "holdfast", threading.current_thread().name, "holdfast"]
    assert seen[0][2] == seen[2][2] == "main"


def test_leases_of_an_event_loop_that_is_gone_are_reported_as_lost(lock_name):
    seen: List[Any] = []
    lock = DistributedLock("memory:")
    lock.on("lost", lambda event: seen.append((event.lock_name, event.reason)))

    async def use(name: str) -> None:
        await lock.hold(name)

    asyncio.run(use(f"{lock_name} a"))
    asyncio.run(use(f"{lock_name} b"))
    assert seen == [(f"{lock_name} a", "session")]


async def test_a_subscription_that_breaks_is_reported_to_the_instances_that_wait(locks):
    lock, network = locks.behind_network()
    idle, story = locks(), story_of(lock, "listen_failed")
    unheard = story_of(idle, "listen_failed")
    held = await lock.hold("a")
    waiter = asyncio.create_task(lock.hold("a", blocking=True))
    await until(lambda: network._subscriptions)
    network.break_subscription()
    assert story == ["listen_failed"] and unheard == []
    await held.release()
    await waiter


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only POSIX has fork")
async def test_a_forked_process_reports_nothing_of_the_leases_of_its_parent(locks):
    lock = locks()
    await lock.hold("a")
    story = story_of(lock)
    child = os.fork()
    if child == 0:
        os._exit(0 if story == [] else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


async def test_an_election_reports_its_terms(lock_name):
    async with LeaderElection("memory:", name=lock_name) as election:
        story = story_of(election)
        async with await election.campaign():
            pass
    assert story == ["requested", "acquired", "released"]


async def test_failure_86_on_demoted_that_raises_anything_does_not_stop_the_resignation(lock_name, caplog):
    def on_demoted(*_: object) -> None:
        raise Unprintable()

    async with LeaderElection("memory:", name=lock_name) as election:
        term = await election.campaign(on_demoted=on_demoted)
        assert await term.resign() and await election.leader() is None
    assert [record.getMessage() for record in caplog.records] == [
        f'on_demoted of the election "{lock_name}" raised an error'
    ]


async def test_ping_reports_nothing(locks):
    lock = locks()
    story = story_of(lock)
    await lock.ping()
    assert story == [] and (await memory_driver(locks.store).inspect(InspectQuery())).leases == []
