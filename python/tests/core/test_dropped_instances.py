"""Instances that are dropped without `close`, and leases that outlive their event loop."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
import warnings
from pathlib import Path
from typing import Any, Callable

import asyncpg
import pytest
import redis

from holdfast import DistributedLock, LeaseLostError, LeaderElection, SyncDistributedLock, SyncSemaphore
from support.names import unique


def connections_at(url: str) -> Callable[[], int]:
    """How many connections of clients the store has: those of this test, with its name."""
    if url.startswith("redis"):
        client = redis.Redis.from_url(url)
        return lambda: len(client.client_list())
    name = url.rpartition("=")[2]

    def count() -> int:
        async def ask() -> int:
            admin = await asyncpg.connect(url.partition("?")[0].replace("postgres+advisory", "postgres"))
            try:
                text = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1"
                return int(await admin.fetchval(text, name))
            finally:
                await admin.close()

        return asyncio.run(ask())

    return count


@pytest.fixture(params=["redis", "postgres", "postgres+advisory"])
def url(request: Any, own_redis: Any) -> str:
    if request.param == "redis":
        return str(own_redis().url)
    found = str(request.getfixturevalue("postgres_url"))
    return f"{found.replace('postgres://', request.param + '://')}?application_name={unique('dropped')}"


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < deadline, "waited 15 s"
        # As a program does now and then. What an instance refers to is garbage only after the instance was collected.
        gc.collect()
        time.sleep(0.02)


async def use_and_drop(url: str) -> None:
    lock = DistributedLock(url)
    async with lock.lock(unique("dropped")):
        pass


def test_an_instance_that_is_dropped_warns_and_closes_its_connections(url: str) -> None:
    count = connections_at(url)
    before = count()

    async def drop() -> None:
        with pytest.warns(ResourceWarning, match="DistributedLock was not closed"):
            await use_and_drop(url)
            gc.collect()
        while await asyncio.to_thread(count) > before:
            await asyncio.sleep(0.02)

    asyncio.run(asyncio.wait_for(drop(), 15))


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_instances_that_are_dropped_after_their_event_loops_leave_no_connections(url: str) -> None:
    count = connections_at(url)
    before = count()
    for _ in range(5):
        asyncio.run(use_and_drop(url))
    gc.collect()
    until(lambda: count() <= before)


def test_a_synchronous_instance_that_is_dropped_warns_and_closes_its_connections(url: str) -> None:
    count = connections_at(url)
    before = count()
    lock = SyncDistributedLock(url)
    with lock.lock(unique("dropped")):
        pass
    assert count() > before
    with pytest.warns(ResourceWarning, match="DistributedLock was not closed"):
        del lock
        gc.collect()
    until(lambda: count() <= before)


@pytest.mark.parametrize("ends", [False, True])
def test_the_thread_of_sqlite_ends_with_an_instance_that_is_dropped(ends: bool, tmp_path: Path) -> None:
    def threads() -> int:
        return sum(1 for each in threading.enumerate() if each.name == "holdfast-sqlite")

    def open_files() -> int:
        links = [f"/proc/self/fd/{each}" for each in os.listdir("/proc/self/fd")]
        return sum("locks.db" in os.readlink(each) for each in links if os.path.islink(each))

    url = f"sqlite:{tmp_path}/locks.db"
    before = threads()
    with pytest.warns(ResourceWarning):
        if ends:
            asyncio.run(use_and_drop(url))
        else:
            semaphore = SyncSemaphore(url, limit=2)
            with semaphore.permits("dropped"):
                pass
            assert threads() == before + 1
            del semaphore
        gc.collect()
    until(lambda: threads() == before)
    until(lambda: open_files() == 0)


async def test_a_lease_keeps_its_instance_and_is_renewed_although_the_instance_was_dropped() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        lease = await DistributedLock("memory:").hold("job", timeout_seconds=0.3)
        gc.collect()
        await asyncio.sleep(0.6)
        assert lease.held
    with pytest.warns(ResourceWarning):
        await lease.release()
        del lease
        gc.collect()
        await asyncio.sleep(0)
        gc.collect()


async def test_an_instance_that_was_closed_or_never_used_does_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        DistributedLock("memory:")
        lock = DistributedLock("memory:")
        await lock.acquire("job")
        await lock.close()
        del lock
        election = LeaderElection("memory:", name="job")
        await election.ping()
        await election.close()
        del election
        gc.collect()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_lease_of_an_event_loop_that_was_closed_is_lost_and_its_release_answers_no() -> None:
    lock = DistributedLock("memory:")

    async def hold() -> Any:
        return await lock.hold(unique("job"))

    async def end(lease: Any) -> None:
        assert await lease.release() is False
        assert await lease.extend(5) is False
        assert not lease.held and lease.lost.is_set()
        with pytest.raises(LeaseLostError, match="its event loop was closed"):
            lease.assert_held()

    asyncio.run(end(asyncio.run(hold())))

    async def leave(lease: Any) -> None:
        async with lease:
            pass

    asyncio.run(leave(asyncio.run(hold())))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_process_has_an_id_of_its_own_with_its_own_pid() -> None:
    lock, named = SyncDistributedLock("memory:"), SyncDistributedLock("memory:", holder_id="mine")
    mine = lock.holder_id
    assert f":{os.getpid()}:" in mine and lock.holder_id == mine
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with lock.lock(unique("job")) as lease:
                os.write(writer, f"{lock.holder_id} {lease.holder_id} {os.getpid()} {named.holder_id}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    theirs, of_lease, pid, same = os.read(reader, 1_000).decode().split()
    assert theirs == of_lease != mine and f":{pid}:" in theirs
    assert same == "mine" and lock.holder_id == mine
