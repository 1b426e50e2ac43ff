"""Rate-limiting steps, and changes of limits. protocol/postgres/functions.sql has the form of lists and answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Awaitable, Callable, Optional, Sequence, Union

from ...core.driver import RateAnswer, RateLimit, RateRequest
from ...errors import HoldfastError, OverloadError
from .._shared.gcra import Policy, answer_of, period_micros, policy_of
from .arrays import number_array, parse_floats, text_array
from .unstorable import without_unstorable
from .calls import Row

Call = Callable[[Sequence[Optional[str]]], Awaitable[Row]]
Answer = Union[RateAnswer, Exception]

_TOO_MANY_LIMITS = -1
"""Instead of a count. A lower value means that one of the limits is blocked, for the difference in ms."""


@dataclass
class _Take:
    """Equal requests of one list on one name. The store is asked once how many of them fit."""

    name: str
    policy: Policy
    limits: tuple[RateLimit, ...]
    indexes: list[int] = field(default_factory=list)

    @property
    def count(self) -> int:
        return 0 if self.policy.cost == 0 else len(self.indexes)


@dataclass(frozen=True)
class _Taken:
    count: int
    used_ms: Sequence[float]
    blocked_ms: float


async def consume(requests: Sequence[RateRequest], step: Call, change: Call) -> list[Answer]:
    """Changes of limits are rare. Each is a call of its own, after the requests before it in the list. A failure counts
    for its own part of the list only."""
    if not any(_is_change(request) for request in requests):
        return await _take_steps(requests, step)
    answers: list[Answer] = []
    part: list[RateRequest] = []

    async def take_part() -> None:
        try:
            answers.extend(await _take_steps(part, step))
        except HoldfastError as error:
            answers.extend(error for _ in part)
        part.clear()

    for request in requests:
        if not _is_change(request):
            part.append(request)
            continue
        await take_part()
        try:
            answers.append(await _change(request, change))
        except HoldfastError as error:
            answers.append(error)
    await take_part()
    return answers


def _is_change(request: RateRequest) -> bool:
    return request.reset or request.block_ms is not None


async def _change(request: RateRequest, change: Call) -> Answer:
    policy = policy_of(request)
    take = _Take(request.name, policy, tuple(request.limits), [0])
    _, numbers = _policy_list([take])
    block = None if request.reset else repr(request.block_ms)
    row = await change([request.name, number_array(numbers), block])
    taken = _taken_from(take, _numbers(row), 0)
    if isinstance(taken, Exception):
        return taken
    return answer_of(policy, policy.cost == 0 or taken.count >= 1, taken.used_ms, taken.blocked_ms)


async def _take_steps(requests: Sequence[RateRequest], step: Call) -> list[Answer]:
    """Sends a list in one statement. A statement can touch a row only once, so steps on one name with different costs
    or limits need further statements."""
    answers: dict[int, Answer] = {}
    waiting = _takes_of(requests)
    while waiting:
        now: dict[str, _Take] = {}
        later: list[_Take] = []
        for take in waiting:
            if now.setdefault(take.name, take) is not take:
                later.append(take)
        # Names that take a step come first, each part sorted byte by byte, so that lists never deadlock.
        takes = sorted(now.values(), key=lambda take: (take.policy.cost == 0, take.name.encode("utf-8")))
        await _consume_once(takes, answers, step)
        waiting = later
    return [answers[index] for index in range(len(requests))]


def _takes_of(requests: Sequence[RateRequest]) -> list[_Take]:
    takes: list[_Take] = []
    last_of: dict[str, _Take] = {}
    for index, request in enumerate(requests):
        policy = policy_of(request)
        last = last_of.get(request.name)
        if last is None or (last.policy.cost, last.policy.ids) != (policy.cost, policy.ids):
            last = _Take(request.name, policy, tuple(request.limits))
            last_of[request.name] = last
            takes.append(last)
        last.indexes.append(index)
    return takes


async def _consume_once(takes: Sequence[_Take], answers: dict[int, Answer], step: Call) -> None:
    async def send(part: Sequence[_Take]) -> Sequence[Union[_Taken, Exception]]:
        return await _take_once(part, step)

    for take, taken in zip(takes, await without_unstorable([[take] for take in takes], send)):
        for nth, index in enumerate(take.indexes):
            answers[index] = taken if isinstance(taken, Exception) else _answer(take.policy, taken, nth)


async def _take_once(takes: Sequence[_Take], step: Call) -> Sequence[Union[_Taken, Exception]]:
    places, numbers = _policy_list(takes)
    row = await step(
        [
            text_array(take.name for take in takes),
            number_array(take.count for take in takes),
            number_array(places),
            number_array(numbers),
        ]
    )
    states = _numbers(row)
    taken: list[Union[_Taken, Exception]] = []
    at = 0
    for take in takes:
        taken.append(_taken_from(take, states, at))
        at += 2 + int(states[at + 1])
    return taken


def _answer(policy: Policy, taken: _Taken, nth: int) -> RateAnswer:
    """The answer to the nth of equal requests: as of before the steps of those after it."""
    if policy.cost == 0:
        return answer_of(policy, True, taken.used_ms, taken.blocked_ms)
    later = max(0, taken.count - 1 - nth)
    used_ms = [max(0.0, used - later * step) for used, step in zip(taken.used_ms, policy.steps_ms)]
    return answer_of(policy, nth < taken.count, used_ms, taken.blocked_ms)


def _policy_list(takes: Sequence[_Take]) -> tuple[list[int], list[Union[int, float]]]:
    """Where the policy of each take begins, and the policies in one list, as `holdfast_rate_step` takes them."""
    numbers: list[Union[int, float]] = []
    known: dict[tuple[int, tuple[str, ...]], int] = {}
    places: list[int] = []
    for take in takes:
        key = (take.policy.cost, take.policy.ids)
        if key not in known:
            numbers.append(len(take.limits))
            known[key] = len(numbers)
            for limit in take.limits:
                numbers.extend((limit.limit, period_micros(limit), limit.burst))
            for step_ms, full_ms in zip(take.policy.steps_ms, take.policy.fulls_ms):
                numbers.extend((step_ms, full_ms))
        places.append(known[key])
    return places, numbers


def _taken_from(take: _Take, states: Sequence[float], at: int) -> Union[_Taken, Exception]:
    """Reads the answer to one request, which begins at this index."""
    count = states[at]
    if count == _TOO_MANY_LIMITS:
        return OverloadError(
            f'the key "{take.name}" has too many different limits: PostgreSQL keeps at most 32 that have not run out. '
            "This call took nothing. Use fewer different limits for one key, or wait until others have run out"
        )
    used_ms = [max(0.0, used) for used in states[at + 2 : at + 2 + len(take.limits)]]
    return _Taken(max(0, int(count)), used_ms, max(0.0, _TOO_MANY_LIMITS - count))


def _numbers(row: Row) -> list[float]:
    return [float(number or 0) for number in parse_floats(row["answers"])]
