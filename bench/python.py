"""The cost of a lock in Python, next to redis-py's own `Lock` and hand-written statements through asyncpg and psycopg.

    /usr/bin/python3 bench/python.py --redis redis://127.0.0.1:6379 --postgres postgres://postgres@127.0.0.1/postgres \
        [--rounds 7] [--seconds 0.5]

Each turn acquires and releases a lock that no one else wants. The subjects of a table take turns in every round, so
that other work on the machine affects all of them. The figures are medians over the rounds: microseconds for one turn,
by the clock and of this process's CPU, and the ratio of the times to the first subject.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import statistics
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any, Awaitable, Callable, Dict, List, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python" / "src"))

import asyncpg  # noqa: E402
import psycopg  # noqa: E402
import redis  # noqa: E402
import redis.asyncio  # noqa: E402

from holdfast import DistributedLock, SyncDistributedLock  # noqa: E402
from holdfast.sync.portal import portal  # noqa: E402

Turn = Callable[[str], Awaitable[None]]
SyncTurn = Callable[[str], None]
CONNECTIONS = 4

HAND_WRITTEN_TABLE = """
CREATE TABLE IF NOT EXISTS holdfast_bench_python (
    lock_name VARCHAR(255) PRIMARY KEY, holder_id VARCHAR(255) NOT NULL, expires_at TIMESTAMPTZ NOT NULL)"""
HAND_WRITTEN_ACQUIRE = """
INSERT INTO holdfast_bench_python AS own (lock_name, holder_id, expires_at)
VALUES ($1, $2, clock_timestamp() + interval '30 s')
ON CONFLICT (lock_name) DO UPDATE SET holder_id = excluded.holder_id, expires_at = excluded.expires_at
WHERE own.expires_at <= clock_timestamp() RETURNING 1"""
HAND_WRITTEN_RELEASE = "DELETE FROM holdfast_bench_python WHERE lock_name = $1 AND holder_id = $2 RETURNING 1"


def holdfast(lock: DistributedLock) -> Turn:
    async def turn(name: str) -> None:
        result = await lock.acquire(name, timeout_seconds=30)
        assert result.lease is not None
        assert await result.lease.release()

    return turn


def holdfast_block(lock: DistributedLock) -> Turn:
    async def turn(name: str) -> None:
        async with lock.lock(name, timeout_seconds=30):
            pass

    return turn


async def redis_asyncio(url: str) -> Tuple[Dict[str, Turn], Callable[[], Awaitable[None]]]:
    theirs = redis.asyncio.Redis.from_url(url)
    client = redis.asyncio.Redis.from_url(url)
    with_client, with_url = DistributedLock(client), DistributedLock(url)

    async def redis_lock(name: str) -> None:
        lock = theirs.lock(f"bench:{name}", timeout=30, blocking_timeout=0)
        assert await lock.acquire()
        await lock.release()

    async def close() -> None:
        await with_client.close()
        await with_url.close()
        await theirs.close()
        await client.close()

    subjects = {
        "redis.asyncio Lock": redis_lock,
        "holdfast acquire, release": holdfast(with_client),
        "holdfast by URL": holdfast(with_url),
        "holdfast async with": holdfast_block(with_client),
    }
    return subjects, close


async def postgres_asyncpg(url: str) -> Tuple[Dict[str, Turn], Callable[[], Awaitable[None]]]:
    theirs = await asyncpg.create_pool(url, min_size=CONNECTIONS, max_size=CONNECTIONS)
    pool = await asyncpg.create_pool(url, min_size=CONNECTIONS, max_size=CONNECTIONS)
    await theirs.execute(HAND_WRITTEN_TABLE)
    with_pool, with_url = DistributedLock(pool), DistributedLock(url)

    async def pair(name: str) -> None:
        holder = uuid.uuid4().hex
        assert await theirs.fetchval(HAND_WRITTEN_ACQUIRE, name, holder) == 1
        assert await theirs.fetchval(HAND_WRITTEN_RELEASE, name, holder) == 1

    async def close() -> None:
        await with_pool.close()
        await with_url.close()
        await theirs.execute("DROP TABLE holdfast_bench_python")
        await theirs.close()
        await pool.close()

    subjects = {
        "asyncpg, two statements": pair,
        "holdfast acquire, release": holdfast(with_pool),
        "holdfast by URL": holdfast(with_url),
        "holdfast async with": holdfast_block(with_pool),
    }
    return subjects, close


async def measure(turn: Turn, concurrency: int, seconds: float) -> Tuple[float, float]:
    """Microseconds for one turn: by the clock, and of CPU."""
    end = time.perf_counter() + seconds
    turns = 0

    async def work(task: int) -> None:
        nonlocal turns
        while time.perf_counter() < end:
            await turn(f"bench:{os.getpid()}:{task}")
            turns += 1

    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(work(task) for task in range(concurrency)))
    return (time.perf_counter() - began) * 1e6 / turns, (time.process_time() - cpu) * 1e6 / turns


async def compare(title: str, subjects: Dict[str, Turn], concurrency: int, rounds: int, seconds: float) -> None:
    times: Dict[str, List[Tuple[float, float]]] = {name: [] for name in subjects}
    for name, turn in subjects.items():
        await measure(turn, concurrency, seconds)
    for at in range(rounds):
        for name, turn in list(subjects.items())[:: 1 if at % 2 else -1]:
            times[name].append(await measure(turn, concurrency, seconds))
    show(f"{title}, {concurrency} at a time", times)


def show(title: str, times: Dict[str, List[Tuple[float, float]]]) -> None:
    print(f"\n{title}")
    first: Any = None
    for name, rounds in times.items():
        wall = statistics.median(wall for wall, _ in rounds)
        cpu = statistics.median(cpu for _, cpu in rounds)
        first = first or wall
        print(f"  {name:28}{wall:9.1f} µs  cpu {cpu:8.1f} µs  ratio {wall / first:.2f}")


def with_block(lock: SyncDistributedLock) -> SyncTurn:
    def turn(name: str) -> None:
        with lock.lock(name, timeout_seconds=30):
            pass

    return turn


def redis_threads(url: str, rounds: int, seconds: float, count: int) -> None:
    client = redis.Redis.from_url(url)
    ours = redis.Redis.from_url(url)
    in_loop = redis.asyncio.Redis.from_url(url)
    by_client, by_url = SyncDistributedLock(ours), SyncDistributedLock(url)

    def redis_lock(name: str) -> None:
        lock = client.lock(f"bench:{name}", timeout=30, blocking_timeout=0)
        assert lock.acquire()
        lock.release()

    def two_gets(name: str) -> None:
        """Less is not possible for a lock whose requests are sent by another thread than the caller's."""
        for _ in range(2):
            portal().run(in_loop.get(name))

    subjects = {
        "redis-py Lock": redis_lock,
        "two GET in the event loop": two_gets,
        "holdfast with, its client": with_block(by_client),
        "holdfast with, by URL": with_block(by_url),
    }
    compare_threads(f"Redis, synchronous, {count} threads", subjects, rounds, seconds, count)
    by_client.close()
    by_url.close()
    portal().run(in_loop.close())


