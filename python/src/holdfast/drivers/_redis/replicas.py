"""Grants and renewals that count only when replicas have confirmed them (`WAIT`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Sequence, Union

from ...core.driver import Claim, Grant, Refusal, RenewAnswer, Renewal
from ...errors import StoreError
from .connection import Command
from .link import Link, ServerLink
from .lists import Lists, Part, fail_groups
from .records import renew_args
from .scripts import Script, ScriptCall, run_scripts_with


@dataclass(frozen=True)
class ReplicaWait:
    count: int
    """How many replicas must have confirmed a grant or a renewal."""
    timeout_ms: int


async def renew_on_replicas(
    link: Link, lists: Lists, replicas: ReplicaWait, part: Part[Renewal]
) -> list[list[Union[RenewAnswer, Exception]]]:
    """Renews, and waits until enough replicas have confirmed it. Only then is the answer `renewed`. With too few, it is
    unknown how long the lease lasts, because a failover may set its end back.

    WAIT covers what its own connection has written. Over another connection, to a replica that was promoted meanwhile,
    it is answered at once and says nothing about this lease. So both commands go over one connection. If that ends in
    between, neither counts.
    """
    assert isinstance(link, ServerLink)
    server = link
    seen = 0

    async def run(commands: Sequence[Command]) -> list[Any]:
        nonlocal seen
        wait = ("WAIT", str(replicas.count), str(replicas.timeout_ms))
        all_replies = await server.run_blocking("wait for replicas", [*commands, wait], replicas.timeout_ms / 1_000)
        replies, confirmed = all_replies[:-1], all_replies[-1]
        if isinstance(confirmed, Exception):
            return [confirmed] * len(replies)
        seen = int(confirmed)
        return replies

    async def run_calls(script: Script, calls: Sequence[ScriptCall]) -> list[Any]:
        return await run_scripts_with(run, script, calls)

    args = [renew_args(chunk) for chunk in part.chunks]
    answers: list[list[Union[RenewAnswer, Exception]]] = []
    for chunk, reply in zip(part.chunks, await lists.run_leases("renew", part, args, run=run_calls)):
        if isinstance(reply, Exception):
            answers.append([reply] * len(chunk))
            continue
        too_few = StoreError(
            f"{seen} of {replicas.count} replicas confirmed the lease within {replicas.timeout_ms} ms: it does not "
            "count"
        )
        renewed: Union[RenewAnswer, Exception] = "renewed" if seen >= replicas.count else too_few
        answers.append(
            [
                answer if isinstance(answer, Exception) else renewed if answer == 1 else "lost"
                for answer in reply.answers
            ]
        )
    return answers


async def confirm_grants(
    link: Link,
    lists: Lists,
    replicas: ReplicaWait,
    part: Part[Claim],
    answers: list[list[Union[Grant, Refusal, Exception]]],
) -> list[list[Union[Grant, Refusal, Exception]]]:
    """A grant counts when enough replicas have confirmed it. Otherwise a failover at this moment would forget it. For
    that it is renewed, over the connection that WAIT then covers. A renewal never re-creates a lease that was lost
    meanwhile.

    A grant that is not confirmed stays in the store, and its claim fails. The caller asks again or withdraws the claim.
    A release from here could arrive after the same claim has asked again, and end the new lease.
    """
    for chunk, chunk_answers in zip(part.chunks, answers):
        granted = [
            (at, answer) for at, answer in enumerate(chunk_answers) if isinstance(answer, Grant)
        ]
        if not granted:
            continue
        renewals = [
            Renewal(chunk[at].lock_name, chunk[at].claim_id, grant.fencing_token, chunk[at].ttl_ms)
            for at, grant in granted
        ]
        results: Sequence[Union[RenewAnswer, Exception]]
        try:
            (results,) = await renew_on_replicas(link, lists, replicas, Part(part.slot, [renewals]))
        except Exception as error:
            results = [error] * len(renewals)
        for (at, grant), result in zip(granted, results):
            if result == "renewed":
                chunk_answers[at] = replace(grant, ttl_ms=chunk[at].ttl_ms)
            elif isinstance(result, Exception):
                chunk_answers[at] = result
            else:
                chunk_answers[at] = StoreError("the lease was lost before replicas had confirmed it")
        fail_groups(chunk, chunk_answers)
    return answers
