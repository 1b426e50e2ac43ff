"""Nodes that are down, silent, slow, restarted or counted twice."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Callable, List, Sequence

import pytest
import redis
import redis.asyncio
from holdfast.core.driver import ANY_TOKEN, InspectQuery, LeaseRef
from holdfast.drivers.redlock import NodeError, RedisWarning, RedlockDriver, open_redlock, redlock_driver
from holdfast.errors import InvalidArgumentError, StoreError, UnsupportedError

from support.redis_drivers import (
    NODE_DRIVER,
    Heard,
    claim_on,
    closing,
    error_of,
    grant_of,
    in_node,
    lease_of,
    refusal_of,
    renewal_of,
    until,
)
from support.tcp_proxy import TcpProxy


def clients_at(ports: Sequence[int]) -> List[Any]:
    return [redis.asyncio.Redis(host="127.0.0.1", port=port) for port in ports]


def driver_at(ports: Sequence[int], **options: Any) -> RedlockDriver:
    return redlock_driver(clients_at(ports), **{"persistent": True, "node_timeout_seconds": 10, **options})


@pytest.fixture
def ports(redis_urls: List[str]) -> List[int]:
    return [int(url.rpartition(":")[2]) for url in redis_urls]


def stored_at(port: int, lock_name: str) -> bool:
    with redis.Redis(port=port) as client:
        return client.exists(f"lock:{lock_name}") == 1


async def until_gone(ports: Sequence[int], lock_name: str) -> None:
    async def are_gone() -> bool:
        return not any(stored_at(port, lock_name) for port in ports)

    await until(are_gone, f"a lease on {lock_name} was left behind")


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
async def test_a_lock_over_any_number_of_nodes(ports, count, lock_name):
    async with closing(driver_at(ports[:count])) as driver, closing(driver_at(ports[:count])) as rival:
        claim = claim_on(lock_name)
        grant = await grant_of(driver, claim)
        refused = await refusal_of(rival, claim_on(lock_name))
        assert refused.holder is not None and refused.holder.fencing_token == grant.fencing_token
        assert await driver.renew([renewal_of(claim, grant)]) == ["renewed"]
        assert await driver.release([lease_of(claim, grant)]) == [True]
        assert await driver.release([lease_of(claim, grant)]) == [False]
        assert (await grant_of(rival, claim_on(lock_name))).fencing_token > grant.fencing_token


async def test_a_minority_that_is_down_costs_nothing_and_a_majority_is_an_error(ports, lock_name):
    failures: List[NodeError] = []
    async with closing(driver_at([*ports[:2], 1], on_node_error=failures.append)) as driver:
        claim = claim_on(lock_name)
        grant = await grant_of(driver, claim)
        assert await driver.renew([renewal_of(claim, grant)]) == ["renewed"]
        assert [lease.claim_id for lease in (await driver.inspect(InspectQuery(lock_name=lock_name))).leases] == [
            claim.claim_id
        ]
        assert await driver.release([lease_of(claim, grant)]) == [True]
        assert {failure.node for failure in failures} == {"node 3"}
    async with closing(driver_at([ports[0], 1, 2])) as driver:
        error = await error_of(driver.acquire([claim_on(lock_name)]))
        assert isinstance(error, StoreError) and error.retryable
        assert "2 of 3 nodes failed, 2 are needed" in str(error) and "node 2" in str(error)
    # The vote that it got is released, also because the error does not say whether there was one.
    await until_gone(ports[:1], lock_name)


async def test_a_silent_node_is_not_waited_for(ports, unique_name):
    async with TcpProxy(ports[2]) as proxy:
        proxy.go_silent()
        async with closing(driver_at([ports[0], ports[1], proxy.port], node_timeout_seconds=30)) as driver:
            for _ in range(3):
                claim = claim_on(unique_name("lock"))
                grant = await asyncio.wait_for(grant_of(driver, claim), 20)
                assert await asyncio.wait_for(driver.release([lease_of(claim, grant)]), 20) == [True]
            proxy.cut()


async def test_a_vote_that_arrives_after_its_release_is_released_again(ports, lock_name):
    """The release reaches the node first: over another connection, or because the vote was resent."""
    async with TcpProxy(ports[2]) as proxy:
        async with closing(driver_at([ports[0], ports[1], proxy.port])) as driver:
            await grant_of(driver, claim_on(f"{lock_name}:before"))
            claim = claim_on(lock_name)
            proxy.hold("to_server")
            grant = await grant_of(driver, claim)
            released = asyncio.ensure_future(driver.release([lease_of(claim, grant)]))
            assert await released == [True]
            proxy.release("to_server")
            await until_gone(ports[:3], lock_name)


async def test_a_lost_vote_leaves_nothing_behind(ports, lock_name):
    """A rival has a minority, so this claim gets one, too. Both are released, also where no answer came."""
    with redis.Redis(port=ports[0]) as one, redis.Redis(port=ports[1]) as two:
        one.set(f"lock:{lock_name}", "theirs")
        two.set(f"lock:{lock_name}", "theirs")
        async with closing(driver_at(ports[:3])) as driver:
            refused = await refusal_of(driver, claim_on(lock_name))
            assert refused.holder is not None and refused.holder.holder_id == "another client"
            await until_gone(ports[2:3], lock_name)
            one.delete(f"lock:{lock_name}")
            two.delete(f"lock:{lock_name}")
            await grant_of(driver, claim_on(lock_name))


async def test_a_claim_that_is_withdrawn_during_its_vote_is_not_granted(ports, lock_name):
    async with TcpProxy(ports[1]) as second, TcpProxy(ports[2]) as third:
        async with closing(driver_at([ports[0], second.port, third.port])) as driver:
            await grant_of(driver, claim_on(f"{lock_name}:before"))
            second.hold("to_client")
            third.hold("to_client")
            claim = claim_on(lock_name)
            asked = asyncio.ensure_future(error_of(driver.acquire([claim])))
            await asyncio.sleep(0.05)
            withdrawn = asyncio.ensure_future(driver.release([LeaseRef(lock_name, claim.claim_id)]))
            await asyncio.sleep(0.05)
            second.release("to_client")
            third.release("to_client")
            assert "was withdrawn" in str(await asked)
            await withdrawn
            await until_gone(ports[:3], lock_name)


async def test_a_node_that_restarts_empty_does_not_vote_until_the_longest_lease_has_ended(own_redis, lock_name):
    servers = [own_redis() for _ in range(3)]
    ports = [server.port for server in servers]
    options = {"persistent": False, "longest_ttl_seconds": 1.2}
    # For an hour a restarted node does not vote: the refusal does not depend on how soon it is asked for.
    cautious_options = {"persistent": False, "longest_ttl_seconds": 3_600}
    async with closing(driver_at(ports, **options)) as holder, closing(driver_at(ports, **options)) as rival:
        await until_granted(holder, claim_on(f"{lock_name}:warm up", ttl_ms=100))
        claim = claim_on(lock_name, ttl_ms=1_200)
        first, second, third = servers
        third.kill()
        # The first may not have voted for the warm-up, which needed two of them.
        token = await until_granted(holder, claim)
        # The third does not have the lease, and now the second forgets it: together they are a majority.
        second.kill()
        restarting = time.monotonic()
        second.start()
        third.start()
        # They vote when the lease has ended.
        later = await until_granted(rival, claim_on(lock_name, ttl_ms=1_000))
        assert later > token
        assert time.monotonic() - restarting >= 1.2 * 0.99
        second.kill()
        third.kill()
        second.start()
        third.start()
        async with closing(driver_at(ports, **cautious_options)) as cautious:
            refused = await cautious.acquire([claim_on(lock_name, ttl_ms=1_000)])
            assert "does not vote" in str(refused[0]), refused


async def until_granted(driver: RedlockDriver, claim: Any) -> int:
    async def is_granted() -> bool:
        nonlocal answer
        [answer] = await driver.acquire([claim])
        return hasattr(answer, "fencing_token")

    answer: Any = None
    await until(is_granted, "it was never granted")
    return int(answer.fencing_token)


async def test_a_server_under_two_names_has_one_vote(ports, lock_name):
    two_names = [redis.asyncio.Redis(host=host, port=ports[0]) for host in ("127.0.0.1", "localhost")]
    for clients in (two_names, [*two_names, *clients_at(ports[1:2])]):
        driver = redlock_driver(clients, persistent=True, node_timeout_seconds=10, quorum=len(clients))
        async with closing(driver):
            error = await error_of(driver.acquire([claim_on(lock_name)]))
            assert "it is the same server as node" in str(error)
            await until_gone(ports[:2], lock_name)
    [client] = clients_at(ports[:1])
    with pytest.raises(InvalidArgumentError, match="node 2 has the client of node 1"):
        redlock_driver([client, client])


async def test_a_node_with_a_replica_is_reported_once(own_redis, unique_name):
    master = own_redis("--repl-diskless-sync-delay", "0")
    replica = own_redis("--replicaof", f"127.0.0.1 {master.port}")

    async def follows() -> bool:
        with redis.Redis(port=replica.port) as client:
            return bool(client.info("replication")["master_link_status"] == "up")

    await until(follows, "the replica does not follow")
    warned: List[RedisWarning] = []
    async with closing(driver_at([master.port], on_warning=warned.append)) as driver:
        for _ in range(3):
            await grant_of(driver, claim_on(unique_name("lock")))
    assert [warning.code for warning in warned] == ["REDLOCK_REPLICAS"]
    place = f"redis://127.0.0.1:{master.port}"
    assert warned[0].message.startswith(f"Redlock: node 1 at {place} has 1 replica. "), warned
    with pytest.warns(RuntimeWarning, match=f"holdfast: Redlock: node 1 at {place} has 1 replica.*independent servers"):
        async with closing(driver_at([master.port])) as driver:
            await grant_of(driver, claim_on(unique_name("lock")))


async def test_what_majorities_cannot_do_is_refused(ports, lock_name):
    async with closing(driver_at(ports[:3], persistent=False, longest_ttl_seconds=30)) as driver:
        assert driver.longest_ttl_ms == 30_000
        for claim, kind in (
            (claim_on(lock_name, mode="shared", limit=2), UnsupportedError),
            (claim_on(lock_name, force_up_to=ANY_TOKEN), UnsupportedError),
            (claim_on(lock_name, ttl_ms=30_001), InvalidArgumentError),
        ):
            assert isinstance(await error_of(driver.acquire([claim])), kind)
        renewal = renewal_of(claim_on(lock_name), type("G", (), {"fencing_token": 1})(), 30_001)
        assert isinstance(await error_of(driver.renew([renewal])), InvalidArgumentError)
        with pytest.raises(UnsupportedError):
            await driver.consume([])


@pytest.mark.parametrize("quorum", [0, 1, 4, 2.0, True])
def test_a_quorum_below_the_majority_or_above_all_is_refused(quorum):
    with pytest.raises(InvalidArgumentError):
        driver_at([1, 2, 3], quorum=quorum)


def test_a_cluster_is_no_node():
    cluster = redis.asyncio.RedisCluster(host="127.0.0.1", port=1)
    with pytest.raises(InvalidArgumentError, match="node 2 is a Redis Cluster"):
        redlock_driver([*clients_at([1]), cluster])
    for wrong in ([], None, "redis://x", [object()]):
        with pytest.raises(InvalidArgumentError):
            redlock_driver(wrong)


async def test_waiters_are_woken_by_a_release_of_another_process(ports, lock_name):
    async with closing(driver_at(ports[:3])) as driver, closing(driver_at(ports[:3])) as other:
        heard = Heard()
        stop = await driver.listen(heard)
        holder, waiter = claim_on(lock_name), claim_on(lock_name, waiter_ttl_ms=20_000)
        grant = await grant_of(other, holder)
        refused = await refusal_of(driver, waiter)
        assert refused.ask_again_ms is not None
        await other.release([lease_of(holder, grant)])
        await heard.wake_of(waiter)
        await grant_of(driver, waiter)
        await stop()


async def test_waiters_are_woken_also_when_a_node_is_down(ports, lock_name):
    async with closing(driver_at([ports[0], ports[1], 1])) as driver, closing(driver_at(ports[:2])) as other:
        heard = Heard()
        await driver.listen(heard)
        holder = claim_on(lock_name)
        grant = await grant_of(other, holder)
        await other.release([lease_of(holder, grant)])
        await heard.wake_of(holder)
    async with closing(driver_at([ports[0], 1, 2])) as driver:
        with pytest.raises(StoreError):
            await driver.listen(Heard())


async def test_losing_a_majority_of_the_subscriptions_is_reported(ports):
    async with TcpProxy(ports[1]) as second, TcpProxy(ports[2]) as third:
        async with closing(driver_at([ports[0], second.port, third.port])) as driver:
            heard = Heard()
            await driver.listen(heard)
            second.cut()
            third.cut()
            await heard.until(lambda: bool(heard.causes))
            await driver.listen(Heard())


async def test_node_and_python_exclude_each_other(ports, node_worker: Callable[..., Any], lock_name):
    url = "redlock://" + ",".join(f"127.0.0.1:{port}" for port in ports[:3]) + "?persistent=true"
    worker = await node_worker(NODE_DRIVER)
    await worker.call("open", url)
    async with closing(await open_redlock(url)) as driver:
        ours = claim_on(lock_name, metadata={"from": "python"})
        grant = await grant_of(driver, ours)
        [refused] = await worker.call("acquire", [in_node(claim_on(lock_name))])
        assert refused["granted"] is False and refused["holder"]["metadata"] == {"from": "python"}
        assert refused["holder"]["acquiredAtMs"] == grant.acquired_at_ms
        heard = Heard()
        await driver.listen(heard)
        assert await driver.release([lease_of(ours, grant)]) == [True]
        theirs = claim_on(lock_name)
        [granted] = await worker.call("acquire", [in_node(theirs)])
        assert granted["fencingToken"] > grant.fencing_token
        refusal = await refusal_of(driver, claim_on(lock_name, waiter_ttl_ms=20_000))
        assert refusal.holder is not None and refusal.holder.fencing_token == granted["fencingToken"]
        heard.woken.clear()
        named = {"lockName": lock_name, "claimId": theirs.claim_id, "fencingToken": granted["fencingToken"]}
        assert await worker.call("release", [named]) == [True]
        await heard.wake_of(theirs)
        again = await grant_of(driver, claim_on(lock_name))
        assert again.fencing_token > granted["fencingToken"]
