"""Locks of both clients on one file, as programs use them: one queue, in the order of arrival."""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any, Awaitable, Callable, List

import pytest

from holdfast.errors import LeaseLostError, NotAcquiredError
from holdfast.lock import DistributedLock
from support.node_worker import NodeWorker
from support.sqlite_driver import opened, waiters_are
from support.steered_clock import SteeredClock

StartNode = Callable[..., Awaitable[NodeWorker]]

NODE = """
  import { appendFileSync } from 'node:fs'
  import { DistributedLock } from 'holdfast'
  let lock
  expose({
    // A place in the queue lasts so long that nothing but a wake-up serves it in time.
    open(url) { lock = new DistributedLock({ url, waiterTtlSeconds: 300 }) },
    close: () => lock.close(),
    async acquire(name, options) {
      const result = await lock.acquire(name, options)
      return result.acquired ? result.lock.fencingToken : result.holder?.holderId ?? null
    },
    release: (name) => lock.release(name),
    async queue(name, file, label) {
      await lock.withLock(name, async (lease) => appendFileSync(file, `${label} ${lease.fencingToken}\\n`),
        { timeoutSeconds: 60, blockingTimeoutSeconds: 50 })
    },
    forceRelease: (name) => lock.forceRelease(name, { by: 'a test' }),
  })
"""


@pytest.fixture
async def node(node_worker: StartNode, sqlite_url: str) -> NodeWorker:
    worker = await node_worker(NODE, timeout=50)
    await worker.call("open", sqlite_url)
    return worker


async def test_waiters_of_both_clients_are_woken_in_the_order_in_which_they_arrived(
    node: NodeWorker, sqlite_url: str, tmp_path: Any
) -> None:
    file = tmp_path / "served"
    file.write_text("")
    labels: List[str] = []
    async with opened(sqlite_url) as driver, DistributedLock(sqlite_url, waiter_ttl_seconds=300) as lock:

        async def queue(label: str) -> None:
            async with lock.lock("name", timeout_seconds=60, blocking_timeout_seconds=50) as lease:
                with file.open("a") as writing:
                    writing.write(f"{label} {lease.fencing_token}\n")

        served: List[Awaitable[Any]] = []
        # Not `lock.lock`, inside of which the same name is re-entered.
        assert await lock.acquire("name", timeout_seconds=60)
        for place in range(16):
            is_node = place % 2 == 0 if place < 8 else random.random() < 0.5
            label = f"{'node' if is_node else 'python'}{place}"
            labels.append(label)
            call = node.call("queue", "name", str(file), label) if is_node else queue(label)
            served.append(asyncio.ensure_future(call))
            await waiters_are(driver, "name", place + 1)
        assert await lock.release("name")
        await asyncio.gather(*served)
    lines = [line.split(" ") for line in file.read_text().splitlines()]
    assert [label for label, _ in lines] == labels
    tokens = [int(token) for _, token in lines]
    assert tokens == sorted(set(tokens))


async def test_nothing_waits_unless_asked_and_the_holder_of_the_other_client_is_named(
    node: NodeWorker, sqlite_url: str
) -> None:
    async with DistributedLock(sqlite_url, holder_id="python holder") as lock:
        async with lock.lock("name"):
            assert await node.call("acquire", "name", {}) == "python holder"
        token = await node.call("acquire", "name", {"timeoutSeconds": 60})
        result = await lock.acquire("name")
        assert not result and result.holder is not None and result.holder.fencing_token == token
        with pytest.raises(NotAcquiredError):
            async with lock.lock("name"):
                raise AssertionError
        await node.call("release", "name")
        async with lock.lock("name") as lease:
            assert lease.fencing_token > token


async def test_a_lock_that_node_takes_by_force_is_lost_here(node: NodeWorker, sqlite_url: str) -> None:
    clock = SteeredClock()
    async with DistributedLock(sqlite_url, clock=clock) as lock:
        with pytest.raises(LeaseLostError):
            async with lock.lock("name", timeout_seconds=600):
                await node.call("forceRelease", "name")
                clock.advance(240)  # the next heartbeat is due
                await asyncio.sleep(50)
        assert await lock.acquire("name")


async def test_a_waiter_here_is_served_when_a_node_process_is_killed_and_its_lease_expires(
    node: NodeWorker, sqlite_url: str
) -> None:
    async with DistributedLock(sqlite_url, waiter_ttl_seconds=300) as lock, opened(sqlite_url) as driver:
        await node.call("acquire", "name", {"timeoutSeconds": 1})
        waiting = asyncio.ensure_future(lock.acquire("name", blocking_timeout_seconds=50))
        await waiters_are(driver, "name", 1)
        await node.kill()
        assert await waiting


async def test_a_fork_of_a_holder_does_not_disturb_its_heartbeat(sqlite_url: str) -> None:
    """The connection is closed for the fork, and opened again by the next renewal."""
    clock = SteeredClock()
    async with DistributedLock(sqlite_url, clock=clock) as lock:
        async with lock.lock("name", timeout_seconds=600) as lease:
            for _ in range(2):
                before = lease.expires_at
                pid = os.fork()
                if pid == 0:
                    os._exit(0)
                os.waitpid(pid, 0)
                clock.advance(240)
                while lease.expires_at == before:
                    lease.assert_held()
                    await asyncio.sleep(0.01)
