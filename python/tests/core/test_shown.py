"""What public objects show of themselves, the version, and `python -m holdfast`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, List

import redis
import redis.asyncio

import holdfast
from holdfast import (
    DistributedLock,
    Fence,
    LeaderElection,
    LocalShare,
    OnceOnly,
    Rate,
    RateLimiter,
    RateLimitHeaders,
    ReadWriteLock,
    Semaphore,
    SyncDistributedLock,
    SyncLeaderElection,
    redis_fence,
)
from holdfast.drivers.memory import memory_driver
from holdfast.drivers.redis import redis_driver
from holdfast.drivers.redlock import redlock_driver

SOURCES = Path(holdfast.__file__).parent


def test_the_version_is_that_of_the_npm_package() -> None:
    manifest = (SOURCES.parents[2] / "package.json").read_text()
    assert f'"version": "{holdfast.__version__}"' in manifest


def test_python_m_holdfast_points_to_the_command_line() -> None:
    command = [sys.executable, "-W", "error", "-m", "holdfast"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=SOURCES.parent, timeout=50)
    assert (done.returncode, done.stderr) == (0, "")
    assert holdfast.__version__ in done.stdout and "npx holdfast run" in done.stdout


async def test_public_objects_show_store_and_holder(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/locks.db"
    async with DistributedLock(url, holder_id="me") as lock, LeaderElection("memory:", name="e", holder_id="me") as e:
        assert repr(lock) == f"<DistributedLock on {url}, holder me>"
        named = lock.named("a")
        assert repr(named) == f"<NamedLock 'a' of {lock!r}>"
        block = lock.lock("a")
        assert "not entered" in repr(block)
        async with block as lease:
            assert re.fullmatch(r"<Lease 'a' of me, token \d+, held>", repr(lease)) and repr(lease) in repr(block)
            async with named as inner:
                assert repr(inner) == repr(lease)
            result = await lock.acquire("b")
            assert "<Lease 'b' of me" in repr(result) and "NotAcquired(" in repr(await lock.acquire("b"))
        assert repr(lease).endswith("not held>") and repr(lease.lost) == "<LostEvent not set>"
        term = await e.campaign()
        assert re.fullmatch(r"<Term \d+ of 'e' by me, held>", repr(term))
    assert repr(lock).endswith("holder me, closed>")


def test_synchronous_objects_show_the_same(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/locks.db"
    with SyncDistributedLock(url, holder_id="me") as lock, lock.named("a") as lease:
        assert repr(lock) == f"<SyncDistributedLock on {url}, holder me>"
        assert re.fullmatch(r"<SyncLease 'a' of me, token \d+, held>", repr(lease))
        assert repr(lock.named("b")) == f"<SyncNamedLock 'b' of {lock!r}>" and "not entered" in repr(lock.lock("c"))
    with SyncLeaderElection("memory:", name="e", holder_id="me") as election, election.campaign() as term:
        assert re.fullmatch(r"<SyncTerm \d+ of 'e' by me, held>", repr(term))


def test_no_repr_shows_a_password_or_an_address_of_memory() -> None:
    url = "redis://app:s3cret@db.example:6379/0"
    client, sync_client = redis.asyncio.Redis.from_url(url), redis.Redis.from_url(url)
    handle = SimpleNamespace(execute=lambda *_: None, password="s3cret")
    stores: List[Any] = [url, "postgres://app:s3cret@db.example/app?password=s3cret", client, sync_client, handle]
    stores += [redis_driver(client), redlock_driver([client, sync_client, redis.Redis.from_url(url)]), memory_driver()]
    shown = [repr(DistributedLock(store)) for store in stores]
    shown += [repr(each) for each in (ReadWriteLock(url), Semaphore(url, limit=2), OnceOnly(url))]
    limiter = RateLimiter(url, limits=Rate(5, 60))
    shown += [repr(limiter), repr(RateLimitHeaders(limiter.limits)), repr(limiter.limits), repr(LocalShare(1, 2))]
    shown += [repr(Fence()), repr(redis_fence(client))]
    for text in shown:
        assert "s3cret" not in text and " object at 0x" not in text, text
    assert "on redis://…@db.example:6379," in shown[0] and "redis.asyncio.client.Redis" in shown[2]


def test_every_public_class_has_a_repr_of_its_own() -> None:
    for name in dir(holdfast):
        kind = getattr(holdfast, name)
        if name.startswith("_") or not isinstance(kind, type) or issubclass(kind, (BaseException, dict)):
            continue
        # Those are for tests, and protocols and types of options have no instances.
        if name in ("Clock", "Random") or getattr(kind, "_is_protocol", False) or hasattr(kind, "__total__"):
            continue
        assert kind.__repr__ is not object.__repr__, name


def test_every_module_says_what_it_is_for() -> None:
    modules = SOURCES.rglob("*.py")
    silent = [str(path.relative_to(SOURCES)) for path in modules if not path.read_text().startswith('"""')]
    assert silent == []
