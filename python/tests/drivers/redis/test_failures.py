"""Lost replies, broken connections, servers that restart, forget scripts or become replicas."""

from __future__ import annotations

import asyncio
from typing import Any, AsyncIterator, Callable

import pytest
import redis
import redis.asyncio
from holdfast.core.driver import Claim, Grant, InspectQuery, LeaseRef, Refusal
from holdfast.drivers._redis.dial import Dial
from holdfast.drivers._redis.wire import Wire
from holdfast.drivers.redis import RedisDriver, open_redis, redis_driver
from holdfast.errors import ClosedError, StoreError

from support.redis_drivers import (
    KINDS,
    Heard,
    claim_on,
    client_at,
    closing,
    error_of,
    grant_of,
    lease_of,
    refusal_of,
    renewal_of,
    until,
)
from support.tcp_proxy import TcpProxy


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


@pytest.fixture
async def proxy(redis_url: str) -> AsyncIterator[TcpProxy]:
    async with TcpProxy(port_of(redis_url)) as proxy:
        yield proxy


@pytest.fixture(params=KINDS)
async def driver(request: Any, proxy: TcpProxy) -> AsyncIterator[RedisDriver]:
    """Behind the proxy, with a client that retries by itself."""
    retries = redis.asyncio.retry.Retry if request.param == "asyncio" else redis.retry.Retry
    backoff = redis.backoff.NoBackoff()
    errors = [redis.exceptions.ConnectionError, redis.exceptions.TimeoutError]
    client = client_at(request.param, proxy.port, retry=retries(backoff, 3), retry_on_error=errors)
    seconds = getattr(request.function, "command_timeout_seconds", 30)
    async with closing(redis_driver(client, command_timeout_seconds=seconds)) as driver:
        yield driver


def gives_up_after_a_second(test: Any) -> Any:
    test.command_timeout_seconds = 1
    return test


async def answer_of(driver: RedisDriver, claim: Claim) -> Any:
    """On a busy machine a second may be too short for an answer. Then the claim is repeated."""
    while True:
        try:
            [answer] = await driver.acquire([claim])
        except StoreError as error:
            answer = error
        if not isinstance(answer, StoreError):
            return answer


@pytest.fixture
async def direct(redis_url: str) -> AsyncIterator[RedisDriver]:
    async with closing(await open_redis(redis_url)) as driver:
        yield driver


async def test_a_release_whose_reply_is_lost_is_unknown_and_is_not_sent_again(driver, proxy, direct, lock_name):
    claim = claim_on(lock_name)
    grant = await grant_of(driver, claim)
    cut = proxy.cut_after("release")
    error = await error_of(driver.release([lease_of(claim, grant)]))
    # A second copy would have been answered with "no lease", which is a lost lock.
    assert isinstance(error, StoreError) and error.retryable
    assert cut.is_set()
    await until_free(direct, lock_name)
    assert await driver.release([lease_of(claim, grant)]) == [False]


async def until_free(driver: RedisDriver, lock_name: str) -> None:
    async def is_free() -> bool:
        return not (await driver.inspect(InspectQuery(lock_name=lock_name))).leases

    await until(is_free, f"{lock_name} was never free")


async def test_asking_again_after_a_lost_reply_gets_the_same_lease(driver, proxy, direct, lock_name):
    claim = claim_on(lock_name)
    proxy.cut_after("acquire")
    assert isinstance(await error_of(driver.acquire([claim])), StoreError)
    [lease] = await until_leases(direct, lock_name)
    assert (await grant_of(driver, claim)).fencing_token == lease.fencing_token
    await refusal_of(direct, claim_on(lock_name))


async def until_leases(driver: RedisDriver, lock_name: str) -> Any:
    async def is_held() -> bool:
        return bool((await driver.inspect(InspectQuery(lock_name=lock_name))).leases)

    await until(is_held, f"{lock_name} was never held")
    return (await driver.inspect(InspectQuery(lock_name=lock_name))).leases


@gives_up_after_a_second
async def test_a_late_reply_is_never_taken_for_the_reply_to_another_command(driver, proxy, direct, lock_name):
    """The reply to a claim that was given up says "granted". The next command must not read it."""
    holder = claim_on(lock_name)
    grant = await grant_of(direct, holder)
    assert isinstance(await answer_of(driver, claim_on(lock_name)), Refusal)
    proxy.hold("to_client")
    error = await error_of(driver.acquire([claim_on(f"{lock_name}:other")]))
    assert isinstance(error, StoreError) and "did not answer within 1000 ms" in str(error)
    proxy.release("to_client")
    for _ in range(3):
        assert isinstance(await answer_of(driver, claim_on(lock_name)), Refusal)
    assert await direct.renew([renewal_of(holder, grant)]) == ["renewed"]


