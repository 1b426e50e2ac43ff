"""Elections, once-only jobs, readers, permits and rates of two instances that have only a URL, on every store."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any, Callable, List
from urllib.parse import urlsplit

import pytest

from holdfast import (
    LeaderElection,
    Lease,
    OnceOnly,
    RateLimiter,
    ReadWriteLock,
    Semaphore,
    UnsupportedError,
)

Unique = Callable[[str], str]


@pytest.fixture(params=["memory", "sqlite", "redis", "cluster", "redlock", "postgres", "advisory"])
def store(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def url(store: str, request: pytest.FixtureRequest) -> str:
    if store == "memory":
        return f"memory:{secrets.token_hex(6)}"
    if store == "cluster":
        hosts = ",".join(urlsplit(each).netloc for each in request.getfixturevalue("cluster_urls"))
        return f"redis+cluster://{hosts}"
    if store == "redlock":
        hosts = ",".join(urlsplit(each).netloc for each in request.getfixturevalue("redis_urls")[:3])
        return f"redlock://{hosts}?persistent=1&prefix=python-every-store:"
    postgres: str = request.getfixturevalue("postgres_url") if store == "advisory" else ""
    return postgres.replace("postgres", "postgres+advisory", 1) or request.getfixturevalue(f"{store}_url")


async def test_an_election_shows_its_leader_and_follows_one_that_resigns(
    store: str, url: str, unique_name: Unique
) -> None:
    name = unique_name("election")
    value = None if store == "advisory" else {"port": 8080}
    demoted: List[str] = []
    async with LeaderElection(url, name=name, holder_id="a") as a, LeaderElection(url, name=name, holder_id="b") as b:
        first = await a.campaign(value=value, on_demoted=lambda _, reason: demoted.append(reason.code))
        changes = b.observe(every_seconds=0.05)
        leader = await changes.__anext__()
        # With several servers, a lease that was just granted may not be visible yet.
        while leader is None:
            leader = await changes.__anext__()
        assert (leader.holder_id, leader.term, leader.value) == ("a", first.term, value)
        succession = asyncio.create_task(b.campaign())
        assert await first.resign()
        assert demoted == ["NOT_HELD"]
        second = await succession
        assert second.term > first.term
        while leader is None or leader.holder_id != "b":
            leader = await changes.__anext__()
        assert leader.term == second.term


async def test_a_job_runs_once_and_one_that_failed_runs_again(store: str, url: str, unique_name: Unique) -> None:
    key = unique_name("job")
    async with OnceOnly(url) as a, OnceOnly(url) as b:
        if store == "advisory":
            with pytest.raises(UnsupportedError):
                await a.once(key, lambda _: 1, for_seconds=30)
            return

        def fails(_: Lease) -> None:
            raise OSError("no paper")

        with pytest.raises(OSError):
            await a.once(key, fails, for_seconds=30)
        begun = asyncio.Event()
        result = {"name": "ä", "list": [1, None, {"deep": True}]}

        async def job(_: Lease) -> Any:
            begun.set()
            return result

        run = asyncio.create_task(a.once(key, job, for_seconds=30))
        await begun.wait()
        others = (b.once(key, lambda _: "not this", for_seconds=30) for _ in range(2))
        assert await asyncio.gather(run, *others) == [result] * 3
        assert await b.forget(key)
        assert await b.once(key, lambda _: "again", for_seconds=30) == "again"


async def test_readers_share_where_the_store_can(url: str, lock_name: str) -> None:
    async with ReadWriteLock(url) as a, ReadWriteLock(url) as b:
        async with a.read(lock_name), b.read(lock_name) as lease:
            assert lease.held
            assert not await b.acquire_write(lock_name)
        async with b.write(lock_name, blocking=True):
            assert not await a.acquire_read(lock_name)


async def test_permits_and_rates_are_counted_where_the_store_can_and_refused_with_a_reason_where_not(
    store: str, url: str, lock_name: str
) -> None:
    async with Semaphore(url, limit=2) as a, Semaphore(url, limit=2) as b, RateLimiter(url, limits="3/hour") as rates:
        if store in ("advisory", "redlock"):
            with pytest.raises(UnsupportedError, match=": "):
                await a.acquire(lock_name)
            with pytest.raises(UnsupportedError, match=": "):
                await rates.consume(lock_name)
            return
        async with a.permits(lock_name), b.permits(lock_name):
            assert not await b.acquire(lock_name)
        assert await b.acquire(lock_name, permits=2)
        assert sum(map(bool, await asyncio.gather(*(rates.consume(lock_name) for _ in range(5))))) == 3
