"""`get_distributed_lock` and `get_sync_distributed_lock`."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Iterator, List

import pytest

from holdfast import (
    DistributedLock,
    InvalidArgumentError,
    SyncDistributedLock,
    get_distributed_lock,
    get_sync_distributed_lock,
)
from holdfast import _one_per_process


@pytest.fixture(autouse=True)
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """As in a new process."""
    url = f"sqlite:{tmp_path}/locks.db"
    monkeypatch.setenv("HOLDFAST_URL", url)
    for name, kind, per_loop in (("_of_loops", DistributedLock, True), ("_of_threads", SyncDistributedLock, False)):
        monkeypatch.setattr(_one_per_process, name, _one_per_process._OnePerProcess(kind, per_loop))
    yield url


async def test_there_is_one_lock_until_it_is_closed_on_the_store_of_the_environment(url: str) -> None:
    lock = get_distributed_lock()
    assert get_distributed_lock() is lock and url in repr(lock)
    await lock.close()
    second = get_distributed_lock(holder_id="second")
    assert second is not lock and second.holder_id == "second" and get_distributed_lock() is second
    await second.close()
    # The arguments of the last one.
    assert get_distributed_lock().holder_id == "second"
    await get_distributed_lock().close()


def test_the_lock_of_a_module_is_the_one_of_the_event_loop_that_comes_later() -> None:
    module_lock = get_distributed_lock()

    async def main() -> None:
        assert get_distributed_lock() is module_lock
        async with module_lock.lock("a"):
            # One instance: the name is entered again.
            async with get_distributed_lock().lock("a"):
                pass

    # The first event loop has ended when the second one begins.
    asyncio.run(main())
    asyncio.run(main())
    assert get_distributed_lock() is module_lock
    asyncio.run(module_lock.close())


async def test_event_loops_at_the_same_time_have_a_lock_each_which_exclude_each_other(url: str) -> None:
    module_lock = await asyncio.to_thread(get_distributed_lock)
    async with module_lock.lock("a"):

        async def other() -> bool:
            # The lock is in use in an event loop that has not called the function.
            lock = get_distributed_lock()
            assert lock is not module_lock and lock is get_distributed_lock()
            assert lock.holder_id != module_lock.holder_id
            result = await lock.acquire("a")
            await lock.close()
            return bool(result)

        assert await asyncio.to_thread(asyncio.run, other()) is False
        assert get_distributed_lock() is module_lock
    await module_lock.close()


async def test_other_arguments_than_those_of_the_first_call_are_refused_without_their_values(url: str) -> None:
    first = get_distributed_lock(url, defaults={"timeout_seconds": 5})
    assert get_distributed_lock() is first and get_distributed_lock(url, defaults={"timeout_seconds": 5}) is first
    with pytest.raises(InvalidArgumentError, match="^store, defaults must be left out, or the same") as refused:
        get_distributed_lock("redis://a:s3cret@b")
    assert "s3cret" not in str(refused.value)
    with pytest.raises(InvalidArgumentError, match="reacquire"):
        get_distributed_lock(url, defaults={"timeout_seconds": 5}, reacquire="extend")
    for empty in (None, ""):
        with pytest.raises(InvalidArgumentError, match="store"):
            get_distributed_lock(empty)
    await first.close()


def test_threads_share_one_synchronous_lock() -> None:
    barrier = threading.Barrier(4)

    def get(_: int) -> SyncDistributedLock:
        barrier.wait()
        return get_sync_distributed_lock()

    with ThreadPoolExecutor(4) as pool:
        locks: List[SyncDistributedLock] = list(pool.map(get, range(4)))
    assert len(set(map(id, locks))) == 1
    with locks[0].lock("a"), get_sync_distributed_lock().lock("a"):
        pass
    locks[0].close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_uses_both_and_holds_nothing() -> None:
    lock = get_sync_distributed_lock()
    own = get_distributed_lock()
    with lock.lock("a"):
        # Another thread is in the function, and does not exist in the child.
        held, over = threading.Event(), threading.Event()

        def inside() -> None:
            with _one_per_process._of_threads._mutex, _one_per_process._of_loops._mutex:
                held.set()
                over.wait()

        thread = threading.Thread(target=inside)
        thread.start()
        held.wait()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                in_child = get_sync_distributed_lock()
                refused = not in_child.acquire("a") and bool(in_child.acquire("b"))
                refused_async = asyncio.run(refuses())
                code = 0 if refused and refused_async and str(os.getpid()) in in_child.holder_id else 2
            finally:
                os._exit(code)
        over.set()
        thread.join()
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
    assert get_sync_distributed_lock() is lock and get_distributed_lock() is own
    lock.close()


async def refuses() -> bool:
    lock = get_distributed_lock()
    try:
        return not await lock.acquire("a") and str(os.getpid()) in lock.holder_id
    finally:
        await lock.close()