@gives_up_after_a_second
async def test_a_silent_server_fails_all_calls_in_time_and_not_one_after_the_other(driver, proxy, lock_name):
    assert isinstance(await answer_of(driver, claim_on(lock_name)), Grant)
    proxy.go_silent()
    loop = asyncio.get_running_loop()
    began = loop.time()
    calls = [error_of(driver.acquire([claim_on(f"{lock_name}:{at}")])) for at in range(50)]
    errors = await asyncio.gather(*calls)
    assert all(isinstance(error, StoreError) and error.retryable for error in errors)
    # One after the other, they would have taken 50 seconds.
    assert loop.time() - began < 40
    proxy.release("to_server")
    proxy.release("to_client")
    proxy.cut()
    assert isinstance(await answer_of(driver, claim_on(f"{lock_name}:after")), Grant)


async def test_a_connection_that_was_closed_while_idle_costs_no_call(driver, proxy, unique_name):
    for _ in range(3):
        await grant_of(driver, claim_on(unique_name("lock")))
        proxy.cut()
        await asyncio.sleep(0.1)


async def test_a_broken_subscription_is_reported_and_can_be_made_again(driver, proxy, direct, lock_name):
    heard = Heard()
    await driver.listen(heard)
    proxy.cut()
    await heard.until(lambda: bool(heard.causes))
    assert isinstance(heard.causes[0], StoreError)
    again = Heard()
    await driver.listen(again)
    holder, waiter = claim_on(lock_name), claim_on(lock_name, waiter_ttl_ms=20_000)
    grant = await grant_of(direct, holder)
    await refusal_of(driver, waiter)
    await direct.release([lease_of(holder, grant)])
    assert (await again.grant_of(waiter)).fencing_token > grant.fencing_token
    assert not heard.grants


async def test_a_subscription_that_cannot_be_made_raises(redis_url, unique_name):
    async with TcpProxy(port_of(redis_url)) as proxy:
        proxy.go_silent()
        client = client_at("asyncio", proxy.port)
        async with closing(redis_driver(client, command_timeout_seconds=0.3)) as driver:
            with pytest.raises(StoreError):
                await driver.listen(Heard())


@pytest.mark.parametrize("kind", KINDS)
async def test_a_server_that_forgot_the_scripts_gets_them_again(own_redis, kind, lock_name):
    server = own_redis()
    admin = redis.Redis(port=server.port)
    async with closing(redis_driver(client_at(kind, server.port))) as driver:
        for at in range(3):
            claim = claim_on(f"{lock_name}:{at}")
            admin.script_flush()
            grant = await grant_of(driver, claim)
            admin.script_flush()
            assert await driver.renew([renewal_of(claim, grant)]) == ["renewed"]
            admin.script_flush()
            assert await driver.release([lease_of(claim, grant)]) == [True]
        many = [claim_on(f"{lock_name}:many:{at}") for at in range(300)]
        admin.script_flush()
        assert all(isinstance(answer, Grant) for answer in await driver.acquire(many))


async def test_tokens_rise_after_the_server_lost_everything(own_redis, lock_name):
    server = own_redis()
    async with closing(await open_redis(server.url)) as driver:
        before = await grant_of(driver, claim_on(lock_name))
        await driver.listen(heard := Heard())
        server.kill()
        await heard.until(lambda: bool(heard.causes))
        assert isinstance(await error_of(driver.acquire([claim_on(lock_name)])), StoreError)
        server.start()
        after = await grant_of(driver, claim_on(lock_name))
        assert after.fencing_token > before.fencing_token


async def test_a_replica_neither_grants_nor_refuses_nor_loses(own_redis, lock_name):
    master, replica = own_redis("--repl-diskless-sync-delay", "0"), own_redis()
    admin = redis.Redis(port=replica.port)
    held = claim_on(lock_name)
    async with closing(await open_redis(master.url)) as writer:
        grant = await grant_of(writer, held)
    admin.replicaof("127.0.0.1", master.port)
    await until_async(lambda: admin.exists(f"lock:{lock_name}") == 1)
    warned = []
    client = client_at("asyncio", replica.port)
    async with closing(redis_driver(client, on_warning=warned.append)) as driver:
        for answers in (
            driver.acquire([claim_on(f"{lock_name}:free")]),
            driver.acquire([claim_on(lock_name)]),
            driver.renew([renewal_of(held, grant)]),
            driver.release([lease_of(held, grant)]),
        ):
            error = await error_of(answers)
            assert isinstance(error, StoreError) and "this server is a replica" in str(error)
        await until_async(lambda: bool(warned))
        assert [warning.code for warning in warned] == ["REPLICA"]
        # It is promoted: the same driver goes on.
        admin.replicaof("NO", "ONE")
        assert await driver.renew([renewal_of(held, grant)]) == ["renewed"]


async def until_async(condition: Callable[[], bool]) -> None:
    async def check() -> bool:
        return condition()

    await until(check, "it never became true")


async def test_a_subscription_is_made_again_after_the_server_was_demoted_and_promoted(own_redis, lock_name):
    server, other = own_redis(), own_redis()
    admin = redis.Redis(port=server.port)
    async with closing(await open_redis(server.url)) as driver:
        await grant_of(driver, claim_on(lock_name))
        await driver.listen(heard := Heard())
        admin.replicaof("127.0.0.1", other.port)
        assert "replica" in str(await error_of(driver.acquire([claim_on(f"{lock_name}:2")])))
        admin.replicaof("NO", "ONE")
        await grant_of(driver, claim_on(f"{lock_name}:3"))
        await heard.until(lambda: bool(heard.causes))


