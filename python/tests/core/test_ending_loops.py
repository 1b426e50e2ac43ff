"""Event loops that end: what a block has released is free in the store when the process has ended."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, List

import pytest

from holdfast import DistributedLock
from support.names import unique

PROGRAM = """
import asyncio, sys
from holdfast import DistributedLock, LeaderElection

url = sys.argv[1]

async def work(what, lock, name, gate):
    if what == "block":
        async with lock.lock(name):
            await gate.wait()
    elif what == "block with min_hold_seconds":
        async with lock.lock(name, min_hold_seconds=0.5, timeout_seconds=600):
            await gate.wait()
    elif what == "several":
        async with lock.locks([name, name + ":2"]):
            await gate.wait()
    elif what == "lease as a block":
        async with await lock.hold(name):
            await gate.wait()
    elif what == "release":
        lease = await lock.hold(name)
        await gate.wait()
        await lease.release()
    elif what == "release by name":
        await lock.hold(name)
        await gate.wait()
        await lock.release(name)
    elif what == "release all":
        await lock.hold(name)
        await gate.wait()
        await lock.release_all()

async def main(what, name, turns):
    lock = DistributedLock(url)
    gate = asyncio.Event()
    tasks = [asyncio.ensure_future(work(what, lock, f"{name}:{turns}:{n}", gate)) for n in range(2)]
    while len(lock._instance.holder.leases if lock._instance.current else ()) < 2:
        await asyncio.sleep(0.002)
    gate.set()
    # `asyncio.run` cancels all other tasks when this one returns.
    for _ in range(turns):
        await asyncio.sleep(0)

for what, name in zip(*[iter(sys.argv[2:])] * 2):
    for turns in range(TURNS):
        asyncio.run(main(what, name, turns))
# Without a moment for threads and sockets.
import os
os._exit(0)
"""
TURNS = 6
WHATS = [
    *("block", "block with min_hold_seconds", "several", "lease as a block"),
    *("release", "release by name", "release all"),
]


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def url(request: Any, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:{tmp_path}/locks.db"
    if request.param == "redis":
        return str(request.getfixturevalue("redis_url"))
    return str(request.getfixturevalue("postgres_url"))


async def test_failure_82_a_release_reaches_the_store_although_the_event_loop_ends_in_the_same_turn(url: str) -> None:
    """Also when several tasks end with it, in each way to release. (Advisory locks end with the process.)"""
    names = {what: unique("ending") for what in WHATS}
    program = PROGRAM.replace("TURNS", str(TURNS))

    def run() -> None:
        arguments = [part for pair in names.items() for part in pair]
        command = [sys.executable, "-W", "ignore", "-c", program, url, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=50)
        assert done.returncode == 0, done.stderr

    await asyncio.to_thread(run)
    left: List[str] = []
    async with DistributedLock(url) as lock:
        for what, name in names.items():
            for turns in range(TURNS):
                for n in range(2):
                    # Later than min_hold_seconds, and long before the TTL is over.
                    until = time.monotonic() + (10 if "min_hold" in what else 0)
                    while is_left := await lock.is_locked(f"{name}:{turns}:{n}"):
                        if time.monotonic() > until:
                            break
                        await asyncio.sleep(0.02)
                    if is_left:
                        left.append(f"{what} after {turns} turns")
    assert left == []
