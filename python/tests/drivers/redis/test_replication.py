"""Replicas that have to confirm, and a master behind Sentinel."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from contextlib import AsyncExitStack
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from holdfast.core.driver import Grant, InspectQuery
from holdfast.drivers.redis import RedisDriver, redis_driver
from holdfast.errors import StoreError

from support.redis_drivers import Heard, claim_on, closing, error_of, grant_of, lease_of, renewal_of, until
from support.tcp_proxy import TcpProxy


async def replicated(own_redis: Any) -> Any:
    master, replica = own_redis("--repl-diskless-sync-delay", "0"), own_redis()
    admin = redis.Redis(port=master.port)
    redis.Redis(port=replica.port).replicaof("127.0.0.1", master.port)

    async def is_ready() -> bool:
        admin.set("warm", "up")
        return bool(admin.execute_command("WAIT", 1, 1_000) == 1)

    await until(is_ready, "the replica never came up")
    return master, replica


@pytest.mark.parametrize("kind", ["asyncio", "sync"])
async def test_a_grant_and_a_renewal_count_only_when_the_replicas_have_them(own_redis, kind, lock_name):
    master, replica = await replicated(own_redis)
    client = (redis.asyncio.Redis if kind == "asyncio" else redis.Redis)(port=master.port)
    impatient = redis_driver(client, replicas=1, replica_wait_seconds=0.2)
    patient = redis_driver(client, replicas=1, replica_wait_seconds=20)
    async with closing(impatient), closing(patient) as driver:
        claim = claim_on(lock_name)
        grant = await grant_of(driver, claim)
        assert redis.Redis(port=replica.port).exists(f"lock:{lock_name}") == 1
        assert await driver.renew([renewal_of(claim, grant)]) == ["renewed"]
        replica.pause()
        try:
            error = await error_of(impatient.renew([renewal_of(claim, grant)]))
            assert isinstance(error, StoreError) and "0 of 1 replicas confirmed" in str(error)
            refused = await error_of(impatient.acquire([claim_on(f"{lock_name}:2")]))
            assert isinstance(refused, StoreError) and refused.retryable
        finally:
            replica.resume()
        assert await driver.release([lease_of(claim, grant)]) == [True]


@pytest.mark.parametrize("kind", ["asyncio", "sync"])
async def test_a_master_behind_sentinel(sentinel, kind, lock_name):
    addresses = [("127.0.0.1", int(url.rpartition(":")[2])) for url in sentinel.urls]
    made = redis.asyncio.sentinel.Sentinel if kind == "asyncio" else redis.sentinel.Sentinel
    client = made(addresses).master_for(sentinel.master_name)
    async with closing(redis_driver(client)) as driver:
        heard = Heard()
        await driver.listen(heard)
        holder, waiter = claim_on(lock_name), claim_on(lock_name, waiter_ttl_ms=20_000)
        grant = await grant_of(driver, holder)
        await driver.acquire([waiter])
        await driver.release([lease_of(holder, grant)])
        granted = await heard.grant_of(waiter)
        assert await driver.release([lease_of(waiter, granted)]) == [True]
        assert driver.place == "the master that Sentinel names"


@pytest.mark.parametrize("kind", ["asyncio", "sync"])
async def test_failure_29_while_no_sentinel_answers_attempts_to_subscribe_leave_no_connection(
    sentinel, kind, unique_name
):
    made = redis.asyncio.sentinel.Sentinel if kind == "asyncio" else redis.sentinel.Sentinel
    name = unique_name("client")
    async with AsyncExitStack() as proxies:
        ports = [int(url.rpartition(":")[2]) for url in sentinel.urls]
        fronts = [await proxies.enter_async_context(TcpProxy(port)) for port in ports]
        addresses = [("127.0.0.1", front.port) for front in fronts]
        client = made(addresses).master_for(sentinel.master_name, client_name=name)
        async with closing(redis_driver(client)) as driver:
            heard = Heard()
            await driver.listen(heard)
            held = claim_on(unique_name("lock"))
            grant = await grant_of(driver, held)
            # As if they were killed: nothing listens at their ports.
            await proxies.aclose()
            await cut_subscription(driver, name)
            await heard.until(lambda: len(heard.causes) == 1)

            async def fails_to_subscribe() -> None:
                with pytest.raises(StoreError):
                    await driver.listen(heard)

            await fails_to_subscribe()
            before = open_sockets(), len(asyncio.all_tasks()), threading.active_count()
            for _ in range(20):
                await fails_to_subscribe()
            await asyncio.sleep(0.2)  # What is closed now is gone in the next turns.
            after = open_sockets(), len(asyncio.all_tasks()), threading.active_count()
            assert all(now <= then + 1 for now, then in zip(after, before)), f"{before} became {after}"
            # The connection for commands is still there.
            assert await driver.release([lease_of(held, grant)]) == [True]


async def cut_subscription(driver: RedisDriver, name: str) -> None:
    (node,) = await driver.link.nodes()
    clients = (await node.command("list the clients", "CLIENT", "LIST", "TYPE", "pubsub")).decode().splitlines()
    (mine,) = [each for each in clients if f" name={name} " in each]
    await node.command("cut the subscription", "CLIENT", "KILL", "ID", mine.split("id=")[1].split(" ")[0])


def open_sockets() -> int:
    targets = []
    for each in os.listdir("/proc/self/fd"):
        try:
            targets.append(os.readlink(f"/proc/self/fd/{each}"))
        except OSError:
            pass  # The one of this listing.
    return sum(target.startswith("socket:") for target in targets)


@pytest.mark.parametrize("kind", ["asyncio", "sync"])
async def test_a_master_behind_sentinel_is_found_after_its_client_was_forgotten(sentinel, kind, lock_name):
    """`redis_driver(sentinel.master_for(…))`: nothing else refers to the pool, which finds the master."""
    addresses = [("127.0.0.1", int(url.rpartition(":")[2])) for url in sentinel.urls]
    made = redis.asyncio.sentinel.Sentinel if kind == "asyncio" else redis.sentinel.Sentinel
    driver = redis_driver(made(addresses).master_for(sentinel.master_name))
    gc.collect()
    await grant_of(driver, claim_on(lock_name))
    await driver.close()


@pytest.mark.parametrize("kind", ["asyncio", "sync"])
@pytest.mark.parametrize("before", ["a look", "a lock"])
async def test_a_client_that_connected_before_its_master_was_demoted_reaches_the_new_one(
    own_redis, kind, before, lock_name
):
    master, replica = await replicated(own_redis)
    async with TcpProxy(master.port) as front:
        client = (redis.asyncio.Redis if kind == "asyncio" else redis.Redis)(port=front.port)
        async with closing(redis_driver(client, on_warning=lambda _: None)) as driver:
            if before == "a lock":
                claim = claim_on(f"{lock_name}:1")
                assert await driver.release([lease_of(claim, await grant_of(driver, claim))]) == [True]
            else:
                # Its connection is open, and has written nothing.
                await driver.inspect(InspectQuery(lock_name=lock_name))
            # The address leads to the new master. Connections to the old one stay open.
            redis.Redis(port=replica.port).replicaof("NO", "ONE")
            redis.Redis(port=master.port).replicaof("127.0.0.1", replica.port)
            front.server_port = replica.port

            async def takes() -> bool:
                [answer] = await answers_of(driver.acquire([claim_on(lock_name)]))
                return isinstance(answer, Grant)

            await until(takes, "the driver never reached the new master")


async def answers_of(answering: Any) -> Any:
    try:
        return await answering
    except StoreError as error:
        assert error.retryable, error
        return [error]
