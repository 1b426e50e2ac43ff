"""Connections with the settings of a synchronous client."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any, Callable, List

import pytest
import redis

from holdfast.drivers.redis import redis_driver
from holdfast.errors import InvalidArgumentError, StoreError
from support.polling import until
from support.redis_drivers import claim_on, closing, error_of, grant_of, lease_of


def own_threads() -> List[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("holdfast-redis")]


async def test_the_settings_of_a_synchronous_client_are_used_without_a_thread(redis_url: str, lock_name: str) -> None:
    before = own_threads()
    async with closing(redis_driver(redis.Redis.from_url(redis_url, db=1))) as driver:
        claim = claim_on(lock_name)
        grant = await grant_of(driver, claim)
        assert redis.Redis.from_url(redis_url, db=1).exists(f"lock:{lock_name}") == 1
        assert own_threads() == before
        assert await driver.release([lease_of(claim, grant)]) == [True]


async def test_a_unix_socket(own_redis: Callable[..., Any], tmp_path: Path, lock_name: str) -> None:
    path = str(tmp_path / "redis.sock")
    own_redis("--unixsocket", path)
    async with closing(redis_driver(redis.Redis(unix_socket_path=path))) as driver:
        claim = claim_on(lock_name)
        assert await driver.release([lease_of(claim, await grant_of(driver, claim))]) == [True]


async def test_a_login_that_is_refused_is_an_error_without_the_password(
    own_redis: Callable[..., Any], lock_name: str
) -> None:
    server = own_redis()
    redis.Redis(port=server.port).config_set("requirepass", "right-word")
    for password, is_right in (("wr0ng-word", False), ("right-word", True)):
        async with closing(redis_driver(redis.Redis(port=server.port, password=password))) as driver:
            if is_right:
                await grant_of(driver, claim_on(lock_name))
            else:
                error = await error_of(driver.acquire([claim_on(lock_name)]))
                assert isinstance(error, StoreError) and not error.retryable and "wr0ng" not in str(error)


@pytest.mark.parametrize("end", ["closed", "timed out"])
async def test_a_connection_that_opens_too_late_is_closed(lock_name: str, end: str) -> None:
    """Otherwise it would stay, and no one would know of it."""
    writers: List[asyncio.StreamWriter] = []
    ended = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await reader.readuntil(b"login\r\n")
        if end == "timed out":
            await reader.read()
        else:
            await asyncio.sleep(0.2)
            writer.write(b"+OK\r\n")
            await reader.read()
        ended.set()
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    client = redis.Redis(port=server.sockets[0].getsockname()[1], password="login")
    driver = redis_driver(client, command_timeout_seconds=0.5 if end == "timed out" else 5)
    call = asyncio.ensure_future(error_of(driver.acquire([claim_on(lock_name)])))
    await until(lambda: bool(writers))
    if end == "closed":
        await driver.close()
    assert isinstance(await call, Exception)
    await asyncio.wait_for(ended.wait(), 30)
    await driver.close()
    server.close()


async def test_a_client_whose_connections_only_redis_py_can_open_is_refused(redis_url: str) -> None:
    """They may lead to another place than their settings say, as those of fakeredis do."""

    class Elsewhere(redis.Connection):  # type: ignore[misc]
        pass

    settings = redis.Redis.from_url(redis_url).connection_pool.connection_kwargs
    for client, reason in (
        (redis.Redis(connection_pool=redis.ConnectionPool(connection_class=Elsewhere, **settings)), "Elsewhere"),
        (redis.Redis(connection_pool=redis.ConnectionPool(redis_connect_func=print, **settings)), "redis_connect_func"),
    ):
        with pytest.raises(InvalidArgumentError, match=reason):
            redis_driver(client)
