"""The driver's own reading of replies, and servers that say something before they are asked."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import Any, AsyncIterator

import pytest
import redis.asyncio
from holdfast.drivers._redis.replies import Replies, ResponseError
from holdfast.drivers.redis import redis_driver
from holdfast.errors import StoreError

from support.redis_drivers import claim_on, closing, error_of

SENT = (
    b"+OK\r\n:-17\r\n$0\r\n\r\n$-1\r\n*-1\r\n*0\r\n$7\r\na\r\nb\xff\r\n\r\n"
    b"*3\r\n:1\r\n*2\r\n$1\r\nx\r\n*1\r\n*0\r\n-NOSCRIPT No matching script.\r\n:9\r\n"
)
REPLIES = [b"OK", -17, b"", None, None, [], b"a\r\nb\xff\r\n", [1, [b"x", [[]]], "NOSCRIPT No matching script."], 9]


def shown(reply: Any) -> Any:
    if isinstance(reply, list):
        return [shown(each) for each in reply]
    return str(reply) if isinstance(reply, ResponseError) else reply


def test_replies_are_the_same_however_they_are_cut():
    for size in range(1, len(SENT) + 1):
        replies = Replies()
        pieces = [SENT[at : at + size] for at in range(0, len(SENT), size)]
        assert [shown(reply) for piece in pieces for reply in replies.feed(piece)] == REPLIES


@pytest.mark.parametrize("sent", ["HTTP/1.1 400 Bad Request\r\n", ":x\r\n", "$x\r\n", "*\r\n", "\r\n", "%1\r\n"])
def test_anything_else_is_an_error_and_never_a_reply(sent):
    with pytest.raises((ConnectionError, ValueError)):
        Replies().feed(sent.encode())


@asynccontextmanager
async def server_that_says(text: bytes, answer: bytes, *, stays: bool = False) -> AsyncIterator[int]:
    """Sends `text` to each connection before it has read anything, and then `answer` to each read."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(text)
        if stays:
            await reader.read(1)
            writer.write(answer)
            await reader.read(-1)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def failure_at(port: int) -> StoreError:
    client = redis.asyncio.Redis(host="127.0.0.1", port=port)
    async with closing(redis_driver(client, command_timeout_seconds=60)) as driver:
        error = await asyncio.wait_for(error_of(driver.acquire([claim_on("unheard")])), 20)
    assert isinstance(error, StoreError)
    return error


async def test_a_server_with_too_many_connections_is_reported_with_its_own_words():
    async with server_that_says(b"-ERR max number of clients reached\r\n", b"") as port:
        assert "max number of clients reached" in str(await failure_at(port))


async def test_a_connection_that_ends_at_once_fails_its_call_at_once():
    async with server_that_says(b"", b"") as port:
        assert (await failure_at(port)).retryable


async def test_a_server_of_another_protocol_is_recognised():
    async with server_that_says(b"SSH-2.0-OpenSSH_9.2\r\n", b"") as port:
        assert "does not speak the Redis protocol" in str(await failure_at(port))


async def test_what_was_not_asked_for_is_never_the_reply_to_a_command():
    """A whole grant, sent before the claim."""
    grant = b"*2\r\n:1700000000000\r\n:5\r\n"
    async with server_that_says(grant, grant, stays=True) as port:
        assert "not asked for" in str(await failure_at(port))
