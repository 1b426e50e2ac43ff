"""Interrupts of the calling thread at every step, and what happens to the thread of the event loop."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Callable, Iterator, List, Optional, Tuple, Type

import pytest

from holdfast import LeaseLostError, SyncDistributedLock, SyncLeaderElection, SyncLease, SyncOnceOnly
from holdfast.sync import lease as lease_module
from holdfast.sync import lock as lock_module
from holdfast.sync import portal as portal_module
from holdfast.sync.portal import portal

FILES = {lease_module.__file__, lock_module.__file__, portal_module.__file__}
UNPROTECTED = {"__exit__", "release", "run_surely"}
"""Nothing can be done about an interrupt at the very beginning of these: no `try` has begun."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path}/locks.db"


@pytest.fixture
def lock(url: str) -> Iterator[SyncDistributedLock]:
    with SyncDistributedLock(url) as opened:
        opened.ping()
        yield opened


@pytest.fixture
def other(url: str) -> Iterator[SyncDistributedLock]:
    with SyncDistributedLock(url) as opened:
        opened.ping()
        yield opened


def until(condition: Callable[[], bool], seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.005)


class Alarm(Exception):
    """What a signal handler raises: not only Ctrl-C interrupts."""


def interrupted_at(
    step: int, use: Callable[[], object], interrupt: Type[BaseException]
) -> Optional[Tuple[str, int]]:
    """Raises the interrupt at the given line of the synchronous API that `use` reaches. None if it ends before."""
    count = 0
    where: Optional[Tuple[str, int]] = None
    begun: List[Any] = []

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal count, where
        if frame.f_code.co_filename not in FILES:
            return None
        if event == "line":
            is_first = frame not in begun
            begun.append(frame)
            if not (is_first and frame.f_code.co_name in UNPROTECTED):
                count += 1
                if count == step:
                    where = (frame.f_code.co_name, frame.f_lineno)
                    sys.settrace(None)
                    raise interrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        use()
    except interrupt:
        pass
    finally:
        sys.settrace(before)
    return where


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, Alarm])
@pytest.mark.parametrize("kind", ["lock", "hold", "acquire"])
def test_rule_6_an_interrupt_at_any_line_leaves_nothing_behind(
    lock: SyncDistributedLock, other: SyncDistributedLock, kind: str, interrupt: Type[BaseException]
) -> None:
    """Otherwise the heartbeat would renew the lease as long as the process lives."""

    step = 0

    def use() -> None:
        # Each time another name: what was given up may still be on its way when the next attempt begins.
        name = f"job:{step}"
        if kind == "lock":
            with lock.lock(name):
                pass
        elif kind == "hold":
            lock.hold(name).release()
        else:
            result = lock.acquire(name)
            assert result.lease is not None
            result.lease.release()

    holder = lock._inner._instance.current
    assert holder is not None
    where: Optional[Tuple[str, int]] = ("", 0)
    while where is not None:
        step += 1
        where = interrupted_at(step, use, interrupt)
        deadline = time.monotonic() + 10
        while holder.leases or holder._pending or holder._in_flight.count or holder._store.background.count:
            assert time.monotonic() < deadline, f"something is left behind by an interrupt at {where}"
            time.sleep(0.002)
        assert not other.is_locked(f"job:{step}")
    assert step > 20


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_rule_6_an_interrupt_at_any_line_of_a_hand_over_leaves_no_lock_without_its_text(
    lock: SyncDistributedLock, other: SyncDistributedLock
) -> None:
    holder = lock._inner._instance.current
    assert holder is not None
    texts: List[str] = []
    where: Optional[Tuple[str, int]] = ("", 0)
    step = 0
    while where is not None:
        step += 1
        lease = lock.hold(f"job:{step}")
        where = interrupted_at(step, lambda: texts.append(lease.serialize()), KeyboardInterrupt)
        if not texts:
            lease.release()
            until(lambda: not (holder._in_flight.count or holder._store.background.count))
            assert not other.is_locked(f"job:{step}"), f"locked without a holder after an interrupt at {where}"
    assert step > 10 and other.restore(texts.pop()).release()


