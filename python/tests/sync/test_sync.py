"""The synchronous API: the same engine, in an event loop on a daemon thread."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any, Callable, Iterator, List

import pytest

from holdfast import (
    InvalidArgumentError,
    LeaseLostError,
    NotAcquiredError,
    NotHeldError,
    RateLimitedError,
    SyncDistributedLock,
    SyncLeaderElection,
    SyncLease,
    SyncOnceOnly,
    TickResult,
    SyncRateLimiter,
    SyncReadWriteLock,
    SyncSemaphore,
    SyncTerm,
)
from holdfast.sync.portal import portal


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path}/locks.db"


@pytest.fixture
def lock(url: str) -> Iterator[SyncDistributedLock]:
    with SyncDistributedLock(url) as opened:
        yield opened


@pytest.fixture
def other(url: str) -> Iterator[SyncDistributedLock]:
    with SyncDistributedLock(url) as opened:
        yield opened


def until(condition: Callable[[], bool]) -> None:
    """The limit is that of the test."""
    while not condition():
        time.sleep(0.005)


def test_a_block_holds_the_lock_and_releases_it(lock: SyncDistributedLock, other: SyncDistributedLock) -> None:
    with lock.lock("job") as lease:
        assert isinstance(lease, SyncLease)
        assert lease.held and not lease.lost.is_set()
        assert lease.remaining_seconds > 0
        refused = other.acquire("job")
        assert not refused and refused.holder is not None and refused.holder.holder_id == lock.holder_id
        with pytest.raises(NotAcquiredError):
            with other.lock("job"):
                pass
        token = lease.fencing_token
    assert not lease.held
    with pytest.raises(NotHeldError):
        lease.assert_held()
    with other.lock("job") as second:
        assert second.fencing_token > token


def test_acquire_extend_release_and_the_rest(lock: SyncDistributedLock, other: SyncDistributedLock) -> None:
    result = lock.acquire("job", metadata={"why": "test"})
    assert result and result.lease is not None
    assert lock.extend("job", 60) and result.lease.remaining_seconds > 40
    assert other.is_locked("job")
    assert other.inspect("job").leases[0].metadata == {"why": "test"}
    assert lock.release("job") and not lock.release("job")
    with lock.locks(["a", "b"]) as leases:
        assert [lease.lock_name for lease in leases] == ["a", "b"]
        assert not other.acquire("b")
    with other.hold("a"):
        pass
    lock.ping()
    held = lock.hold("c")
    lock.release_all()
    assert not held.held
    with pytest.raises(LeaseLostError):
        with lock.lock("d") as lease:
            assert [each.fencing_token for each in other.force_release("d", by="me")] == [lease.fencing_token]
            assert lease.extend(30) is False
            assert lease.lost.is_set()


def test_threads_of_one_process_exclude_each_other(lock: SyncDistributedLock) -> None:
    inside: List[int] = []
    most: List[int] = []

    def work() -> None:
        for _ in range(5):
            with lock.lock("job", blocking_timeout_seconds=30):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(most) == 20 and max(most) == 1


def test_the_same_name_is_entered_again_inside_its_block(lock: SyncDistributedLock) -> None:
    with lock.lock("job") as outer:
        with lock.lock("job") as inner:
            assert inner.fencing_token == outer.fencing_token
        assert outer.held
    # Not after the block, and not in another thread.
    with lock.lock("job"):
        found: List[bool] = []
        thread = threading.Thread(target=lambda: found.append(bool(lock.acquire("job"))))
        thread.start()
        thread.join(30)
        assert found == [False]


def test_the_heartbeat_renews_while_the_thread_is_blocked(
    lock: SyncDistributedLock, other: SyncDistributedLock
) -> None:
    def expires_at_ms() -> float:
        return other.inspect("job").leases[0].expires_at.timestamp() * 1_000

    with lock.lock("job", timeout_seconds=6) as lease:
        granted_until_ms = expires_at_ms()
        while expires_at_ms() == granted_until_ms:
            time.sleep(0.5)
        assert lease.held
        assert not other.acquire("job")


def test_rule_3_a_lost_lease_is_known_in_the_block_and_raised_at_its_end(
    lock: SyncDistributedLock, other: SyncDistributedLock
) -> None:
    ended = False
    with pytest.raises(LeaseLostError):
        with lock.lock("job", timeout_seconds=0.4, heartbeat=False) as lease:
            assert lease.lost.wait(15)
            assert not lease.held
            with pytest.raises(LeaseLostError):
                lease.assert_held()
            until(lambda: bool(other.acquire("job")))
            ended = True
    assert ended


def test_the_error_of_a_block_is_not_hidden_by_the_loss(lock: SyncDistributedLock) -> None:
    with pytest.raises(KeyError):
        with lock.lock("job", timeout_seconds=0.2, heartbeat=False) as lease:
            assert lease.lost.wait(15)
            raise KeyError("mine")


def test_another_thread_releases_all_and_the_block_loses_its_lease(lock: SyncDistributedLock) -> None:
    with pytest.raises(LeaseLostError):
        with lock.lock("job") as lease:
            thread = threading.Thread(target=lock.release_all)
            thread.start()
            thread.join(30)
            assert not lease.held and lease.lost.is_set()


def test_failure_1_held_is_false_in_the_first_statement_after_a_stall(url: str) -> None:
    """The whole process is stopped, event loop's thread included."""
    script = """
import os, signal, sys, time
from holdfast import SyncDistributedLock
lock = SyncDistributedLock(sys.argv[1])
lease = lock.hold("job", timeout_seconds=1)
print("held", flush=True)
sys.stdin.readline()
print(lease.held, flush=True)
"""
    child = subprocess.Popen(
        [sys.executable, "-c", script, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_env()
    )
    try:
        assert child.stdout is not None and child.stdin is not None
        assert child.stdout.readline() == "held\n"
        os.kill(child.pid, signal.SIGSTOP)
        child.stdin.write("\n")
        child.stdin.flush()
        time.sleep(1.2)
        os.kill(child.pid, signal.SIGCONT)
        assert child.stdout.readline() == "False\n"
    finally:
        child.kill()
        child.wait(10)


def test_an_interrupt_while_it_waits_leaves_nothing_behind(url: str, lock: SyncDistributedLock) -> None:
    script = """
import sys
from holdfast import SyncDistributedLock
lock = SyncDistributedLock(sys.argv[1])
print("up", flush=True)
try:
    with lock.lock("job", blocking_timeout_seconds=60):
        print("granted", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.stdin.readline()
"""
    with lock.hold("job"):
        child = subprocess.Popen(
            [sys.executable, "-c", script, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_env()
        )
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "up\n"
            until(lambda: len(lock.inspect("job").waiters) == 1)
            child.send_signal(signal.SIGINT)
            assert child.stdout.readline() == "interrupted\n"
            # Its place in the queue is gone although the process lives on.
            until(lambda: not lock.inspect("job").waiters)
        finally:
            child.kill()
            child.wait(10)


def test_an_interrupt_in_the_block_releases_the_lock(lock: SyncDistributedLock, other: SyncDistributedLock) -> None:
    with pytest.raises(KeyboardInterrupt):
        with lock.lock("job"):
            raise KeyboardInterrupt
    assert other.acquire("job")


def test_after_a_fork_the_child_holds_nothing_and_can_lock_for_itself(url: str) -> None:
    script = """
import os, sys
from holdfast import SyncDistributedLock
lock = SyncDistributedLock(sys.argv[1])
with lock.lock("job") as lease:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            acquired = [bool(lock.acquire("job")), bool(lock.acquire("other"))]
            told = [lease.held, lease.lost.is_set(), *acquired, lease.release()]
            os.write(writer, repr(told).encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    print(os.read(reader, 1000).decode(), lease.held, flush=True)
"""
    told = subprocess.run(
        [sys.executable, "-c", script, url], capture_output=True, text=True, env=_env(), timeout=60
    )
    assert told.stdout == "[False, True, False, True, False] True\n", told.stderr


def test_an_exit_without_close_does_not_hang(url: str) -> None:
    script = """
import sys
from holdfast import SyncDistributedLock
lock = SyncDistributedLock(sys.argv[1])
lock.hold("job", timeout_seconds=600)
print("over")
"""
    done = subprocess.run([sys.executable, "-c", script, url], capture_output=True, text=True, env=_env(), timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "over\n", "")


def test_it_cannot_be_used_in_its_own_event_loop(lock: SyncDistributedLock) -> None:
    def use() -> str:
        with pytest.raises(RuntimeError, match="its own event loop"):
            lock.acquire("job")
        return "refused"

    assert portal().call(use) == "refused"


async def test_it_warns_where_it_blocks_an_event_loop_and_not_in_its_threads(url: str) -> None:
    with SyncDistributedLock(url) as lock, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # The warning names the line of the caller.
        with lock.lock("job"):
            first = len(caught)
        assert first == 1 and caught[0].filename == __file__ and "asyncio.to_thread" in str(caught[0].message)
        assert lock.acquire("job") and len(caught) > first
        assert await asyncio.to_thread(lock.release, "job")
        warnings.simplefilter("error")
        refused: List[Callable[[], object]] = [lambda: lock.acquire("a"), lambda: lock.hold("a"), lock.ping]
        for call in [*refused, lock.lock("a").__enter__]:
            with pytest.raises(RuntimeWarning, match="runs an event loop"):
                call()
        gc.collect()
        warnings.simplefilter("ignore")
        assert not lock.is_locked("a")


def test_readers_writers_and_permits(url: str) -> None:
    with SyncReadWriteLock(url) as shared, SyncReadWriteLock(url) as others:
        with shared.read("prices"), others.read("prices"):
            assert not others.acquire_write("prices")
        with shared.write("prices") as lease:
            assert lease.held and not others.acquire_read("prices")
        assert shared.hold_read("x").release() and shared.hold_write("x").release()
        assert shared.acquire_read("y") and not others.acquire_write("y")
    with SyncSemaphore(url, limit=2) as exports:
        assert exports.limit == 2
        with exports.permits("exports", permits=2):
            assert not exports.acquire("exports")
        assert exports.acquire("exports") and exports.hold("exports").held


def test_one_leader_at_a_time(url: str) -> None:
    with SyncLeaderElection(url, name="boss") as first, SyncLeaderElection(url, name="boss") as second:
        demoted: List[Any] = []
        with first.campaign(value={"port": 1}, on_demoted=lambda term, reason: demoted.append(term.term)) as term:
            assert term.held and first.term is not None and second.term is None
            leader = second.leader()
            assert leader is not None and leader.value == {"port": 1} and leader.term == term.fencing_token
            assert next(second.observe()) == leader
            with pytest.raises(NotAcquiredError):
                second.campaign(blocking_timeout_seconds=0)
        assert demoted == [term.term] and not term.held
        led: List[int] = []
        main = threading.get_ident()

        def lead(now: SyncTerm) -> None:
            assert threading.get_ident() == main
            led.append(now.fencing_token)
            if len(led) == 2:
                raise KeyError("enough")

        with pytest.raises(KeyError):
            second.run(lead, rest_seconds=0)
        assert len(led) == 2 and led[0] < led[1]
        assert second.leader() is None


def test_a_job_runs_once_in_the_callers_thread(url: str) -> None:
    main = threading.get_ident()
    runs: List[int] = []

    def job(run: SyncLease) -> int:
        assert threading.get_ident() == main
        run.assert_held()
        runs.append(run.fencing_token)
        return 42

    with SyncOnceOnly(url) as first, SyncOnceOnly(url) as second:
        assert first.once("payment:7", job, for_seconds=60) == 42
        assert second.once("payment:7", job, for_seconds=60) == 42
        assert len(runs) == 1
        assert second.forget("payment:7")
        tick = first.every_tick("report", job, for_seconds=60)
        assert tick("monday") == TickResult(True, 42) and tick("monday").reason == "elsewhere"
        assert len(runs) == 2
        with pytest.raises(InvalidArgumentError):
            first.every_tick("report", job, for_seconds=-1)
        with pytest.raises(KeyboardInterrupt):
            first.once("payment:8", _interrupted, for_seconds=60)
        assert second.once("payment:8", job, for_seconds=60) == 42


def _interrupted(_: SyncLease) -> None:
    raise KeyboardInterrupt


def test_one_limit_for_all(url: str) -> None:
    with SyncRateLimiter(url, limits="2/hour") as first, SyncRateLimiter(url, limits="2/hour") as second:
        assert first.consume("user:7") and second.consume("user:7") and not first.consume("user:7")
        with pytest.raises(RateLimitedError):
            second.check("user:7")
        first.reset("user:7")
        assert first.peek("user:7").remaining == 2
        second.block("user:7", 60)
        assert not first.peek("user:7")


def test_a_redis_client_of_either_kind(redis_url: str, lock_name: str) -> None:
    redis = pytest.importorskip("redis")
    client = redis.Redis.from_url(redis_url)
    with SyncDistributedLock(client) as sync, SyncDistributedLock(redis_url) as by_url:
        with sync.lock(lock_name) as lease:
            assert lease.held and not by_url.acquire(lock_name)
            # redis-py's own lock on the same key.
            assert not client.lock(f"lock:{lock_name}", timeout=5, blocking_timeout=0).acquire()
        with client.lock(f"lock:{lock_name}", timeout=5):
            assert not sync.acquire(lock_name)
    client.close()


def _env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
