"""Guards data in Redis, so that only the newest holder of a lock can write it."""

from __future__ import annotations

from typing import Any, Optional, Sequence, Union

from ... import _protocol
from ...core.arguments import Seconds, check_seconds
from ...core.arguments import text_of as exact_text
from ...core.fencing import Token, check_resource, token_of
from ...errors import InvalidArgumentError, StaleTokenError
from .clients import RedisClient, link_of
from .failures import closed_error, store_error
from .keys import sibling_key
from .records import text_of, unexpected_reply
from .scripts import Script, ScriptCall, run_scripts, script_of

Text = Union[str, bytes]

_MAX_SCRIPTS = 1_000
_STALE = b"holdfast:stale"


class RedisFence:
    """Made by `redis_fence`. It needs no lock driver on that server.

        fence = redis_fence(client)
        async with lock.lock("order:123") as lease:
            await fence.set("order:123:state", "paid", lease)

    Its methods raise `StaleTokenError` if a larger token has been seen, and then nothing is written; `StoreError` if it
    is unknown whether the write was made; and `InvalidArgumentError`.
    """

    def __init__(self, client: RedisClient, *, command_timeout_seconds: Seconds = 4.5) -> None:
        self._link = link_of(client, check_seconds("command_timeout_seconds", command_timeout_seconds, 0.001, 3_600))
        self._scripts: dict[str, Script] = {}
        self._closed = False

    def __repr__(self) -> str:
        return f"<RedisFence on {self._link.place}>"

    async def set(self, key: Text, value: Text, token: Token, *options: Text) -> Any:
        """Runs `SET key value …options`, unless a larger token has been seen for this key. Returns the reply."""
        return await self.run(_protocol.read("redis/fence-set.lua"), keys=[key], args=[value, *options], token=token)

    async def run(
        self,
        script: str,
        *,
        token: Token,
        keys: Sequence[Text],
        args: Sequence[Text] = (),
        resource: Optional[Text] = None,
    ) -> Any:
        """Runs a Lua script of yours, unless a larger token has been seen for `resource`, by default the first key. The
        script sees its own `KEYS` and `ARGV`, texts or bytes. On a Cluster, resource and keys must be in one slot.
        Returns the reply, in which texts are bytes."""
        sent_keys, sent_args = _texts("keys", keys), _texts("args", args)
        guarded = check_resource(resource if resource is not None or not sent_keys else sent_keys[0])
        fencing_token = token_of(token)
        call = ScriptCall([sibling_key(guarded, "f"), *sent_keys], [str(fencing_token), *sent_args])
        self._assert_open()
        what = "write behind a fence"
        (reply,) = await run_scripts(self._link, what, self._guarded(script), [call])
        if isinstance(reply, Exception):
            raise store_error(what, reply, self._link.place)
        if isinstance(reply, list) and reply and reply[0] == _STALE:
            raise StaleTokenError(guarded, fencing_token, int(text_of(reply[1])))
        return reply

    async def accept(self, resource: str, token: Token) -> None:
        """Only checks and records the token. Call it before the first read of data that a write depends on, or for a
        resource outside of Redis. Another holder can come between this check and a write elsewhere. `set` and `run`
        check and write in one step."""
        await self.run("return 1", keys=[], resource=resource, token=token)

    async def reset(self, resource: str) -> bool:
        """Forgets the largest token, so that any next token is accepted. True if a token had been recorded.

        Use it for a resource that is gone, or whose lock moves to another store, once no process with an old token can
        reach it any more.
        """
        self._assert_open()
        mark = sibling_key(check_resource(resource), "f")
        (reply,) = await self._link.run("reset a fence", mark, [("DEL", mark)])
        if isinstance(reply, Exception):
            raise store_error("reset a fence", reply, self._link.place)
        if type(reply) is not int:
            raise unexpected_reply("DEL", reply)
        return reply == 1

    async def close(self) -> None:
        """Ends the connection of the guard's own. It never closes your client."""
        self._closed = True
        await self._link.close()

    def _guarded(self, text: str) -> Script:
        known = self._scripts.get(text)
        if known is None:
            # A caller that makes a new text for each call would otherwise fill the memory, as it does on the server.
            if len(self._scripts) >= _MAX_SCRIPTS:
                self._scripts.clear()
            known = self._scripts[text] = script_of(f"{_protocol.read('redis/fence.lua')}\n{text}")
        return known

    def _assert_open(self) -> None:
        if self._closed:
            raise closed_error()


def _texts(argument: str, values: object) -> list[str]:
    """In the form for the wire. Nothing is converted that redis-py would convert: a number has several texts."""
    if not isinstance(values, (list, tuple)):
        # Each character of a string would become a key.
        raise InvalidArgumentError(argument, values, "a list of strings or bytes")
    return [_text(f"{argument}[{at}]", value) for at, value in enumerate(values)]


def _text(argument: str, value: object) -> str:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).decode("utf-8", "surrogateescape")
    text = exact_text(value)
    if text is not None and (text.isascii() or not any("\ud800" <= each <= "\udfff" for each in text)):
        return text
    raise InvalidArgumentError(argument, value, "a string without lone surrogates, or bytes")


def redis_fence(client: RedisClient, *, command_timeout_seconds: Seconds = 4.5) -> RedisFence:
    """A fencing guard for data in Redis, with the settings of a client that you have. It need not be the server that
    keeps the locks."""
    return RedisFence(client, command_timeout_seconds=command_timeout_seconds)
