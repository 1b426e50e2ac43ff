"""Locks of other clients on the same keys, and the settings of the client that is passed."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
from typing import Any, AsyncIterator, Callable

import pytest
import redis
import redis.asyncio
import redis.asyncio.lock
import redis.exceptions
from holdfast.core.driver import ANY_TOKEN, Grant, InspectQuery, LeaseRef, Refusal
from holdfast.drivers.redis import RedisDriver, redis_driver
from holdfast.errors import InvalidArgumentError, StoreError

from support.redis_drivers import claim_on, closing, error_of, grant_of, lease_of, refusal_of, renewal_of


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Any]:
    client = redis.asyncio.Redis.from_url(redis_url)
    yield client
    await client.close(close_connection_pool=True)


@pytest.fixture
async def driver(client: Any) -> AsyncIterator[RedisDriver]:
    async with closing(redis_driver(client)) as driver:
        yield driver


async def test_a_lease_is_a_plain_string_key_with_a_time_to_live(driver, client, lock_name):
    claim = claim_on(lock_name, ttl_ms=45_000, metadata={"job": "żółw"})
    grant = await grant_of(driver, claim)
    stored = (await client.get(f"lock:{lock_name}")).decode()
    parts = [claim.claim_id, grant.fencing_token, grant.acquired_at_ms, 45_000, "python", {"job": "żółw"}]
    assert json.loads(stored) == parts
    assert 0 < await client.pttl(f"lock:{lock_name}") <= 45_000
    assert await client.exists(f"holdfast:{{lock:{lock_name}}}:d", f"holdfast:{{lock:{lock_name}}}:o") == 0
    assert await driver.release([lease_of(claim, grant)]) == [True]
    assert await client.exists(f"lock:{lock_name}") == 0


async def test_redis_pys_own_lock_and_ours_exclude_each_other(driver, client, lock_name):
    theirs = redis.asyncio.lock.Lock(client, f"lock:{lock_name}", timeout=30)
    assert await theirs.acquire(blocking=False)
    refusal = await refusal_of(driver, claim_on(lock_name))
    assert refusal.holder is not None and refusal.holder.holder_id == "another client"
    await theirs.release()
    claim = claim_on(lock_name)
    grant = await grant_of(driver, claim)
    assert not await theirs.acquire(blocking=False)
    await driver.release([lease_of(claim, grant)])
    assert await theirs.acquire(blocking=False)
    await theirs.release()


async def test_redis_pys_synchronous_lock_and_ours_exclude_each_other(driver, redis_url, lock_name):
    with redis.Redis.from_url(redis_url) as client:
        with client.lock(f"lock:{lock_name}", timeout=30):
            await refusal_of(driver, claim_on(lock_name))
        claim = claim_on(lock_name)
        grant = await grant_of(driver, claim)
        assert not client.lock(f"lock:{lock_name}", timeout=30).acquire(blocking=False)
        await driver.release([lease_of(claim, grant)])


async def test_a_stale_lock_of_redis_py_cannot_release_ours(driver, client, lock_name):
    theirs = redis.asyncio.lock.Lock(client, f"lock:{lock_name}", timeout=0.05)
    assert await theirs.acquire(blocking=False)
    await asyncio.sleep(0.1)
    claim = claim_on(lock_name)
    grant = await grant_of(driver, claim)
    with pytest.raises(redis.exceptions.LockError):
        await theirs.release()
    assert await driver.renew([renewal_of(claim, grant)]) == ["renewed"]


@pytest.mark.parametrize("write", ["list", "hash", "bytes"])
async def test_a_value_of_any_other_type_is_the_lock_of_another_client(driver, client, lock_name, write):
    key = f"lock:{lock_name}"
    if write == "list":
        await client.lpush(key, "x")
    elif write == "hash":
        await client.hset(key, "a", "b")
    else:
        await client.set(key, b"\xff\xfe\x00 not text")
    claim = claim_on(lock_name)
    refusal = await refusal_of(driver, claim)
    assert refusal.ask_again_ms is not None, "it is released without a message, so waiters look at it"
    assert await driver.release([LeaseRef(lock_name, claim.claim_id, 1)]) == [False]
    page = await driver.inspect(InspectQuery(lock_name=lock_name))
    assert [lease.holder_id for lease in page.leases] == ["another client"]
    assert await client.exists(key) == 1
    await client.delete(key)
    await grant_of(driver, claim)


async def test_a_client_that_decodes_its_replies_sees_the_same(redis_url, client, lock_name):
    decoding = redis.asyncio.Redis.from_url(redis_url, decode_responses=True, encoding="latin-1")
    await client.set(f"lock:{lock_name}", b"\xff")
    async with closing(redis_driver(decoding)) as driver:
        await refusal_of(driver, claim_on(lock_name))
        await client.delete(f"lock:{lock_name}")
        claim = claim_on(lock_name, metadata={"name": "żółw 🐢"})
        await grant_of(driver, claim)
        [lease] = (await driver.inspect(InspectQuery(lock_name=lock_name))).leases
        assert lease.metadata == {"name": "żółw 🐢"}
    await decoding.close(close_connection_pool=True)


async def test_the_driver_leaves_the_pool_of_the_client_alone(redis_url, lock_name):
    pool = redis.asyncio.BlockingConnectionPool.from_url(redis_url, max_connections=1, timeout=1)
    client = redis.asyncio.Redis(connection_pool=pool)
    taken = await pool.get_connection("the application has it")
    async with closing(redis_driver(client)) as driver:
        await grant_of(driver, claim_on(lock_name))
    await pool.release(taken)
    assert await client.exists(f"lock:{lock_name}") == 1, "the client works after the driver was closed"
    await client.close(close_connection_pool=True)


async def test_a_client_that_is_used_in_another_event_loop_works(redis_url, lock_name):
    client = redis.asyncio.Redis.from_url(redis_url)
    await client.ping()

    def elsewhere() -> None:
        async def use() -> None:
            async with closing(redis_driver(client)) as driver:
                await grant_of(driver, claim_on(lock_name))

        asyncio.run(use())

    await asyncio.get_running_loop().run_in_executor(None, elsewhere)
    assert await client.exists(f"lock:{lock_name}") == 1
    await client.close(close_connection_pool=True)


async def test_a_driver_survives_a_change_of_its_event_loop(redis_url, unique_name: Callable[[str], str]):
    """As with a lock of a module, and `asyncio.run` more than once."""

    def elsewhere() -> None:
        driver = redis_driver(redis.asyncio.Redis.from_url(redis_url))

        async def use(last: bool) -> None:
            await grant_of(driver, claim_on(unique_name("lock")))
            if last:
                await driver.close()

        for last in (False, True):
            asyncio.run(use(last))

    await asyncio.get_running_loop().run_in_executor(None, elsewhere)


@pytest.mark.parametrize("kind", ["asyncio", "sync"])
def test_a_forked_process_has_connections_of_its_own(redis_url, kind, unique_name: Callable[[str], str]):
    """On a shared one, each process would read replies to the other, which say "granted"."""
    client = (redis.asyncio.Redis if kind == "asyncio" else redis.Redis).from_url(redis_url)
    driver = redis_driver(client)
    held = unique_name("lock")

    async def hold() -> None:
        await grant_of(driver, claim_on(held))

    async def use() -> None:
        for at in range(100):
            await refusal_of(driver, claim_on(held))
            claim = claim_on(unique_name("lock"))
            assert await driver.release([lease_of(claim, await grant_of(driver, claim))]) == [True]

    asyncio.run(hold())
    child = multiprocessing.get_context("fork").Process(target=lambda: asyncio.run(use()))
    child.start()
    asyncio.run(use())
    child.join(30)
    assert child.exitcode == 0


async def test_what_is_no_client_of_redis_py_is_refused(lock_name):
    for wrong in (None, object(), "redis://localhost"):
        with pytest.raises(InvalidArgumentError, match="client must be a client of redis-py"):
            redis_driver(wrong)


@pytest.mark.parametrize("prefix", ["holdfast:", "holdfast:x", "\0", "\ud800", 3], ids=map(str, range(5)))
async def test_a_prefix_that_reaches_the_drivers_own_keys_is_refused(client, prefix):
    with pytest.raises(InvalidArgumentError):
        redis_driver(client, prefix=prefix)


async def test_names_under_the_drivers_own_keys_are_refused_and_others_are_not(client, lock_name):
    async with closing(redis_driver(client, prefix="")) as driver:
        error, grant = await driver.acquire([claim_on("holdfast:token"), claim_on(lock_name)])
        assert isinstance(error, InvalidArgumentError)
        assert await client.exists(lock_name) == 1
        assert isinstance(await error_of(driver.release([lease_of(claim_on("holdfast:x"), grant)])), Exception)
        await client.delete(lock_name)


async def test_without_a_prefix_a_key_that_is_no_lock_is_not_taken_by_force(client, lock_name):
    await client.set(lock_name, "precious")
    async with closing(redis_driver(client, prefix="")) as driver:
        error = await error_of(driver.acquire([claim_on(lock_name, force_up_to=ANY_TOKEN)]))
        assert "cannot be taken by force" in str(error)
    assert await client.get(lock_name) == b"precious"
    await client.delete(lock_name)


async def test_a_second_driver_with_another_prefix_has_other_locks(client, driver, lock_name):
    await grant_of(driver, claim_on(lock_name))
    async with closing(redis_driver(client, prefix="other:")) as other:
        await grant_of(other, claim_on(lock_name))
    assert await client.exists(f"other:{lock_name}") == 1


async def test_a_user_without_a_right_gets_an_error_and_the_other_names_their_answer(own_redis, lock_name):
    server = own_redis()
    admin = redis.asyncio.Redis.from_url(server.url)
    rules = ["on", ">secret-word", "resetkeys", "~lock:mine:*", "~holdfast:*", "&holdfast:*", "+@all"]
    await admin.execute_command("ACL", "SETUSER", "limited", *rules)
    limited = redis.asyncio.Redis(port=server.port, username="limited", password="secret-word")
    async with closing(redis_driver(limited)) as driver:
        first, second = await driver.acquire([claim_on(f"mine:{lock_name}"), claim_on(f"theirs:{lock_name}")])
        assert not isinstance(first, Exception), first
        assert isinstance(second, StoreError) and not second.retryable and "lacks a right" in str(second)
        assert "secret-word" not in repr(second) and "secret-word" not in repr(second.__cause__)
    await admin.close(close_connection_pool=True)


@pytest.mark.parametrize(
    "value",
    ['["x",NaN,1,1,"h"]', '["x",1e999,1,1,"h"]', f'["x",{10**400},1,30000,"h"]', '["x",1,1,1e999,-Infinity,1,"h"]'],
    ids=["NaN", "too large", "long", "shared"],
)
async def test_a_value_with_numbers_that_are_none_is_the_lock_of_another_client(value, driver, client, lock_name):
    """It must not cost the other claims of the list their answers."""
    await client.set(f"lock:{lock_name}", value, px=30_000)
    refused, granted = await driver.acquire([claim_on(lock_name), claim_on(f"{lock_name}:free")])
    assert isinstance(refused, Refusal) and isinstance(granted, Grant)
    assert refused.holder is not None and refused.holder.holder_id == "another client"
    page = await driver.inspect(InspectQuery(lock_name=lock_name))
    assert [lease.holder_id for lease in page.leases] == ["another client"]
    await client.delete(f"lock:{lock_name}", f"lock:{lock_name}:free")