async def test_a_server_that_may_evict_locks_is_reported_once(own_redis, unique_name):
    server = own_redis("--maxmemory-policy", "allkeys-lru")
    warned = []
    driver = redis_driver(client_at("asyncio", server.port), on_warning=warned.append)
    async with closing(driver):
        for _ in range(3):
            await grant_of(driver, claim_on(unique_name("lock")))
            await until_async(lambda: bool(warned))
    assert [warning.code for warning in warned] == ["EVICTION"]
    assert "allkeys-lru" in warned[0].message


async def test_a_wrong_password_is_in_no_error(own_redis, lock_name):
    server = own_redis()
    redis.Redis(port=server.port).config_set("requirepass", "right-word")
    async with closing(await open_redis(f"redis://:wr0ng-w%2Ford@127.0.0.1:{server.port}")) as driver:
        error = await error_of(driver.acquire([claim_on(lock_name)]))
        assert isinstance(error, StoreError) and not error.retryable
        assert "the user name or the password is wrong" in str(error)
        with pytest.raises(StoreError) as caught:
            await driver.listen(Heard())
        for each in (error, error.__cause__, caught.value, caught.value.__cause__, driver.place):
            assert "wr0ng" not in repr(each) and "wr0ng" not in str(each)
    async with closing(await open_redis(f"redis://:right-word@127.0.0.1:{server.port}")) as driver:
        await grant_of(driver, claim_on(lock_name))


async def test_a_database_that_cannot_be_selected_is_an_error_and_never_another_database(own_redis, lock_name):
    server = own_redis("--databases", "2")
    async with closing(await open_redis(f"{server.url}/7")) as driver:
        error = await error_of(driver.acquire([claim_on(lock_name)]))
        assert isinstance(error, StoreError) and not error.retryable and "database" in str(error)
    assert redis.Redis(port=server.port).dbsize() == 0
    async with closing(await open_redis(f"{server.url}/1")) as driver:
        await grant_of(driver, claim_on(lock_name))
    assert redis.Redis(port=server.port, db=1).exists(f"lock:{lock_name}") == 1


async def test_a_server_that_is_not_there_is_a_clear_error(lock_name):
    async with closing(await open_redis("redis://127.0.0.1:1")) as driver:
        error = await error_of(driver.acquire([claim_on(lock_name)]))
        assert isinstance(error, StoreError) and error.retryable
        assert "redis failed to acquire at redis://127.0.0.1:1" in str(error)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_closed_driver_refuses_every_call(redis_url, kind, lock_name):
    driver = redis_driver(client_at(kind, port_of(redis_url)))
    await driver.listen(Heard())
    await grant_of(driver, claim_on(lock_name))
    await driver.close()
    await driver.close()
    for call in (
        lambda: driver.acquire([claim_on(lock_name)]),
        lambda: driver.renew([]),
        lambda: driver.release([LeaseRef(lock_name, "x")]),
        lambda: driver.inspect(InspectQuery()),
        lambda: driver.consume([]),
        lambda: driver.listen(Heard()),
    ):
        with pytest.raises(ClosedError):
            await call()


async def test_an_unexpected_reply_grants_nothing(lock_name):
    """A proxy or another server may answer anything."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            data = await reader.read(65_536)
            if not data:
                break
            for _ in range(data.count(b"EVALSHA")):
                writer.write(replies.pop(0) if replies else b"+OK\r\n")
            # The check of the server's settings.
            writer.write(b"+OK\r\n" * data.count(b"INFO"))

    replies = [b"+OK\r\n", b"*2\r\n:0\r\n:1\r\n", b"*2\r\n:1700000000000\r\n:-5\r\n", b"*1\r\n:1\r\n", b":1\r\n"]
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with closing(redis_driver(client_at("asyncio", port))) as driver:
        for _ in range(6):
            assert isinstance(await error_of(driver.acquire([claim_on(lock_name)])), StoreError)
    server.close()


async def test_no_command_overtakes_one_that_has_waited_for_the_connection(redis_url, lock_name):
    wire = Wire(Dial(port=port_of(redis_url)), 30)
    try:
        waiting = asyncio.ensure_future(wire.exchange([("SET", lock_name, "1", "PX", "10000")]))
        while wire._connection is None:
            await asyncio.sleep(0)
        # In the turn in which the connection is there: the task above has not run since.
        assert await wire.exchange([("GET", lock_name)]) == [b"1"]
        assert await waiting == [b"OK"]
    finally:
        await wire.close()


async def test_a_command_that_is_cancelled_while_it_waits_for_the_connection_is_not_sent(redis_url, lock_name):
    wire = Wire(Dial(port=port_of(redis_url)), 30)
    try:
        waiting = asyncio.ensure_future(wire.exchange([("SET", lock_name, "1", "PX", "10000")]))
        await asyncio.sleep(0)
        waiting.cancel()
        assert await wire.exchange([("GET", lock_name)]) == [None]
        assert waiting.cancelled()
    finally:
        await wire.close()
