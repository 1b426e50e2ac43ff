"""A Cluster of the test's own, whose slots move."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
import warnings
from pathlib import Path
from typing import Any, AsyncIterator, Iterator, NamedTuple

import pytest
import redis
import redis.asyncio
import redis.cluster
from holdfast import DistributedLock
from holdfast.core.driver import Grant, InspectQuery, Refusal
from holdfast.drivers._redis.keys import slot_of
from holdfast.drivers.redis import RedisDriver, open_redis, redis_driver
from holdfast.errors import InvalidArgumentError, StoreError, UnsupportedError

from support.redis_drivers import Heard, claim_on, closing, error_of, grant_of, lease_of, refusal_of, renewal_of
from support.redis_server import RedisServer

_files = itertools.count()


class Cluster(NamedTuple):
    """`a` has all slots, `b` has none."""

    a: Any
    b: Any
    admin_a: redis.Redis
    admin_b: redis.Redis

    @property
    def url(self) -> str:
        return f"redis+cluster://127.0.0.1:{self.a.port}"

    def begin_move(self, slot: int) -> None:
        id_a, id_b = (each.execute_command("CLUSTER", "MYID").decode() for each in (self.admin_a, self.admin_b))
        self.admin_b.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", id_a)
        self.admin_a.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", id_b)

    def move_keys(self, slot: int) -> None:
        for key in self.admin_a.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1_000):
            self.admin_a.execute_command("MIGRATE", "127.0.0.1", self.b.port, key, 0, 5_000)

    def end_move(self, slot: int) -> None:
        id_b = self.admin_b.execute_command("CLUSTER", "MYID").decode()
        for admin in (self.admin_b, self.admin_a):
            admin.execute_command("CLUSTER", "SETSLOT", slot, "NODE", id_b)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One for all tests: a server of a Cluster accepts nothing in its first two seconds."""
    folder = tmp_path_factory.mktemp("cluster")
    a, b = _start(folder), _start(folder)
    made = Cluster(a, b, redis.Redis(port=a.port), redis.Redis(port=b.port))
    made.admin_a.execute_command("CLUSTER", "ADDSLOTS", *range(16_384))
    made.admin_a.execute_command("CLUSTER", "MEET", "127.0.0.1", b.port)
    for _ in range(2_000):
        states = [each.execute_command("CLUSTER", "INFO") for each in (made.admin_a, made.admin_b)]
        if all(b"cluster_state:ok" in text and b"cluster_known_nodes:2" in text for text in states):
            break
        time.sleep(0.01)
    yield made
    a.kill()
    b.kill()


def _start(folder: Path) -> RedisServer:
    for attempt in range(20):
        options = ["--cluster-enabled", "yes", "--cluster-config-file", f"nodes-{next(_files)}.conf"]
        try:
            return RedisServer(folder, options)
        except RuntimeError:
            # The port of its bus is 10000 higher, and may be too high or in use.
            if attempt == 19:
                raise
    raise AssertionError("unreachable")


@pytest.fixture
async def driver(cluster: Cluster) -> AsyncIterator[RedisDriver]:
    async with closing(await open_redis(cluster.url)) as driver:
        yield driver


def slot_of_lock(lock_name: str) -> int:
    return slot_of(f"lock:{lock_name}")


async def test_the_connection_to_a_node_that_has_left_the_cluster_is_closed(cluster: Cluster) -> None:
    async with closing(redis_driver(redis.cluster.RedisCluster(host="127.0.0.1", port=cluster.a.port))) as driver:
        await driver.inspect(InspectQuery(lock_name="any"))
        before, link = asyncio.all_tasks(), driver.link
        # `b` has no slots, as if its last one had just moved away.
        await link._node_at(("127.0.0.1", cluster.b.port)).exchange("ask", [("PING",)])
        (guard,) = asyncio.all_tasks() - before
        await link.nodes()
        await asyncio.wait_for(asyncio.wait({guard}), 10)


