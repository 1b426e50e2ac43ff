"""Fork, and event loops that end while locks are held."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest


def run(program: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", textwrap.dedent(program), *arguments],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    assert "never retrieved" not in done.stderr and "was never awaited" not in done.stderr, done.stderr
    return done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_process_neither_holds_nor_releases_the_leases_of_its_parent(tmp_path: Path) -> None:
    out = run(
        """
        import asyncio, os, sys
        from holdfast import DistributedLock

        url = "sqlite:" + sys.argv[1]

        async def main():
            lock = DistributedLock(url)
            lease = await lock.hold("a")
            child = os.fork()
            if child == 0:
                print("child", lease.held, lease.lost.is_set(), flush=True)
                os._exit(0)
            os.waitpid(child, 0)
            print("parent", lease.held, flush=True)
            other = DistributedLock(url)
            print("free", bool(await other.acquire("a")), await lock.release("a"), flush=True)
            await other.close()
            await lock.close()

        asyncio.run(main())
        """,
        str(tmp_path / "locks.db"),
    )
    assert out.split("\n")[:3] == ["child False True", "parent True", "free False True"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_process_that_ends_the_copy_of_the_event_loop_withdraws_no_claim_of_its_parent(tmp_path: Path) -> None:
    """`sys.exit` in a task makes `asyncio.run` cancel all tasks, also in the child. Copies of the parent's waiters are
    among them, and one of those may have been granted the lock in the meantime."""
    out = run(
        """
        import asyncio, os, sys
        from holdfast import DistributedLock

        url = "sqlite:" + sys.argv[1]

        async def main():
            async with DistributedLock(url) as lock, DistributedLock(url) as other:
                lease = await lock.hold("a")
                waiting = asyncio.ensure_future(other.acquire("a", blocking_timeout_seconds=30))
                while not (await lock.inspect("a")).waiters:
                    await asyncio.sleep(0.01)
                child = os.fork()
                if child == 0:
                    sys.exit(0)
                print("child", os.waitpid(child, 0)[1], flush=True)
                print("waiters", len((await lock.inspect("a")).waiters), flush=True)
                await lease.release()
                print("granted", bool(await waiting), flush=True)

        asyncio.run(main())
        """,
        str(tmp_path / "locks.db"),
    )
    assert out.split("\n")[:3] == ["child 0", "waiters 1", "granted True"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_process_leaves_a_block_in_which_another_thread_of_its_parent_runs(tmp_path: Path) -> None:
    out = run(
        """
        import contextvars, os, sys, threading
        from holdfast import LeaseLostError, SyncDistributedLock

        lock = SyncDistributedLock("sqlite:" + sys.argv[1])
        entered, left = threading.Event(), threading.Event()

        def inner():
            with lock.lock("a"):
                entered.set()
                left.wait()

        child = None
        try:
            with lock.lock("a"):
                threading.Thread(target=contextvars.copy_context().run, args=(inner,), daemon=True).start()
                entered.wait()
                child = os.fork()
                if child != 0:
                    os.waitpid(child, 0)
                    left.set()
        except LeaseLostError:
            print("lost in the", "child" if child == 0 else "parent", flush=True)
        """,
        str(tmp_path / "locks.db"),
    )
    assert out.strip() == "lost in the child"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_process_can_use_the_instance_of_its_parent(tmp_path: Path) -> None:
    out = run(
        """
        import asyncio, os, sys
        from holdfast import DistributedLock

        lock = DistributedLock("sqlite:" + sys.argv[1])

        async def take(name):
            async with lock.lock(name) as lease:
                return lease.fencing_token

        parent = asyncio.run(take("a"))
        child = os.fork()
        if child == 0:
            print(asyncio.run(take("a")) > parent, flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        """,
        str(tmp_path / "locks.db"),
    )
    assert out.strip() == "True"


def test_a_program_that_ends_while_it_holds_a_lock_ends_without_noise() -> None:
    run(
        """
        import asyncio
        from holdfast import DistributedLock

        async def main():
            lock = DistributedLock("memory:")
            await lock.hold("a")
            waiting = asyncio.ensure_future(lock.acquire("a", blocking=True))
            await asyncio.sleep(0.01)

        asyncio.run(main())
        """
    )


def test_a_block_is_released_when_the_program_is_interrupted(tmp_path: Path) -> None:
    out = run(
        """
        import asyncio, os, signal, sys
        from holdfast import DistributedLock

        url = "sqlite:" + sys.argv[1]

        async def main():
            async with DistributedLock(url) as lock, lock.lock("a"):
                os.kill(os.getpid(), signal.SIGINT)
                await asyncio.sleep(30)

        async def free():
            async with DistributedLock(url) as lock:
                print(bool(await lock.acquire("a")))

        try:
            asyncio.run(main())
        except KeyboardInterrupt:
            asyncio.run(free())
        """,
        str(tmp_path / "locks.db"),
    )
    assert out.strip() == "True"


def test_a_lease_of_a_closed_event_loop_is_not_held() -> None:
    from holdfast import DistributedLock

    lock = DistributedLock("memory:closed-loop")

    async def hold() -> object:
        return await lock.hold("a", timeout_seconds=60)

    async def use() -> None:
        async with lock.lock("b"):
            pass

    lease = asyncio.run(hold())
    asyncio.run(use())
    assert not lease.held  # type: ignore[attr-defined]


def test_event_loops_one_after_the_other_leave_no_driver_behind(tmp_path: Path) -> None:
    """A program that calls `asyncio.run` for each job and never closes its instance: each event loop opens connections,
    which only the garbage collector can close after its end."""
    import gc

    from holdfast import DistributedLock
    from holdfast.drivers.sqlite import SqliteDriver

    lock = DistributedLock(f"sqlite:{tmp_path}/locks.db")

    async def use() -> None:
        async with lock.lock("a"):
            pass

    def drivers() -> int:
        gc.collect()
        return sum(isinstance(each, SqliteDriver) for each in gc.get_objects())

    before = drivers()
    for _ in range(4):
        asyncio.run(use())
    deadline = time.monotonic() + 15
    # The last one is in use. Others may still be in the hands of their threads.
    while drivers() - before > 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)
