"""Grants that arrive as messages: genuine ones, forged ones, and those of an older call."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
from typing import Any, AsyncIterator

import pytest
import redis
import redis.asyncio
from holdfast.core.driver import ANY_TOKEN, LeaseRef
from holdfast.drivers._redis.waiting import WaitingCall, read_wake_up
from holdfast.drivers._shared.waiting_claims import WaitingClaims
from holdfast.drivers.redis import RedisDriver, open_redis, redis_driver

from support.redis_drivers import Heard, claim_on, closing, grant_of, lease_of, refusal_of, renewal_of, until


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Any]:
    client = redis.asyncio.Redis.from_url(redis_url)
    yield client
    await client.close(close_connection_pool=True)


@pytest.fixture(params=["asyncio", "sync"])
async def driver(request: Any, redis_url: str) -> AsyncIterator[RedisDriver]:
    made = redis.asyncio.Redis if request.param == "asyncio" else redis.Redis
    async with closing(redis_driver(made.from_url(redis_url))) as driver:
        yield driver


@pytest.fixture
async def other(redis_url: str) -> AsyncIterator[RedisDriver]:
    async with closing(await open_redis(redis_url)) as driver:
        yield driver


async def waiter_text(client: Any, claim: Any) -> Any:
    stored = await client.hget(f"holdfast:{{lock:{claim.lock_name}}}:d", "w" + json.dumps(claim.claim_id))
    return json.loads(stored)


def message(claim: Any, token: int, secret: str) -> str:
    told = f"{json.dumps(claim.claim_id)},{token},{token // 1000},30000"
    proof = hashlib.sha1(f"{secret}{told}{secret}".encode()).hexdigest()
    return f'[{told},"{proof}"]'


async def settled(client: Any, driver: RedisDriver, heard: Heard, channel: str, claim: Any) -> None:
    """Everything that was published before has arrived when this hint has."""
    heard.woken.clear()
    await client.publish(channel, json.dumps([claim.claim_id]))
    await heard.wake_of(claim)


async def test_a_released_lock_is_granted_to_the_first_waiter_in_the_message(driver, other, lock_name):
    heard = Heard()
    await driver.listen(heard)
    holder = claim_on(lock_name)
    grant = await grant_of(other, holder)
    first, second = claim_on(lock_name, waiter_ttl_ms=20_000), claim_on(lock_name, waiter_ttl_ms=20_000)
    assert (await refusal_of(driver, first)).ahead == 0
    assert (await refusal_of(driver, second)).ahead == 1
    await other.release([lease_of(holder, grant)])
    granted = await heard.grant_of(first)
    assert granted.fencing_token > grant.fencing_token
    assert second.claim_id not in heard.grants
    assert await driver.renew([renewal_of(first, granted)]) == ["renewed"]
    await driver.release([lease_of(first, granted)])
    assert (await heard.grant_of(second)).fencing_token > granted.fencing_token


async def test_a_forged_grant_has_no_effect(driver, other, client, lock_name):
    heard = Heard()
    await driver.listen(heard)
    await grant_of(other, claim_on(lock_name))
    waiter = claim_on(lock_name, waiter_ttl_ms=20_000)
    refusal = await refusal_of(driver, waiter)
    assert refusal.holder is not None
    channel = (await waiter_text(client, waiter))[7]
    token = refusal.holder.fencing_token + 1_000
    told = f"{json.dumps(waiter.claim_id)},{token},{token // 1000},30000"
    for forged in (
        message(waiter, token, "a guess"),
        message(waiter, token, ""),
        f'[{told},""]',
        f'[{told},"{"0" * 40}"]',
        f"[{told}]",
        f"[{told},1]",
        f'[{told},"x","y"]',
        '["',
        "[]",
        "null",
        "\udcff",
        "[" * 100_000,
    ):
        await client.publish(channel, forged.encode("utf-8", "surrogateescape"))
    await settled(client, driver, heard, channel, waiter)
    assert not heard.grants and not heard.causes


async def test_a_grant_that_answers_an_older_call_has_no_effect(driver, other, client, lock_name):
    heard = Heard()
    await driver.listen(heard)
    await grant_of(other, claim_on(lock_name))
    waiter = claim_on(lock_name, waiter_ttl_ms=20_000)
    token = (await refusal_of(driver, waiter)).holder.fencing_token + 1_000
    older = await waiter_text(client, waiter)
    await refusal_of(driver, waiter)
    newer = await waiter_text(client, waiter)
    assert older[9] != newer[9], "every call has a secret of its own"
    await client.publish(older[7], message(waiter, token, older[9]))
    await settled(client, driver, heard, older[7], waiter)
    assert not heard.grants
    await client.publish(newer[7], message(waiter, token, newer[9]))
    assert (await heard.grant_of(waiter)).fencing_token == token


def test_a_proved_grant_on_another_channel_has_no_effect():
    """A replica, or a server from before a failover, may still publish on it."""
    claims, waiter = WaitingClaims(), claim_on("order:1", waiter_ttl_ms=20_000)
    claims.sends([waiter], WaitingCall("holdfast:wake:now", "secret", 0, 0.0, False))
    genuine = message(waiter, 1_772_366_400_000_123, "secret")
    assert read_wake_up(claims, "holdfast:wake:before", genuine) is None
    heard = read_wake_up(claims, "holdfast:wake:now", genuine)
    assert heard is not None and heard.grant is not None


def test_a_proof_that_is_no_text_has_no_effect():
    """It must not end the subscription."""
    claims, claim = WaitingClaims(), claim_on("any", waiter_ttl_ms=1_000)
    claims.sends([claim], WaitingCall("channel", "secret", 0, 0.0, False))
    assert read_wake_up(claims, "channel", f'[{json.dumps(claim.claim_id)},1,1,1,"\\ud800"]') is None


async def test_a_subscription_notices_within_a_minute_that_its_server_is_gone(driver):
    """It sends nothing, so it cannot notice by itself that no answer comes. By default, keep-alives take two hours."""
    await driver.listen(Heard())
    (subscriber,) = driver._subscription._session.all
    opened = subscriber._transport.get_extra_info("socket")
    names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    idle, interval, count = (opened.getsockopt(socket.IPPROTO_TCP, name) for name in names)
    assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) and idle + interval * count <= 60


async def test_a_token_far_ahead_of_the_clock_is_only_a_hint(driver, other, client, lock_name):
    heard = Heard()
    await driver.listen(heard)
    await grant_of(other, claim_on(lock_name))
    waiter = claim_on(lock_name, waiter_ttl_ms=20_000)
    await refusal_of(driver, waiter)
    stored = await waiter_text(client, waiter)
    told = f"{json.dumps(waiter.claim_id)},{2**53 - 1},1700000000000,30000"
    proof = hashlib.sha1(f"{stored[9]}{told}{stored[9]}".encode()).hexdigest()
    await client.publish(stored[7], f'[{told},"{proof}"]')
    await heard.wake_of(waiter)
    assert not heard.grants


async def test_a_withdrawn_claim_hears_nothing_more(driver, other, client, lock_name):
    heard = Heard()
    await driver.listen(heard)
    holder = claim_on(lock_name)
    grant = await grant_of(other, holder)
    waiter, witness = claim_on(lock_name, waiter_ttl_ms=20_000), claim_on(lock_name, waiter_ttl_ms=20_000)
    await refusal_of(driver, waiter)
    stored = await waiter_text(client, waiter)
    await refusal_of(driver, witness)
    assert await driver.release([lease_of(waiter, grant)]) == [False]
    await client.publish(stored[7], message(waiter, grant.fencing_token + 1_000, stored[9]))
    await other.release([lease_of(holder, grant)])
    await heard.grant_of(witness)
    assert waiter.claim_id not in heard.grants


async def test_a_forced_release_reaches_the_victim_at_once_as_a_hint(driver, other, lock_name):
    heard = Heard()
    await driver.listen(heard)
    victim = claim_on(lock_name)
    grant = await grant_of(driver, victim)
    taker = claim_on(lock_name, force_up_to=ANY_TOKEN)
    forced = await grant_of(other, taker)
    await heard.until(lambda: victim.claim_id in heard.losses)
    assert "force-released by python" in str(heard.losses[victim.claim_id])
    assert await driver.renew([renewal_of(victim, grant)]) == ["lost"]
    assert await other.renew([renewal_of(taker, forced)]) == ["renewed"]


async def test_a_forced_release_with_more_than_256_shared_leases_ends_all_of_them(driver, other, lock_name):
    readers = [claim_on(lock_name, mode="shared") for _ in range(600)]
    grants = await driver.acquire(readers)
    taker = claim_on(lock_name, force_up_to=ANY_TOKEN)
    await grant_of(other, taker)
    answers = await driver.renew([renewal_of(claim, grant) for claim, grant in zip(readers, grants)])
    assert set(answers) == {"lost"}


async def test_the_channel_is_another_one_after_listening_was_stopped(driver, other, client, lock_name):
    """On the old one, the server would count a waiter as subscribed while the old connection is being closed."""
    await grant_of(other, claim_on(lock_name))
    channels = []
    for _ in range(2):
        stop = await driver.listen(Heard())
        waiter = claim_on(lock_name, waiter_ttl_ms=20_000)
        await refusal_of(driver, waiter)
        channels.append((await waiter_text(client, waiter))[7])
        await stop()
    assert channels[0] != channels[1]


async def test_claims_of_one_process_are_served_in_their_order(driver, lock_name):
    """Also those of different calls that are in flight at the same time."""
    heard = Heard()
    await driver.listen(heard)
    holder = claim_on(lock_name)
    grant = await grant_of(driver, holder)
    waiters = [claim_on(lock_name, waiter_ttl_ms=20_000) for _ in range(40)]
    answers = await asyncio.gather(*(driver.acquire([waiter]) for waiter in waiters))
    assert [min(answer.ahead, 32) for (answer,) in answers] == [min(at, 32) for at in range(40)]
    lease = lease_of(holder, grant)
    for waiter in waiters:
        await driver.release([lease])
        lease = lease_of(waiter, await heard.grant_of(waiter))
    assert list(heard.grants) == [waiter.claim_id for waiter in waiters]


async def test_a_release_never_overtakes_the_claim_that_it_withdraws(driver, other, unique_name):
    """The core gives a claim up without waiting for its answer, and withdraws it."""
    for _ in range(30):
        claim = claim_on(unique_name("lock"))
        asked = asyncio.ensure_future(driver.acquire([claim]))
        await asyncio.sleep(0)
        withdrawn = asyncio.ensure_future(driver.release([LeaseRef(claim.lock_name, claim.claim_id)]))
        await asyncio.gather(asked, withdrawn)
        assert withdrawn.result() == [True]
        await grant_of(other, claim_on(claim.lock_name))


async def test_a_dead_waiter_is_skipped(own_redis, lock_name):
    """Its connection is gone, so the server finds no subscriber on its channel."""
    server = own_redis()
    async with closing(await open_redis(server.url)) as living:
        dead = await open_redis(server.url)
        await dead.listen(Heard())
        heard = Heard()
        await living.listen(heard)
        holder = claim_on(lock_name)
        grant = await grant_of(living, holder)
        await refusal_of(dead, claim_on(lock_name, waiter_ttl_ms=60_000))
        waiter = claim_on(lock_name, waiter_ttl_ms=60_000)
        assert (await refusal_of(living, waiter)).ahead == 1
        await dead.close()
        admin = redis.asyncio.Redis.from_url(server.url)

        async def is_gone() -> bool:
            channels = await admin.execute_command("PUBSUB", "CHANNELS", "holdfast:wake:*")
            return len(channels) == 1

        await until(is_gone, "the subscription of the dead client never ended")
        await admin.close(close_connection_pool=True)
        await living.release([lease_of(holder, grant)])
        await heard.grant_of(waiter)