async def test_a_master_that_hangs_does_not_delay_a_claim_that_waits_on_another(cluster, lock_name):
    """In a new process: it does not know yet how the servers publish."""
    slot = slot_of_lock(lock_name)
    cluster.begin_move(slot)
    cluster.end_move(slot)
    async with closing(await open_redis(cluster.url)) as driver:
        await grant_of(driver, claim_on(lock_name))
    async with closing(await open_redis(f"redis+cluster://127.0.0.1:{cluster.b.port}")) as driver:
        cluster.a.pause()
        try:
            began = time.monotonic()
            await driver.listen(Heard())
            await refusal_of(driver, claim_on(lock_name, waiter_ttl_ms=20_000))
            assert time.monotonic() - began < 3, "it waited for the master that hangs"
        finally:
            cluster.a.resume()


async def test_a_slot_that_has_moved_is_found_again(cluster, driver, lock_name):
    await grant_of(driver, claim_on(f"{lock_name}:first"))
    slot = slot_of_lock(lock_name)
    cluster.begin_move(slot)
    cluster.end_move(slot)
    claim = claim_on(lock_name)
    grant = await grant_of(driver, claim)
    assert cluster.admin_b.exists(f"lock:{lock_name}") == 1
    assert await driver.renew([renewal_of(claim, grant)]) == ["renewed"]
    page = await driver.inspect(InspectQuery(prefix=lock_name))
    assert {lease.lock_name for lease in page.leases} == {lock_name, f"{lock_name}:first"}
    assert await driver.release([lease_of(claim, grant)]) == [True]


async def test_leases_are_renewed_and_released_while_their_slot_moves(cluster, driver, lock_name):
    claim = claim_on(lock_name)
    grant = await grant_of(driver, claim)
    slot = slot_of_lock(lock_name)
    cluster.begin_move(slot)
    # The lock's data keys do not exist, so a call that names them is answered with TRYAGAIN or ASK.
    assert await driver.renew([renewal_of(claim, grant)]) == ["renewed"]
    cluster.move_keys(slot)
    assert cluster.admin_b.execute_command("CLUSTER", "COUNTKEYSINSLOT", slot) >= 1
    assert await driver.renew([renewal_of(claim, grant, 90_000)]) == ["renewed"]
    refused = await error_of(driver.acquire([claim_on(lock_name)]))
    assert isinstance(refused, StoreError) and refused.retryable, "it is unknown, and neither granted nor refused"
    cluster.end_move(slot)
    assert await driver.renew([renewal_of(claim, grant)]) == ["renewed"]
    later = await refusal_of(driver, claim_on(lock_name))
    assert later.holder is not None and later.holder.fencing_token == grant.fencing_token
    assert await driver.release([lease_of(claim, grant)]) == [True]
    assert (await grant_of(driver, claim_on(lock_name))).fencing_token > grant.fencing_token


async def test_a_waiter_subscribes_again_after_its_slot_has_moved(cluster, driver, lock_name):
    heard = Heard()
    await driver.listen(heard)
    holder = claim_on(lock_name)
    grant = await grant_of(driver, holder)
    waiter = claim_on(lock_name, waiter_ttl_ms=60_000)
    await refusal_of(driver, waiter)
    await heard.wake_of(waiter)  # Subscribed: from now on it would not miss a grant.
    slot = slot_of_lock(lock_name)
    cluster.begin_move(slot)
    cluster.move_keys(slot)
    cluster.end_move(slot)
    await heard.until(lambda: bool(heard.causes))
    again = Heard()
    await driver.listen(again)
    [answer] = await driver.acquire([waiter])
    assert not isinstance(answer, Exception)
    assert await driver.release([lease_of(holder, grant)]) == [True]
    assert (await again.grant_of(waiter)).fencing_token > grant.fencing_token


async def test_tagged_names_keep_their_slot_and_all_keys_of_a_lock_are_in_one(cluster, driver, unique_name):
    tag = unique_name("tag")
    for name in (f"{{{tag}}}:1", f"{{}}{tag}}}", f"}}{tag}{{", f"{tag}}}x{{y}}", f"{{{tag}"):
        reader = claim_on(name, mode="shared")
        await grant_of(driver, reader)
        await refusal_of(driver, claim_on(name, waiter_ttl_ms=5_000))
        page = await driver.inspect(InspectQuery(lock_name=name))
        assert (len(page.leases), len(page.waiters)) == (1, 1), name