def test_rule_6_an_interrupt_between_taking_a_job_and_starting_it_leaves_nothing_behind(
    url: str, other: SyncDistributedLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coroutine waits for the end of a job that was never started."""

    class Interrupted(portal_module.CallBack):
        def serve(self) -> None:
            self._calls.get()
            raise KeyboardInterrupt

    with SyncOnceOnly(url) as jobs:
        jobs.ping()
        monkeypatch.setattr(portal_module, "CallBack", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            jobs.once("payment", lambda run: 1, for_seconds=60)
        assert not other.is_locked("once:payment:run")
        monkeypatch.undo()
        assert jobs.once("payment", lambda run: 2, for_seconds=60) == 2


def test_a_block_in_a_generator_that_the_event_loops_thread_collects_is_released(
    lock: SyncDistributedLock, other: SyncDistributedLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)

    def work() -> Iterator[int]:
        with lock.lock("job"):
            yield 1

    class Cycle:
        pass

    cycle: Any = Cycle()
    cycle.itself, cycle.work = cycle, work()
    next(cycle.work)
    gc.disable()
    try:
        del cycle
        portal().call(gc.collect)
    finally:
        gc.enable()
    until(lambda: not other.is_locked("job"))


def test_an_interrupt_at_the_very_beginning_or_end_of_a_named_locks_block_releases_it(
    lock: SyncDistributedLock, other: SyncDistributedLock
) -> None:
    """The object is shared, and outlives the block. It must not keep what only the `with` can leave."""
    named = lock.named("job")
    for name in ("__call__", "__enter__"):

        def interrupt(frame: Any, event: str, arg: Any) -> None:
            if frame.f_code.co_name == name and frame.f_globals["__name__"] == "holdfast.sync.named":
                sys.settrace(None)
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            if name == "__enter__":
                sys.settrace(interrupt)
            with named:
                sys.settrace(interrupt)
        gc.collect()
        until(lambda: not other.is_locked("job"))
        with ExitStack() as stack:
            assert stack.enter_context(named).held
        assert not other.is_locked("job")


def test_a_generator_that_was_not_finished_does_not_keep_the_process_from_ending(url: str) -> None:
    script = """
import sys
from holdfast import SyncDistributedLock
lock = SyncDistributedLock(sys.argv[1])
def work():
    with lock.lock("job"):
        yield 1
left = work()
next(left)
print("over", flush=True)
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script, url], capture_output=True, text=True, env=env, timeout=60)
    assert (done.returncode, done.stdout) == (0, "over\n")


def test_sys_exit_in_a_callback_does_not_end_the_heartbeats(url: str, lock: SyncDistributedLock) -> None:
    held = lock.hold("job", timeout_seconds=0.5)
    with SyncLeaderElection(url, name="boss") as election:
        term = election.campaign(on_demoted=lambda term, reason: sys.exit(3))
        assert term.resign()
        assert election.leader() is None
        with pytest.raises(SystemExit):
            election.run(lambda term: 1 / 0, on_error=lambda error, term: sys.exit(4))
    time.sleep(1)
    assert held.held


def test_a_callback_can_ask_the_term_that_ended(url: str) -> None:
    asked: List[Any] = []
    with SyncLeaderElection(url, name="boss") as election:
        term = election.campaign(
            on_demoted=lambda term, reason: asked.append((term.held, term.lost.is_set(), term.remaining_seconds))
        )
        term.resign()
    assert asked == [(False, False, 0.0)]


def test_failure_49_a_thread_learns_that_it_has_to_stop_while_it_still_holds_the_lock(
    lock: SyncDistributedLock,
) -> None:
    entered = threading.Event()
    seen: List[Any] = []

    def work() -> None:
        try:
            with lock.lock("job") as lease:
                entered.set()
                until(lease.lost.is_set)
                seen.append((lease.held, lease.lost.wait(0)))
        except LeaseLostError as error:
            seen.append(error.code)

    thread = threading.Thread(target=work)
    thread.start()
    entered.wait(15)
    lock.close(deadline_seconds=25)
    thread.join(15)
    assert seen == [(True, True), "LEASE_LOST"]


def test_blocks_that_end_in_another_order_than_they_began(lock: SyncDistributedLock) -> None:
    first, second = lock.lock("first"), lock.lock("second")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    # The second block still runs here: its name is entered again.
    with lock.lock("second") as inner:
        assert isinstance(inner, SyncLease)
    second.__exit__(None, None, None)
    assert lock.acquire("second")
    assert not lock.acquire("second")


def test_rule_6_an_interrupt_at_the_very_beginning_of_the_exit_releases_when_the_block_is_collected(
    lock: SyncDistributedLock, other: SyncDistributedLock
) -> None:
    def trace(frame: Any, _event: str, _: Any) -> Any:
        if frame.f_code.co_name == "__exit__" and frame.f_code.co_filename == lease_module.__file__:
            raise KeyboardInterrupt

    def use() -> None:
        before = sys.gettrace()
        try:
            with lock.lock("job"):
                sys.settrace(trace)
        finally:
            sys.settrace(before)

    with pytest.raises(KeyboardInterrupt):
        use()
    gc.collect()
    until(lambda: not other.is_locked("job"))