def postgres_threads(url: str, rounds: int, seconds: float, count: int) -> None:
    """Each thread has a connection of its own, in autocommit mode."""
    connections: Dict[str, Any] = {}
    by_url = SyncDistributedLock(url)
    acquire, release = (re.sub(r"\$[0-9]", "%s", text) for text in (HAND_WRITTEN_ACQUIRE, HAND_WRITTEN_RELEASE))

    def pair(name: str) -> None:
        if name not in connections:  # In the round that does not count.
            connections[name] = psycopg.connect(url, autocommit=True)
        holder = uuid.uuid4().hex
        assert connections[name].execute(acquire, (name, holder)).fetchone() == (1,)
        assert connections[name].execute(release, (name, holder)).fetchone() == (1,)

    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(HAND_WRITTEN_TABLE)
        subjects = {"psycopg, two statements": pair, "holdfast with, by URL": with_block(by_url)}
        compare_threads(f"PostgreSQL, synchronous, {count} threads", subjects, rounds, seconds, count)
        admin.execute("DROP TABLE holdfast_bench_python")
    by_url.close()
    for each in connections.values():
        each.close()


def compare_threads(title: str, subjects: Dict[str, SyncTurn], rounds: int, seconds: float, count: int) -> None:
    times: Dict[str, List[Tuple[float, float]]] = {name: [] for name in subjects}
    for at in range(rounds + 1):
        for name, turn in list(subjects.items())[:: 1 if at % 2 else -1]:
            measured = measure_threads(turn, count, seconds)
            if at > 0:
                times[name].append(measured)
    show(title, times)


def measure_threads(turn: SyncTurn, count: int, seconds: float) -> Tuple[float, float]:
    end = time.perf_counter() + seconds
    turns = [0] * count

    def work(at: int) -> None:
        while time.perf_counter() < end:
            turn(f"bench:{os.getpid()}:{at}")
            turns[at] += 1

    began, cpu = time.perf_counter(), time.process_time()
    all_threads = [threading.Thread(target=work, args=(at,)) for at in range(count)]
    for thread in all_threads:
        thread.start()
    for thread in all_threads:
        thread.join()
    done = sum(turns)
    return (time.perf_counter() - began) * 1e6 / done, (time.process_time() - cpu) * 1e6 / done


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--redis")
    parser.add_argument("--postgres")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5)
    args = parser.parse_args()
    print("load", *(f"{load:.1f}" for load in os.getloadavg()))
    for title, url, opened in (
        ("Redis, asyncio", args.redis, redis_asyncio),
        ("PostgreSQL, asyncpg", args.postgres, postgres_asyncpg),
    ):
        if url is None:
            continue
        subjects, close = await opened(url)
        for concurrency in (1, 64):
            await compare(title, subjects, concurrency, args.rounds, args.seconds)
        await close()
    for url, compared in ((args.redis, redis_threads), (args.postgres, postgres_threads)):
        for count in (1, 16) if url is not None else ():
            await asyncio.to_thread(compared, url, args.rounds, args.seconds, count)
    print("\nload", *(f"{load:.1f}" for load in os.getloadavg()))


asyncio.run(main())
