"""The driver for one server, one master behind Sentinel, or one Cluster."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, replace
from typing import Any, Callable, Optional, Sequence, Union

from ...core.driver import (
    Capabilities,
    Claim,
    DriverListener,
    Grant,
    InspectPage,
    InspectQuery,
    LeaseRef,
    RateAnswer,
    RateRequest,
    Refusal,
    RenewAnswer,
    Renewal,
    StopListening,
)
from ...errors import StoreError
from .checks import RedisWarning, ServerChecks
from .failures import closed_error, store_error
from .link import Link
from .lists import LeasesReply, Lists, Part
from .rates import consume
from .records import (
    TokenRefusal,
    acquire_args,
    entry_of,
    read_acquire,
    release_args,
    renew_args,
    text_of,
    ttl_text,
    unexpected_reply,
)
from .replicas import ReplicaWait, confirm_grants, renew_on_replicas
from .scripts import ScriptCall, protocol_script, run_scripts
from .subscription import Subscription
from .walk import inspect

CAPABILITIES = Capabilities(
    expiry="ttl",
    scope="network",
    fencing=True,
    shared=True,
    limit=True,
    queue=True,
    wake=True,
    metadata=True,
    rate=True,
    force="claim",
    groups=True,
)
CLUSTER_CAPABILITIES = replace(
    CAPABILITIES,
    groups=False,
    reasons={"groups": "names of different slots are on different servers, and no call reaches two of them"},
)


class RedisDriver:
    """Keeps leases in Redis or Valkey. Made by `redis_driver` and `open_redis`."""

    name = "redis"
    longest_ttl_ms: Optional[float] = None

    def __init__(
        self,
        link: Link,
        *,
        prefix: str,
        timeout_ms: float,
        replicas: Optional[ReplicaWait],
        on_warning: Callable[[RedisWarning], None],
    ) -> None:
        # Redlock's nodes are drivers like this one, and it calls their servers by these two.
        self.link = link
        self.lists = Lists(link, prefix, timeout_ms, by_slot=link.cluster)
        self._replicas = replicas
        self._checks = ServerChecks(link, on_warning)
        self._subscription = self._new_subscription()
        self._process = os.getpid()
        # The subscription may still be at the demoted server. The new master does not count it as a subscriber, so a
        # waiter would look dead to it.
        link.on_new_master(lambda: self._subscription.restart(StoreError("the master was replaced")))
        self._closed = False

    def _new_subscription(self) -> Subscription:
        return Subscription(
            self.link,
            secrets.token_urlsafe(9),
            self._checks.sharded,
            confirms_grants=self._replicas is not None,
        )

    @property
    def place(self) -> Optional[str]:
        return self.link.place

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self.place or 'a client'}>"

    @property
    def capabilities(self) -> Capabilities:
        return CLUSTER_CAPABILITIES if self.link.cluster else CAPABILITIES

    async def acquire(self, claims: Sequence[Claim]) -> Sequence[Union[Grant, Refusal, Exception]]:
        self._assert_open()
        self._checks.start()
        return await self.lists.send(claims, self._acquire_part)

    async def _acquire_part(self, part: Part[Claim]) -> list[list[Union[Grant, Refusal, Exception]]]:
        claims = [claim for chunk in part.chunks for claim in chunk]
        call = None
        if any(claim.waiter_ttl_ms > 0 for claim in claims):
            call = await self._subscription.sends(claims, part.slot)
        channel, secret = ("", "") if call is None else (call.channel, call.secret)
        replies = await self._run_acquire(part, channel, secret)
        waiting: list[Claim] = []
        answers: list[list[Union[Grant, Refusal, Exception]]] = []
        for chunk, reply in zip(part.chunks, replies):
            if isinstance(reply, Exception):
                answers.append([reply] * len(chunk))
                continue
            read: list[Union[Grant, Refusal, Exception]] = []
            for claim, entry in zip(chunk, reply.answers):
                answer = read_acquire(claim, reply.now_ms, entry)
                if isinstance(answer, TokenRefusal):
                    answer = unexpected_reply("acquire", entry)
                if call is not None and claim.waiter_ttl_ms > 0:
                    if isinstance(answer, Refusal):
                        waiting.append(claim)
                    else:
                        self._subscription.forget(claim.claim_id, call)
                read.append(answer)
            answers.append(read)
        if call is not None and call.is_unheard and waiting:
            await self._subscription.hear_slot(part.slot, waiting)
        if self._replicas is None:
            return answers
        return await confirm_grants(self.link, self.lists, self._replicas, part, answers)

    async def _run_acquire(
        self, part: Part[Claim], channel: str, secret: str
    ) -> list[Union[LeasesReply, Exception]]:
        """Taking a lock with many shared leases by force needs several calls, each of which ends a bounded number of
        them. The lock belongs to the new holder from the first call on. It is granted when all leases are ended."""
        spares = self.lists.prefix == ""
        args = [acquire_args(chunk, spares=spares) for chunk in part.chunks]
        replies = await self.lists.run_leases("acquire", part, args, channel, secret)
        for chunk, reply in zip(part.chunks, replies):
            while isinstance(reply, LeasesReply):
                answers = enumerate(reply.answers)
                left = [at for at, answer in answers if chunk[at].force_up_to and _is_unfinished(answer)]
                if not left:
                    break
                claims = [chunk[at] for at in left]
                again = Part(part.slot, [claims])
                more = await self.lists.run_leases(
                    "acquire", again, [acquire_args(claims, spares=spares)], channel, secret
                )
                for at, answer in enumerate(left):
                    (result,) = more
                    reply.answers[answer] = result if isinstance(result, Exception) else result.answers[at]
        return replies

    async def renew(self, renewals: Sequence[Renewal]) -> Sequence[Union[RenewAnswer, Exception]]:
        self._assert_open()
        return await self.lists.send(renewals, self._renew_part)

    async def _renew_part(self, part: Part[Renewal]) -> Sequence[Sequence[Union[RenewAnswer, Exception]]]:
        if self._replicas is not None:
            return await renew_on_replicas(self.link, self.lists, self._replicas, part)
        if self.link.cluster:
            return await self._renew_each(part)
        return await self._renew_lists(part)

    async def _renew_lists(self, part: Part[Renewal]) -> list[list[Union[RenewAnswer, Exception]]]:
        replies = await self.lists.run_leases("renew", part, [renew_args(chunk) for chunk in part.chunks])
        return [
            [reply] * len(chunk)
            if isinstance(reply, Exception)
            else [
                answer if isinstance(answer, Exception) else "renewed" if answer == 1 else "lost"
                for answer in reply.answers
            ]
            for chunk, reply in zip(part.chunks, replies)
        ]

    async def _renew_each(self, part: Part[Renewal]) -> list[list[Union[RenewAnswer, Exception]]]:
        """On a Cluster: renews each lease by the lock's own key. While a slot is being moved, a call with several keys
        is refused unless all of them exist on one node. Leases would then expire although their holders are alive. A
        renewal that the lock's own key does not decide goes to leases.lua."""
        prefix = self.lists.prefix
        answers: list[list[Union[RenewAnswer, Exception]]] = []
        for chunk in part.chunks:
            calls = [ScriptCall([prefix + each.lock_name], [entry_of(each), ttl_text(each.ttl_ms)]) for each in chunk]
            replies = await run_scripts(self.link, "renew", protocol_script("renew"), calls)
            found: list[Any] = [
                store_error("renew", reply, self.link.place)
                if isinstance(reply, Exception)
                else ("renewed" if reply == 1 else None)
                for reply in replies
            ]
            undecided = [at for at, answer in enumerate(found) if answer is None]
            if undecided:
                try:
                    (others,) = await self._renew_lists(Part(part.slot, [[chunk[at] for at in undecided]]))
                except Exception as error:
                    others = [error] * len(undecided)
                for at, answer in zip(undecided, others):
                    found[at] = answer
            answers.append(found)
        return answers

    async def release(self, leases: Sequence[LeaseRef]) -> Sequence[Union[bool, Exception]]:
        self._assert_open()
        return await self.lists.send(leases, self._release_part)

    async def _release_part(self, part: Part[LeaseRef]) -> list[list[Union[bool, Exception]]]:
        for chunk in part.chunks:
            for lease in chunk:
                self._subscription.forget(lease.claim_id)
        replies = await self.lists.run_leases("release", part, [release_args(chunk) for chunk in part.chunks])
        return [
            [reply] * len(chunk)
            if isinstance(reply, Exception)
            else [answer if isinstance(answer, Exception) else answer == 1 for answer in reply.answers]
            for chunk, reply in zip(part.chunks, replies)
        ]

    async def inspect(self, query: InspectQuery) -> InspectPage:
        self._assert_open()
        return await inspect(self.link, self.lists.prefix, query)

    async def consume(self, requests: Sequence[RateRequest]) -> Sequence[Union[RateAnswer, Exception]]:
        self._assert_open()
        return await consume(self.link, self.lists.prefix, requests)

    async def listen(self, listener: DriverListener) -> StopListening:
        self._assert_open()
        await self._subscription.listen(listener)

        async def stop() -> None:
            self._subscription.stop(listener)

        return stop

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._forget_parent()
        self._checks.stop()
        await self._subscription.close()
        await self.link.close()

    def _assert_open(self) -> None:
        if self._closed:
            raise closed_error()
        self._forget_parent()

    def _forget_parent(self) -> None:
        """After a fork: the parent's channel, its secrets and its subscription belong to the parent."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._subscription = self._new_subscription()


def _is_unfinished(answer: Any) -> bool:
    return isinstance(answer, list) and len(answer) > 0 and text_of(answer[0]) == "m"
