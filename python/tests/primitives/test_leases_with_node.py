"""Leases that Python and Node have in common: one moves between them, and two of them are waited for in a cycle."""

from __future__ import annotations

import asyncio
from typing import Any, AsyncIterator, Iterator
from urllib.parse import urlsplit

import pytest

from holdfast import DeadlockError, DistributedLock, SyncDistributedLock
from support.node_worker import NodeError, NodeWorker
from support.polling import until

NODE = """
import { setTimeout as sleep } from 'node:timers/promises'
import { DistributedLock } from 'holdfast'

let lock, lease

async function close() {
  await lock?.close()
  lock = undefined
}

expose({
  close,
  async open(url) {
    await close()
    lock = new DistributedLock({ url, holderId: 'node', deadlockAfterSeconds: 0.2 })
  },
  async hold(name, options) {
    lease = await lock.hold(name, options)
    return lease.fencingToken
  },
  serialize: () => lease.serialize(),
  async restore(text, options) {
    lease = await lock.restore(text, options)
    return { ...lease.toJSON(), acquiredAt: lease.acquiredAt.getTime(), remaining: lease.remainingSeconds }
  },
  acquire: async (name) => (await lock.acquire(name)).acquired,
  forceRelease: async (name) => (await lock.forceRelease(name, { by: 'ada' })).map(({ holderId }) => holderId),
  whyLost: () => new Promise((resolve) => {
    const tell = () => resolve(`${lease.signal.reason}`)
    if (lease.signal.aborted) tell()
    else lease.signal.addEventListener('abort', tell)
  }),
  release: () => lease.release(),
  // Holds the first lock, and waits for the second one: before or after another claim waits for the first.
  both: (first, second, when) =>
    lock.withLock(first, async () => {
      while (when === 'after' && (await lock.inspect(first)).waiters.length === 0) await sleep(5)
      return lock.withLock(second, () => 'both', { blockingTimeoutSeconds: 40 })
    }),
})
"""


