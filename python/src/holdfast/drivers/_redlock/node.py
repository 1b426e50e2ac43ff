"""One node of a Redlock: what it needs of a server beyond what every driver has."""

from __future__ import annotations

import asyncio
import math
from typing import Any, Callable, Optional, Sequence, Union

from ...core.driver import Claim, Grant, InspectPage, LeaseRef, Refusal
from ...core.tasks import start_task
from ...errors import StoreError
from .._redis.checks import RedisWarning, info_field
from .._redis.driver import RedisDriver
from .._redis.failures import is_forbidden_command, store_error
from .._redis.keys import FORCED_CHANNEL, ballot_keys, bar_key
from .._redis.lists import Part
from .._redis.records import (
    REPAIRS,
    Proposal,
    TokenRefusal,
    ballot_args,
    json_text,
    read_acquire,
    release_args,
    text_of,
    unexpected_reply,
)
from .._redis.scripts import ScriptCall, ballot_script, protocol_script, run_scripts
from .._redis.walk import inspect_names

Answer = Union[Grant, Refusal, TokenRefusal, Exception]


class VotingNode:
    """`servers` has the name of the node for each `run_id`, and is shared by all nodes of a driver.

    No server may vote twice: a quorum must consist of different servers. Two names may lead to one server, and only the
    server itself knows. So each node is asked for its `run_id` together with its first vote.
    """

    def __init__(
        self, driver: RedisDriver, name: str, servers: dict[str, str], on_warning: Callable[[RedisWarning], None]
    ) -> None:
        self.driver = driver
        self.name = name
        self.place = driver.link.place
        self._servers = servers
        self._on_warning = on_warning
        self._checked: Optional[asyncio.Task[None]] = None

    async def propose(
        self, proposals: Sequence[Proposal], most_ahead_us: int, longest_ttl_ms: Optional[int]
    ) -> Sequence[Answer]:
        """Claims with the tokens that the caller proposes. They do not queue. Fails if the node may have forgotten a
        lease of up to `longest_ttl_ms`. None: the node forgets nothing."""
        distinct = self._distinct()
        if distinct is None:
            return await self._propose(proposals, most_ahead_us, longest_ttl_ms)
        # Both are sent before either is answered. A vote that does not count is released with the others.
        voting = start_task(self._propose(proposals, most_ahead_us, longest_ttl_ms))
        try:
            await asyncio.shield(distinct)
        except Exception:
            await asyncio.wait({voting})
            voting.exception()
            raise
        return await voting

    async def _propose(
        self, proposals: Sequence[Proposal], most_ahead_us: int, longest_ttl_ms: Optional[int]
    ) -> Sequence[Answer]:
        lists = self.driver.lists

        async def send(part: Part[Proposal]) -> list[list[Answer]]:
            calls = [
                ScriptCall(
                    ballot_keys(lists.prefix, [each.lock_name for each in chunk], most_ahead_us == REPAIRS),
                    ballot_args(chunk, most_ahead_us, longest_ttl_ms),
                )
                for chunk in part.chunks
            ]
            replies = await run_scripts(lists.link, "acquire", ballot_script(), calls)
            return [_votes(chunk, reply, self.place) for chunk, reply in zip(part.chunks, replies)]

        return await lists.send(proposals, send)

    async def release(
        self,
        leases: Sequence[LeaseRef],
        channel: str,
        message_of: Callable[[LeaseRef], str],
        unpublished: Callable[[StoreError], None],
    ) -> Sequence[Union[bool, Exception]]:
        """In the same step, after the leases were ended, it publishes a message for each."""
        lists = self.driver.lists

        async def send(part: Part[LeaseRef]) -> list[list[Union[bool, Exception]]]:
            answers: list[list[Union[bool, Exception]]] = []
            for chunk in part.chunks:
                lines = "\n".join(dict.fromkeys(message_of(lease) for lease in chunk))
                one = Part(part.slot, [chunk])
                (reply,) = await lists.run_leases("release", one, [release_args(chunk)], channel, lines)
                if isinstance(reply, Exception):
                    answers.append([reply] * len(chunk))
                    continue
                if reply.now_ms == 1:
                    unpublished(StoreError(f"the server refused to publish on {channel}"))
                answers.append([answer if isinstance(answer, Exception) else answer == 1 for answer in reply.answers])
            return answers

        return await lists.send(leases, send)

    async def bar(self, leases: Sequence[LeaseRef], kept_ms: int) -> None:
        """No holder repairs the leases on this node for that long. Raises if the node has not noted it."""
        lists = self.driver.lists

        async def send(part: Part[LeaseRef]) -> list[list[None]]:
            calls = [
                ScriptCall(
                    [bar_key(lists.prefix, each.lock_name) for each in chunk],
                    [str(kept_ms), *(str(each.fencing_token or 0) for each in chunk)],
                )
                for chunk in part.chunks
            ]
            for reply in await run_scripts(lists.link, "end leases by force", protocol_script("bar"), calls):
                if isinstance(reply, Exception):
                    raise store_error("end leases by force", reply, self.place)
            return [[None] * len(chunk) for chunk in part.chunks]

        for answer in await lists.send(leases, send):
            if isinstance(answer, Exception):
                raise answer

    async def publish_forced(self, claim_ids: Sequence[str], by: str) -> None:
        (node,) = await self.driver.link.nodes()
        texts = [
            json_text({"lost": claim_ids[at : at + _MAX_IDS], "by": by}) for at in range(0, len(claim_ids), _MAX_IDS)
        ]
        for reply in await node.exchange("publish", [("PUBLISH", FORCED_CHANNEL, text) for text in texts]):
            if isinstance(reply, Exception):
                raise reply

    async def inspect_names(self, lock_names: Sequence[str]) -> InspectPage:
        """All leases of these names."""
        return await inspect_names(self.driver.link, self.driver.lists.prefix, lock_names)

    def _distinct(self) -> Optional[asyncio.Task[None]]:
        """None: it has been checked."""
        checked = self._checked
        if checked is not None and checked.done() and (checked.cancelled() or checked.exception() is not None):
            checked = None
        if checked is not None and not checked.done() and checked.get_loop() is not asyncio.get_running_loop():
            checked = None
        if checked is None:
            checked = self._checked = start_task(self._check())
        return None if checked.done() else checked

    async def _check(self) -> None:
        info = await self._info()
        run_id = info_field(info, "run_id")
        if run_id:
            other = self._servers.setdefault(run_id, self.name)
            if other != self.name:
                raise StoreError(f"it is the same server as {other} (run_id {run_id}), and a server has one vote")
        replicas = _replicas_in(info)
        if replicas is not None:
            message = f"Redlock: {self.name} at {self.place} {replicas}. {_WHY_NO_REPLICAS}"
            warning = RedisWarning("REDLOCK_REPLICAS", message)
            # Not from here: what the listener raises must not change the vote.
            asyncio.get_running_loop().call_soon(self._on_warning, warning)

    async def _info(self) -> str:
        """What the server says of itself. Empty if the user may not run INFO."""
        (node,) = await self.driver.link.nodes()
        replies = await node.exchange("read INFO", [("INFO", "server"), ("INFO", "replication")])
        texts = []
        for reply in replies:
            if not isinstance(reply, Exception):
                texts.append(text_of(reply))
            elif not is_forbidden_command(reply):
                raise store_error("read INFO", reply, self.place)
        return "\n".join(texts)


