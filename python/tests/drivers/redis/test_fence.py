"""The fencing guard for data in Redis."""

from __future__ import annotations

import asyncio
import enum
from typing import Any, AsyncIterator

import pytest
import redis
import redis.asyncio
from holdfast import SyncDistributedLock, sync_redis_fence
from holdfast.drivers.redis import RedisFence, redis_fence
from holdfast.errors import ClosedError, InvalidArgumentError, StaleTokenError, StoreError


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Any]:
    client = redis.asyncio.Redis.from_url(redis_url, decode_responses=True)
    yield client
    await client.close(close_connection_pool=True)


@pytest.fixture(params=["asyncio", "sync"])
async def fence(request: Any, redis_url: str) -> AsyncIterator[RedisFence]:
    made = redis.asyncio.Redis if request.param == "asyncio" else redis.Redis
    fence = redis_fence(made.from_url(redis_url))
    yield fence
    await fence.close()


async def test_a_stale_holder_writes_nothing(fence, client, unique_name):
    key = unique_name("state")
    assert await fence.set(key, "new", 2_000) == b"OK"
    with pytest.raises(StaleTokenError) as caught:
        await fence.set(key, "old", 1_999)
    assert caught.value.largest_token == 2_000 and caught.value.resource == key
    assert await client.get(key) == "new"
    await fence.set(key, "newer", 2_000, "EX", "30")
    assert (await client.get(key), await client.get(f"holdfast:{{{key}}}:f")) == ("newer", "2000")
    assert await client.ttl(key) > 0


class State(str, enum.Enum):
    PAID = "paid in full"

    def __format__(self, _: str) -> str:
        return "State.PAID"


BYTES = [b"paid", bytearray(b"paid"), memoryview(b"paid"), b"\xff\x00\xfe\r\n$5"]
VALUES = [*BYTES, State.PAID, "pay\u00e9 \u20ac \U0001f600", ""]


@pytest.mark.parametrize("value", VALUES, ids=["bytes", "bytearray", "memoryview", "binary", "enum", "text", "empty"])
async def test_failure_84_a_value_is_stored_byte_for_byte(
    value: Any, fence: RedisFence, redis_url: str, unique_name: Any
) -> None:
    """Otherwise a part of it would be read as the next command, and its reply would answer another call."""
    expected = value.value if isinstance(value, State) else value
    expected = expected.encode() if isinstance(expected, str) else bytes(expected)
    keys = [unique_name("value") for _ in range(3)]
    replies = await asyncio.gather(*(fence.set(key, value, 1) for key in keys))
    assert replies == [b"OK"] * 3
    async with redis.asyncio.Redis.from_url(redis_url) as raw:
        assert await raw.mget(keys) == [expected] * 3


async def test_failure_84_an_argument_that_is_neither_text_nor_bytes_is_refused_before_anything_is_sent(
    fence: RedisFence, unique_name: Any
) -> None:
    for value in (1, 1.5, None, True, ["x"], "\udc80"):
        with pytest.raises(InvalidArgumentError, match="args"):
            await fence.set(unique_name("x"), value, 1)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match=r"args\[2\]"):
        await fence.set(unique_name("x"), "v", 1, "EX", 60)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="keys"):
        await fence.run("return 1", keys=[7], token=1)  # type: ignore[list-item]


async def test_a_script_of_the_caller_sees_its_own_keys_and_arguments(fence, unique_name):
    key = unique_name("list")
    script = "redis.call('RPUSH', KEYS[1], ARGV[1]) return {#KEYS, #ARGV, KEYS[1]}"
    assert await fence.run(script, keys=[key], args=["a"], token=5) == [1, 1, key.encode()]
    with pytest.raises(StaleTokenError):
        await fence.run(script, keys=[key], args=["b"], token=4)
    with pytest.raises(StaleTokenError):
        await fence.accept(key, 4)
    await fence.accept(key, 6)
    assert await fence.reset(key) is True
    assert await fence.reset(key) is False
    await fence.accept(key, 1)


async def test_what_is_no_token_or_resource_is_refused_before_anything_is_sent(fence, unique_name):
    for token in (0, -1, 2**53, 1.5, True, "7", None):
        with pytest.raises(InvalidArgumentError):
            await fence.accept(unique_name("x"), token)
    for resource in ("", None, "a\0b"):
        with pytest.raises(InvalidArgumentError):
            await fence.accept(resource, 1)
    with pytest.raises(InvalidArgumentError):
        await fence.run("return 1", keys="abc", token=1)


async def test_an_error_of_the_script_is_a_store_error(fence, unique_name):
    with pytest.raises(StoreError):
        await fence.run("return redis.call('NO-SUCH-COMMAND')", keys=[unique_name("x")], token=1)
    await fence.close()
    with pytest.raises(ClosedError):
        await fence.accept(unique_name("x"), 1)


async def test_on_a_cluster_the_mark_is_in_the_slot_of_the_key(cluster_urls, unique_name):
    host, port = cluster_urls[0].split("://", 1)[1].split(":")
    fence = redis_fence(redis.asyncio.RedisCluster(host=host, port=int(port)))
    for key in (unique_name("a"), f"{{tag}}:{unique_name('b')}", f"odd}}:{unique_name('c')}"):
        await fence.set(key, "x", 10)
        with pytest.raises(StaleTokenError):
            await fence.set(key, "y", 9)
    await fence.close()


def test_the_guard_without_an_event_loop_refuses_a_stale_holder(redis_url: str, unique_name: Any) -> None:
    client, key = redis.Redis.from_url(redis_url), unique_name("state")
    fence = sync_redis_fence(client)
    with SyncDistributedLock(client) as lock, lock.lock(unique_name("lock")) as lease:
        assert fence.set(key, "new", lease) == b"OK"
        with pytest.raises(StaleTokenError):
            fence.run("return redis.call('SET', KEYS[1], 'old')", keys=[key], token=lease.fencing_token - 1)
        assert client.get(key) == b"new"
        assert fence.reset(key)
        fence.accept(key, 1)
    fence.close()
    with pytest.raises(ClosedError):
        fence.accept(key, 2)
