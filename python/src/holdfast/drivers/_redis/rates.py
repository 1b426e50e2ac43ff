"""Rate-limiting steps by consume.lua, and changes of limits by rate-change.lua."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Sequence, Union

from ...core.driver import RateAnswer, RateRequest
from .._shared.gcra import Policy, answer_of, policy_of
from .failures import store_error
from .keys import rate_key, slot_of
from .link import Link
from .records import json_text, unexpected_reply
from .scripts import Script, ScriptCall, protocol_script, run_scripts

_MAX_ENTRIES = 32
"""Of one script."""


@dataclass(eq=False)
class _Take:
    """Equal requests of one list on one name. The store is asked once how many of them fit."""

    name: str
    policy: Policy
    indexes: list[int]

    @property
    def most(self) -> int:
        """How many times to take it at most. A request of cost 0 only looks."""
        return 0 if self.policy.cost == 0 else len(self.indexes)


async def consume(
    link: Link, prefix: str, requests: Sequence[RateRequest]
) -> list[Union[RateAnswer, Exception]]:
    """In the order of the list. A change of a limit is a call of its own, after the requests before it."""
    answers: list[Any] = [None] * len(requests)
    steps: list[int] = []
    for at, request in enumerate(requests):
        if not request.reset and request.block_ms is None:
            steps.append(at)
            continue
        await _take_steps(link, prefix, requests, steps, answers)
        steps = []
        answers[at] = await _change(link, prefix, request)
    await _take_steps(link, prefix, requests, steps, answers)
    return answers


async def _change(link: Link, prefix: str, request: RateRequest) -> Union[RateAnswer, Exception]:
    policy = policy_of(request)
    keys = [rate_key(prefix, request.name, each) for each in policy.ids]
    what = "reset" if request.block_ms is None else json_text(request.block_ms)
    call = ScriptCall(keys, [what, *(json_text(full) for full in policy.fulls_ms)])
    reply = await _run(link, protocol_script("rate-change"), call)
    if isinstance(reply, Exception):
        return reply
    if len(reply) != 1 + len(keys):
        return unexpected_reply("consume", reply)
    # The answer of a look: a changed limit has taken nothing.
    return answer_of(policy, True, [int(each) / 1_000_000 for each in reply[1:]], max(0, -int(reply[0])))


async def _take_steps(
    link: Link, prefix: str, requests: Sequence[RateRequest], indexes: Sequence[int], answers: list[Any]
) -> None:
    by_slot: dict[int, list[_Take]] = {}
    for take in _takes(requests, indexes):
        by_slot.setdefault(slot_of(prefix + take.name) if link.cluster else 0, []).append(take)
    await asyncio.gather(
        *(
            _take_part(link, prefix, takes[first : first + _MAX_ENTRIES], answers)
            for takes in by_slot.values()
            for first in range(0, len(takes), _MAX_ENTRIES)
        )
    )


def _takes(requests: Sequence[RateRequest], indexes: Sequence[int]) -> list[_Take]:
    takes: list[_Take] = []
    last_of: dict[str, _Take] = {}
    for at in indexes:
        request = requests[at]
        policy = policy_of(request)
        last = last_of.get(request.name)
        if last is not None and last.policy == policy:
            last.indexes.append(at)
        else:
            last_of[request.name] = take = _Take(request.name, policy, [at])
            takes.append(take)
    return takes


async def _take_part(link: Link, prefix: str, takes: Sequence[_Take], answers: list[Any]) -> None:
    keys = [rate_key(prefix, take.name, each) for take in takes for each in take.policy.ids]
    reply = await _run(link, protocol_script("consume"), ScriptCall(keys, _policy_args(takes)))
    if not isinstance(reply, Exception) and len(reply) != sum(1 + len(take.policy.ids) for take in takes):
        reply = unexpected_reply("consume", reply)
    at = 0
    for take in takes:
        if isinstance(reply, Exception):
            for index in take.indexes:
                answers[index] = reply
            continue
        count, *used = (int(each) for each in reply[at : at + 1 + len(take.policy.ids)])
        at += 1 + len(take.policy.ids)
        _answer(take, max(0, count), [each / 1_000_000 for each in used], max(0, -count), answers)


def _answer(take: _Take, count: int, used_ms: Sequence[float], blocked_ms: float, answers: list[Any]) -> None:
    policy = take.policy
    for place, index in enumerate(take.indexes):
        if policy.cost == 0:
            answers[index] = answer_of(policy, True, used_ms, blocked_ms)
            continue
        # As of before the steps that were taken after this one.
        later = max(0, count - 1 - place)
        before_ms = [max(0.0, used - later * step) for used, step in zip(used_ms, policy.steps_ms)]
        answers[index] = answer_of(policy, place < count, before_ms, blocked_ms)


def _policy_args(takes: Sequence[_Take]) -> list[str]:
    policies: list[Policy] = []
    chosen: list[int] = []
    for take in takes:
        if take.policy not in policies:
            policies.append(take.policy)
        chosen += [policies.index(take.policy) + 1, take.most]
    pairs = [[part for pair in zip(each.steps_ms, each.fulls_ms) for part in pair] for each in policies]
    is_plain = len(policies) == 1 and all(take.most == 1 for take in takes)
    return [json_text(pairs), "" if is_plain else json_text(chosen)]


async def _run(link: Link, script: Script, call: ScriptCall) -> Any:
    try:
        (reply,) = await run_scripts(link, "consume", script, [call])
    except Exception as error:
        return error
    if isinstance(reply, Exception):
        return store_error("consume", reply, link.place)
    return reply if isinstance(reply, list) else unexpected_reply("consume", reply)

