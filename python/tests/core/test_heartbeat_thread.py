"""Rule 4: a thread renews while the event loop is blocked, and no longer than was asked for."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import Any, AsyncIterator, Awaitable, Callable, Iterator

import pytest

from holdfast import (
    DistributedLock,
    InvalidArgumentError,
    LeaseLostError,
    StoreError,
    SyncDistributedLock,
    UnsupportedError,
)
from holdfast import _heartbeat_thread
from holdfast.core import heartbeat_thread
from holdfast.core.heartbeat_thread import HeartbeatThread
from holdfast.drivers.memory import memory_driver

Open = Callable[..., DistributedLock]


@pytest.fixture
async def opened() -> AsyncIterator[Open]:
    instances = []

    def open_lock(url: str, option: Any = True, **options: Any) -> DistributedLock:
        instances.append(DistributedLock(url, heartbeat_thread=option, **options))
        return instances[-1]

    yield open_lock
    for each in instances:
        await each.close()


def thread_of(lock: DistributedLock) -> HeartbeatThread:
    holder = lock._instance.current
    assert holder is not None and holder._thread is not None
    return holder._thread


async def ready(lock: DistributedLock) -> None:
    """The thread opens the store with the first lease. A stall before that is covered when it has."""
    while thread_of(lock)._store is None:
        await asyncio.sleep(0.005)


class Rival:
    """Tries to get the locks from another thread, as another process would."""

    def __init__(self, *places: tuple[str, str]) -> None:
        self.got: list[str] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=place) for place in places]

    def _run(self, url: str, name: str) -> None:
        with SyncDistributedLock(url) as lock:
            while not self._over.wait(0.02):
                if lock.acquire(name, timeout_seconds=30):
                    self.got.append(url)
                    return

    def __enter__(self) -> Rival:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        for each in self._threads:
            each.join()


async def with_any_ttl(steps: Callable[[float], Awaitable[None]]) -> None:
    """Runs steps that a machine under load may be too slow for, with longer and longer times to live."""
    for ttl in (0.8, 3.0, 12.0):
        try:
            return await steps(ttl)
        except AssertionError:
            if ttl == 12:
                raise


async def test_an_event_loop_that_is_blocked_for_longer_than_the_ttl_keeps_its_locks(
    opened: Open, sqlite_url: str, redis_url: str, redlock_url: str, postgres_url: str, lock_name: str
) -> None:
    urls = [sqlite_url, redis_url, redlock_url + "?persistent=1&prefix=heartbeat-thread:", postgres_url]
    locks = [opened(url) for url in urls]

    async def steps(ttl: float) -> None:
        name = f"{lock_name} {ttl}"
        leases = [await lock.hold(name, timeout_seconds=ttl) for lock in locks]
        for lock in locks:
            await ready(lock)
        with Rival(*((url, name) for url in urls)) as rival:
            time.sleep(ttl * 1.5)
            # In the first statements after the stall.
            assert [lease.held for lease in leases] == [True] * 4
        assert rival.got == []
        for lease in leases:
            assert await lease.extend(20) and lease.remaining_seconds > 15
            assert await lease.release()

    await with_any_ttl(steps)


async def test_a_loop_that_is_blocked_beyond_the_stated_time_loses_its_locks(
    opened: Open, sqlite_url: str, lock_name: str
) -> None:
    lock = opened(sqlite_url, {"stalled_after_seconds": 0.2})
    with pytest.raises(LeaseLostError, match="not renewed"):
        async with lock.lock(lock_name, timeout_seconds=0.4) as lease:
            await ready(lock)
            with Rival((sqlite_url, lock_name)) as rival:
                while not rival.got:
                    time.sleep(0.01)
                assert not lease.held
            await asyncio.sleep(10)


async def test_a_forced_release_is_seen_while_the_loop_is_blocked(
    opened: Open, redis_url: str, lock_name: str
) -> None:
    lock = opened(redis_url)

    def force() -> None:
        with SyncDistributedLock(redis_url) as other:
            other.force_release(lock_name, by="ada")

    async def steps(ttl: float) -> None:
        with pytest.raises(LeaseLostError) as lost:
            async with lock.lock(lock_name, timeout_seconds=ttl) as lease:
                await ready(lock)
                operator = threading.Thread(target=force)
                operator.start()
                while lease.held:
                    time.sleep(0.01)
                operator.join()
                await asyncio.sleep(10)
        assert "the store no longer has it" in str(lost.value)

    await with_any_ttl(steps)


async def test_what_the_thread_has_sent_is_settled_before_a_hand_over_and_counts_for_an_extension(
    opened: Open, sqlite_url: str, lock_name: str
) -> None:
    lock = opened(sqlite_url)

    async def steps(ttl: float) -> None:
        lease = await lock.hold(f"{lock_name} {ttl}", timeout_seconds=ttl)
        await ready(lock)
        time.sleep(ttl * 1.2)
        assert await lease.extend(30) and lease.remaining_seconds > 20
        restored = await lock.restore(await lease.serialize(), heartbeat=True, timeout_seconds=ttl)
        time.sleep(ttl * 1.2)
        assert restored.held and restored.fencing_token == lease.fencing_token
        assert await restored.release()

    await with_any_ttl(steps)
    await lock.hold(lock_name, max_hold_seconds=0.1, timeout_seconds=0.3)
    time.sleep(0.5)
    assert await lock.acquire(lock_name), "max_hold_seconds end the renewals of the thread, too"


async def test_a_thread_that_cannot_open_the_store_takes_nothing_from_the_lease(
    opened: Open, sqlite_url: str, lock_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[[object], Awaitable[Any]] = _heartbeat_thread.driver_from
    tries = []

    async def too_many_connections(store: object) -> Any:
        tries.append(store)
        if len(tries) == 1:
            raise StoreError("too many connections")
        return await real(store)

    monkeypatch.setattr(_heartbeat_thread, "driver_from", too_many_connections)
    monkeypatch.setattr(heartbeat_thread, "_RESTART_FIRST_MS", 100)
    lock = opened(sqlite_url)

    async def steps(ttl: float) -> None:
        lease = await lock.hold(f"{lock_name} {ttl}", timeout_seconds=ttl)
        await ready(lock)
        time.sleep(ttl * 1.2)
        assert lease.held

    failures: list[str] = []
    lock.on("heartbeat_failed", lambda event: failures.append(str(event.error)))
    await with_any_ttl(steps)
    assert failures == ["too many connections"]


async def test_close_ends_the_connections_of_the_thread(own_redis: Any, lock_name: str) -> None:
    import redis

    server = own_redis()
    with redis.Redis(port=server.port) as client:
        lock = DistributedLock(server.url, heartbeat_thread=True)
        lease = await lock.hold(lock_name)
        await ready(lock)
        await lock.close()
        assert not lease.held
        while len(client.client_list()) > 1:
            await asyncio.sleep(0.005)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
async def test_a_child_process_neither_renews_nor_disturbs_the_lease_of_its_parent(
    opened: Open, sqlite_url: str, lock_name: str
) -> None:
    lock = opened(sqlite_url)

    async def steps(ttl: float) -> None:
        name = f"{lock_name} {ttl}"
        lease = await lock.hold(name, timeout_seconds=ttl)
        await ready(lock)
        child = os.fork()
        if child == 0:
            os._exit(_of_child(lock, lease, sqlite_url, name, ttl))
        # The parent is blocked meanwhile.
        assert os.waitpid(child, 0)[1] == 0
        assert lease.held and await lease.release()

    await with_any_ttl(steps)


def _of_child(lock: DistributedLock, lease: Any, url: str, lock_name: str, ttl: float) -> int:
    async def main() -> None:
        assert not lease.held
        own = DistributedLock(url, heartbeat_thread=True)
        assert not await own.acquire(lock_name), "the parent has it"
        mine = await own.hold(lock_name + " child", timeout_seconds=ttl)
        await ready(own)
        time.sleep(ttl * 1.2)
        assert mine.held
        await own.close()
        await lock.close()

    asyncio.set_event_loop(None)
    asyncio._set_running_loop(None)
    try:
        asyncio.run(main())
        return 0
    except BaseException:
        import traceback

        traceback.print_exc()
        return 1


def test_an_event_loop_that_has_ended_keeps_nothing(sqlite_url: str, lock_name: str) -> None:
    lock = DistributedLock(sqlite_url, heartbeat_thread=True)

    async def main() -> None:
        await lock.hold(lock_name, timeout_seconds=0.3)
        await ready(lock)

    asyncio.run(main())
    with SyncDistributedLock(sqlite_url) as other:
        other.hold(lock_name, blocking_timeout_seconds=30).release()


@pytest.fixture
def driver() -> Iterator[Any]:
    yield memory_driver()


def test_what_no_thread_can_open_is_refused_with_a_reason(driver: Any, sqlite_url: str) -> None:
    for store in ("memory:", "postgres+advisory://localhost", driver):
        with pytest.raises(UnsupportedError, match="heartbeat_thread needs the URL"):
            DistributedLock(store, heartbeat_thread=True)
    for option in (1, "yes", {"stalled_after": 3}, {"stalled_after_seconds": 0}):
        with pytest.raises(InvalidArgumentError, match="heartbeat_thread"):
            DistributedLock(sqlite_url, heartbeat_thread=option)  # type: ignore[arg-type]
    with SyncDistributedLock(sqlite_url, heartbeat_thread=True) as lock:
        with pytest.raises(UnsupportedError, match="synchronous API"):
            lock.acquire("a")