@pytest.fixture(scope="module")
def event_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """One for all tests here: they share a Node process, which takes longer to start than most of them."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture(scope="module")
async def process(event_loop: asyncio.AbstractEventLoop) -> AsyncIterator[NodeWorker]:
    worker = await NodeWorker.start(NODE, timeout=50)
    yield worker
    await worker.end()


HANDS_OVER = ["sqlite", "redis", "cluster", "redlock", "postgres"]
ENDS_BY_FORCE = ["redis", "redlock", "advisory"]
SHOWS_WAITERS = ["sqlite", "redis", "cluster", "postgres", "advisory"]


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name == "advisory":
        postgres: str = request.getfixturevalue("postgres_url")
        return postgres.replace("postgres", "postgres+advisory", 1)
    if name == "cluster":
        hosts = ",".join(urlsplit(each).netloc for each in request.getfixturevalue("cluster_urls"))
        return f"redis+cluster://{hosts}"
    if name == "redlock":
        hosts = ",".join(urlsplit(each).netloc for each in request.getfixturevalue("redis_urls")[:3])
        return f"redlock://{hosts}?persistent=1&prefix=python-leases-with-node:"
    found: str = request.getfixturevalue(f"{name}_url")
    return found


@pytest.fixture
async def node(process: NodeWorker, url: str) -> NodeWorker:
    await process.call("open", url)
    return process


@pytest.mark.parametrize("url", HANDS_OVER, indirect=True)
async def test_a_lease_is_handed_over_from_python_to_node_and_back(
    node: NodeWorker, url: str, lock_name: str
) -> None:
    async with DistributedLock(url, holder_id="python") as lock:
        metadata = {"step": "ä", "deep": [1, None]}
        options: Any = {"timeout_seconds": 40, "min_hold_seconds": 0.05, "max_hold_seconds": 3_600}
        first = await lock.hold(lock_name, metadata=metadata, **options)
        there = await node.call("restore", await first.serialize(), {"heartbeat": True})
        assert there["fencingToken"] == first.fencing_token
        assert there["holderId"] == "python" and there["metadata"] == metadata
        assert abs(there["acquiredAt"] - first.acquired_at.timestamp() * 1_000) < 1
        assert 30 < there["remaining"] < 40
        assert not first.held and not await lock.acquire(lock_name)

        text = await node.call("serialize")
        second = await lock.restore(text, heartbeat=True, timeout_seconds=50)
        assert (second.fencing_token, second.holder_id) == (first.fencing_token, "python")
        assert second.metadata == metadata and second.acquired_at == first.acquired_at
        # The renewals of the first holders were all answered.
        assert second.remaining_seconds > 40
        assert await node.call("acquire", lock_name) is False
        with pytest.raises(NodeError) as refused:
            await node.call("restore", text[:-2] + "AA")
        assert refused.value.code == "INVALID_ARGUMENT"
        await asyncio.sleep(0.05)  # min_hold_seconds
        assert await second.release() is True
        assert await node.call("acquire", lock_name) is True


@pytest.mark.parametrize("url", HANDS_OVER, indirect=True)
async def test_a_lease_of_node_continues_in_a_thread_of_python(node: NodeWorker, url: str, lock_name: str) -> None:
    token = await node.call("hold", lock_name, {"timeoutSeconds": 40})
    text = await node.call("serialize")

    def work() -> str:
        with SyncDistributedLock(url) as lock:
            lease = lock.restore(text)
            assert lease.held and lease.fencing_token == token and lease.holder_id == "node"
            assert lock.extend(lock_name, 30)
            text_of_mine = lease.serialize()
            assert not lease.held and not lock.release(lock_name)
            return text_of_mine

    await node.call("restore", await asyncio.to_thread(work))
    assert await node.call("release") is True


@pytest.mark.parametrize("url", SHOWS_WAITERS, indirect=True)
@pytest.mark.parametrize("younger", ["python", "node"])
async def test_a_cycle_of_python_and_node_ends_with_the_error_of_the_younger(
    node: NodeWorker, url: str, younger: str, lock_name: str
) -> None:
    first, second = f"{lock_name} 1", f"{lock_name} 2"
    async with DistributedLock(url, holder_id="python", deadlock_after_seconds=0.2) as lock:

        async def waits_for(name: str) -> bool:
            return bool((await lock.inspect(name)).waiters)

        async with lock.lock(first):
            when = "before" if younger == "python" else "after"
            there = asyncio.ensure_future(node.call("both", second, first, when))
            if younger == "python":
                await until(lambda: waits_for(first))
                with pytest.raises(DeadlockError) as found:
                    async with lock.lock(second, blocking_timeout_seconds=40):
                        raise AssertionError("both had it")
                assert list(found.value.cycle) == [("python", second, "node"), ("node", first, "python")]
            else:
                await until(lambda: lock.is_locked(second))
                async with lock.lock(second, blocking_timeout_seconds=40):
                    with pytest.raises(NodeError) as refused:
                        await there
                assert refused.value.code == "DEADLOCK"
        if younger == "python":
            assert await there == "both"


@pytest.mark.parametrize("url", ENDS_BY_FORCE, indirect=True)
async def test_each_language_ends_a_lease_of_the_other_by_force_and_no_other_lock_of_its_holder(
    node: NodeWorker, url: str, lock_name: str
) -> None:
    other_name = f"{lock_name} beside"
    async with DistributedLock(url, holder_id="python") as lock:
        other = await lock.hold(other_name, timeout_seconds=30)
        held = await lock.hold(lock_name, timeout_seconds=3)
        assert await node.call("forceRelease", lock_name) == ["python"]
        await held.lost
        assert not held.held and await held.release() is False
        assert other.held and await other.release() is True

        await node.call("hold", lock_name, {"timeoutSeconds": 3})
        [ended] = await lock.force_release(lock_name, by="ada")
        assert ended.holder_id == "node"
        assert "was lost" in await node.call("whyLost")
        assert await lock.acquire(lock_name)


@pytest.mark.parametrize("url", HANDS_OVER, indirect=True)
async def test_a_process_that_waits_hears_at_once_of_a_forced_release_in_the_other_language(
    node: NodeWorker, url: str, lock_name: str
) -> None:
    other_name = f"{lock_name} beside"
    async with DistributedLock(url, holder_id="python") as lock:
        await node.call("hold", other_name, {"timeoutSeconds": 50})
        # Without a heartbeat, no renewal would tell.
        held = await lock.hold(lock_name, timeout_seconds=50, heartbeat=False)
        waiting = asyncio.ensure_future(lock.acquire(other_name, blocking_timeout_seconds=50))
        holder = lock._instance.current
        assert holder is not None
        await until(lambda: holder._store.wake_ups.subscription is not None)
        assert await node.call("forceRelease", lock_name) == ["python"]
        assert "it was force-released by" in str(await held.lost)
        await node.call("release")
        assert (await waiting).acquired
