"""A lease that a quorum renews is written again where it is missing."""

from __future__ import annotations

import asyncio
from typing import Any, List, Sequence

import redis
import redis.asyncio
from holdfast.core.driver import Claim, Grant
from holdfast.drivers.redlock import RedlockDriver, redlock_driver

from support.redis_drivers import claim_on, closing, grant_of, lease_of, refusal_of, renewal_of, until

TTL_SECONDS = 1.2


def driver_at(servers: Sequence[Any]) -> RedlockDriver:
    clients = [redis.asyncio.Redis(host="127.0.0.1", port=server.port) for server in servers]
    return redlock_driver(clients, longest_ttl_seconds=TTL_SECONDS, node_timeout_seconds=10)


def is_stored(server: Any, claim: Claim) -> bool:
    with redis.Redis(port=server.port) as client:
        text = client.get(f"lock:{claim.lock_name}")
        return text is not None and claim.claim_id.encode() in text


async def until_stored(servers: Sequence[Any], claim: Claim, stored: bool) -> None:
    async def are_so() -> bool:
        return all(is_stored(server, claim) is stored for server in servers)

    await until(are_so, f"not all nodes {'have' if stored else 'have ended'} the lease")


async def until_voting(driver: RedlockDriver, servers: Sequence[Any], lock_name: str) -> None:
    """Each node grants: they were asked together, but a vote needs only a quorum."""

    async def all_vote() -> bool:
        claim = claim_on(f"{lock_name}:warm up", ttl_ms=100)
        (answer,) = await driver.acquire([claim])
        if not isinstance(answer, Grant):
            return False
        try:
            await asyncio.wait_for(until_stored(servers, claim, True), 0.05)
        except asyncio.TimeoutError:
            return False
        finally:
            await driver.release([lease_of(claim, answer)])
        return True

    await until(all_vote, "not all nodes vote")


async def test_failure_61_a_lease_that_a_quorum_renews_is_written_again_where_it_is_missing(own_redis, lock_name):
    servers: List[Any] = [own_redis() for _ in range(3)]
    async with closing(driver_at(servers)) as driver:
        await until_voting(driver, servers, lock_name)
        held = claim_on(lock_name, ttl_ms=TTL_SECONDS * 1_000)
        grant = await grant_of(driver, held)
        renewal = renewal_of(held, grant, TTL_SECONDS * 1_000)
        await until_stored(servers, held, True)
        with redis.Redis(port=servers[2].port) as client:
            client.delete(f"lock:{lock_name}")
        assert await driver.renew([renewal]) == ["renewed"]
        await until_stored(servers, held, True)
        # From now on the third node counts.
        servers[0].pause()
        try:
            assert await driver.renew([renewal]) == ["renewed"]
        finally:
            servers[0].resume()
        assert await driver.release([lease_of(held, grant)]) == [True]
        await until_stored(servers, held, False)


async def test_failure_61_no_lease_is_written_on_a_node_that_is_silent_or_has_another_lease(own_redis, lock_name):
    servers: List[Any] = [own_redis() for _ in range(3)]
    async with closing(driver_at(servers)) as driver:
        await until_voting(driver, servers, lock_name)
        held = claim_on(lock_name, ttl_ms=TTL_SECONDS * 1_000)
        grant = await grant_of(driver, held)
        renewal = renewal_of(held, grant, TTL_SECONDS * 1_000)
        await until_stored(servers, held, True)
        rival = claim_on(lock_name, ttl_ms=TTL_SECONDS * 1_000)
        await refusal_of(driver, rival)
        with redis.Redis(port=servers[2].port) as node:
            taken = f'["{rival.claim_id}",1,1,60000,"h"]'.encode()
            node.set(f"lock:{lock_name}", taken, px=60_000)
            assert await driver.renew([renewal]) == ["renewed"]
            await asyncio.sleep(0.1)  # for what the driver may send
            assert node.get(f"lock:{lock_name}") == taken
            # It has forgotten everything, and is silent.
            node.flushall()
            assert await driver.renew([renewal]) == ["renewed"]
            await asyncio.sleep(0.1)  # for what the driver may send
            assert node.exists(f"lock:{lock_name}") == 0

            async def is_repaired() -> bool:
                assert await driver.renew([renewal]) == ["renewed"]
                return is_stored(servers[2], held)

            await until(is_repaired, "it was not repaired after the silence")
        await driver.release([lease_of(held, grant)])


async def test_failure_61_a_lease_is_repaired_by_a_driver_that_did_not_get_it(own_redis, lock_name):
    servers: List[Any] = [own_redis() for _ in range(3)]
    async with closing(driver_at(servers)) as driver, closing(driver_at(servers)) as other:
        await until_voting(driver, servers, lock_name)
        held = claim_on(lock_name, ttl_ms=TTL_SECONDS * 1_000, metadata={"for": "writers"})
        grant = await grant_of(driver, held)
        renewal = renewal_of(held, grant, TTL_SECONDS * 1_000)
        await until_stored(servers, held, True)
        with redis.Redis(port=servers[2].port) as node:
            node.delete(f"lock:{lock_name}")
            assert await other.renew([renewal]) == ["renewed"]
            await until_stored(servers, held, True)
            assert b'{"for":"writers"}' in (node.get(f"lock:{lock_name}") or b"")
            # A release that overtakes the repair leaves nothing behind.
            node.delete(f"lock:{lock_name}")
        async with closing(driver_at(servers)) as releasing:
            assert await releasing.renew([renewal]) == ["renewed"]
            assert await releasing.release([lease_of(held, grant)]) == [True]
            await asyncio.sleep(0.1)  # for what the driver may send
        await until_stored(servers, held, False)
