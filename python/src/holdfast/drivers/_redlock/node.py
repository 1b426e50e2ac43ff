"""One node of a Redlock: what it needs of a server beyond what every driver has."""

from __future__ import annotations

import asyncio
import math
import re
from dataclasses import replace
from typing import Any, Callable, Optional, Sequence, Union

from ...core.driver import Claim, Grant, InspectPage, LeaseRef, Refusal
from ...core.tasks import start_task
from ...errors import StoreError
from .._redis.driver import RedisDriver
from .._redis.failures import is_forbidden_command, store_error
from .._redis.keys import VOTER
from .._redis.lists import Part
from .._redis.records import Proposal, TokenRefusal, acquire_args, read_acquire, release_args, text_of
from .._redis.scripts import Script, ScriptCall, guarded_script, run_scripts
from .._redis.walk import inspect_names

Answer = Union[Grant, Refusal, TokenRefusal, Exception]


class VotingNode:
    """`servers` has the name of the node for each `run_id`, and is shared by all nodes of a driver.

    No server may vote twice: a quorum must consist of different servers. Two names may lead to one server, and only the
    server itself knows. So each node is asked for its `run_id` together with its first vote.
    """

    def __init__(self, driver: RedisDriver, name: str, servers: dict[str, str]) -> None:
        self.driver = driver
        self.name = name
        self.place = driver.link.place
        self._servers = servers
        self._checked: Optional[asyncio.Task[None]] = None

    async def propose(
        self, claims: Sequence[Claim], proposals: Sequence[Proposal], longest_ttl_ms: Optional[int]
    ) -> Sequence[Answer]:
        """Claims with the tokens that the caller proposes. They do not queue. Fails if the node may have forgotten a
        lease of up to `longest_ttl_ms`. None: the node forgets nothing."""
        distinct = self._distinct()
        if distinct is None:
            return await self._propose(claims, proposals, longest_ttl_ms)
        # Both are sent before either is answered. A vote that does not count is released with the others.
        voting = start_task(self._propose(claims, proposals, longest_ttl_ms))
        try:
            await asyncio.shield(distinct)
        except Exception:
            await asyncio.wait({voting})
            voting.exception()
            raise
        return await voting

    async def _propose(
        self, claims: Sequence[Claim], proposals: Sequence[Proposal], longest_ttl_ms: Optional[int]
    ) -> Sequence[Answer]:
        lists = replace(self.driver.lists, by_slot=True)
        # By identity: a list may have one claim twice, with two tokens.
        token_of = {id(claim): proposal for claim, proposal in zip(claims, proposals)}

        async def run(script: Script, calls: Sequence[ScriptCall]) -> list[Any]:
            if longest_ttl_ms is None:
                return await run_scripts(lists.link, "acquire", script, calls)
            guarded = [ScriptCall([*each.keys, VOTER], [*each.args, str(longest_ttl_ms)]) for each in calls]
            replies = await run_scripts(lists.link, "acquire", guarded_script(script), guarded)
            return [_abstention(reply) or reply for reply in replies]

        async def send(part: Part[Claim]) -> list[list[Answer]]:
            args = [acquire_args(chunk, [token_of[id(claim)] for claim in chunk]) for chunk in part.chunks]
            answers: list[list[Answer]] = []
            for chunk, reply in zip(part.chunks, await lists.run_leases("acquire", part, args, run=run)):
                if isinstance(reply, Exception):
                    answers.append([reply] * len(chunk))
                else:
                    now_ms = reply.now_ms
                    answers.append([read_acquire(claim, now_ms, each) for claim, each in zip(chunk, reply.answers)])
            return answers

        return await lists.send(claims, send)

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
                answers.append([answer == 1 for answer in reply.answers])
            return answers

        return await lists.send(leases, send)

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
        run_id = await self._run_id()
        if run_id is None:
            return
        other = self._servers.setdefault(run_id, self.name)
        if other != self.name:
            raise StoreError(f"it is the same server as {other} (run_id {run_id}), and a server has one vote")

    async def _run_id(self) -> Optional[str]:
        """None if the user may not run INFO, or a proxy hides it."""
        (node,) = await self.driver.link.nodes()
        (reply,) = await node.exchange("read INFO", [("INFO", "server")])
        if isinstance(reply, Exception):
            if is_forbidden_command(reply):
                return None
            raise store_error("read INFO", reply, self.place)
        match = re.search(r"^run_id:(\w+)", text_of(reply), re.MULTILINE)
        return match[1] if match else None


def _abstention(reply: Any) -> Optional[StoreError]:
    if not isinstance(reply, list) or not reply or reply[0] != b"s":
        return None
    seconds = math.ceil(int(reply[1]) / 1_000)
    return StoreError(f"it does not vote for another {seconds} s, because it may have forgotten leases")