_MAX_IDS = 100
"""In one message about forced releases."""
_WHY_NO_REPLICAS = (
    "A replica that takes over has not received all leases, so it does not vote for longest_ttl_seconds. Redlock needs "
    "independent servers: use nodes without replicas"
)


def _replicas_in(info: str) -> Optional[str]:
    if info_field(info, "role") == "slave":
        return "is a replica"
    count = info_field(info, "connected_slaves")
    if not count.isdigit() or int(count) == 0:
        return None
    return f"has {count} {'replica' if int(count) == 1 else 'replicas'}"


def _votes(proposals: Sequence[Proposal], reply: Any, place: str) -> list[Answer]:
    if isinstance(reply, Exception):
        return [store_error("acquire", reply, place)] * len(proposals)
    if not isinstance(reply, list) or len(reply) < 2:
        return [unexpected_reply("acquire", reply)] * len(proposals)
    first, *answers = reply
    if first == b"s" and type(answers[0]) is int:
        seconds = math.ceil(answers[0] / 1_000)
        silent = StoreError(f"it does not vote for another {seconds} s, because it may have forgotten leases")
        return [silent] * len(proposals)
    if type(first) is not int or first < 1:
        return [unexpected_reply("acquire", reply)] * len(proposals)
    if answers == [b"g"]:
        return [Grant(each.token, each.claim.ttl_ms, first) for each in proposals]
    if len(answers) != len(proposals):
        return [unexpected_reply("acquire", reply)] * len(proposals)
    return [read_acquire(each.claim, first, answer) for each, answer in zip(proposals, answers)]