async def test_every_kind_of_client_finds_the_cluster(cluster, unique_name):
    name = unique_name("lock")
    node = redis.cluster.ClusterNode("127.0.0.1", cluster.a.port)
    clients = [
        redis.asyncio.RedisCluster(host="127.0.0.1", port=cluster.a.port),
        redis.RedisCluster(host="127.0.0.1", port=cluster.a.port),
        redis.RedisCluster(startup_nodes=[node]),
    ]
    for at, client in enumerate(clients):
        async with closing(redis_driver(client)) as driver:
            await grant_of(driver, claim_on(f"{name}:{at}"))
            assert driver.capabilities.groups is False


async def test_a_single_server_is_no_cluster_and_a_cluster_has_no_replicas_option(redis_url, cluster, lock_name):
    async with closing(await open_redis(redis_url.replace("redis://", "redis+cluster://"))) as driver:
        error = await error_of(driver.acquire([claim_on(lock_name)]))
        assert isinstance(error, StoreError) and not error.retryable and "no node of a Cluster" in str(error)
    client = redis.asyncio.RedisCluster(host="127.0.0.1", port=cluster.a.port)
    with pytest.raises(UnsupportedError, match="min-replicas-to-write"):
        redis_driver(client, replicas=1)
    with pytest.raises(InvalidArgumentError):
        redis_driver(redis.Redis.from_url(redis_url), replicas=0)


# The last test: it kills a server of the Cluster.
async def test_one_dead_node_does_not_cost_the_others_their_answer(cluster, driver, unique_name):
    on_b = unique_name("b")
    slot = slot_of_lock(on_b)
    cluster.begin_move(slot)
    cluster.end_move(slot)
    on_a = next(name for name in iter(lambda: unique_name("a"), None) if slot_of_lock(name) != slot)
    for answer in await driver.acquire([claim_on(on_a), claim_on(on_b)]):
        assert isinstance(answer, Grant)
    cluster.b.kill()
    # Before node a has noticed: then it serves nothing, because a slot is missing.
    served, failed = await driver.acquire([claim_on(on_a), claim_on(on_b)])
    assert isinstance(failed, StoreError) and failed.retryable
    assert isinstance(served, Refusal)


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_client_that_reads_from_replicas_does_not_make_the_drivers_connections_read_only(
    cluster: Cluster, kind: str
) -> None:
    """A demoted master would answer them from its old data instead of saying where the slot is now."""
    name, port = f"reads-{kind}", cluster.a.port
    client: Any
    if kind == "async":
        client = redis.asyncio.RedisCluster(host="127.0.0.1", port=port, read_from_replicas=True, client_name=name)
        await client.initialize()
    else:
        client = redis.cluster.RedisCluster(host="127.0.0.1", port=port, read_from_replicas=True, client_name=name)
    async with closing(redis_driver(client)) as driver:
        before = {each["id"] for each in cluster.admin_a.client_list()}
        claim = claim_on(f"reads-{kind}")
        grant = await grant_of(driver, claim)
        opened = [each for each in cluster.admin_a.client_list() if each["id"] not in before and each["name"] == name]
        assert opened and not any("r" in each["flags"] for each in opened)
        await driver.release([lease_of(claim, grant)])
    if kind == "async":
        await client.close()
    else:
        client.close()


@pytest.mark.parametrize("how", ["a listener that raises", "-W error"])
async def test_a_warning_that_is_raised_ends_no_claim_that_waits_on_a_cluster(how, cluster, lock_name):
    def raises(warning):
        raise ZeroDivisionError(warning)

    options = {"on_warning": raises} if how == "a listener that raises" else {}
    cluster.admin_a.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            client = redis.asyncio.RedisCluster(host="127.0.0.1", port=cluster.a.port)
            driver = redis_driver(client, **options)
            async with closing(driver), DistributedLock(driver) as lock, DistributedLock(driver) as other:
                async with lock.lock(lock_name):
                    waiting = asyncio.ensure_future(other.acquire(lock_name, blocking_timeout_seconds=30))
                    while not (await lock.inspect(lock_name)).waiters:
                        await asyncio.sleep(0.01)
                assert await asyncio.wait_for(waiting, 10)
    finally:
        cluster.admin_a.config_set("maxmemory-policy", "noeviction")
