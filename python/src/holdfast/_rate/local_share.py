"""Units of a rate limit that are taken in blocks and handed out in this process."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Awaitable, Callable, List, Optional

from ..core.arguments import Seconds, check_seconds, check_whole, number_of
from ..core.clock import Clock, Instant
from ..core.limits import MAX_TTL_MS
from ..core.tasks import create_detached_task
from ..errors import InvalidArgumentError
from .limits import LimitStanding, RateLimitResult

_MAX_SHARES = 10_000
"""How many keys can have a share. With more, the rest of the oldest is lost."""


@dataclass(frozen=True, init=False)
class LocalShare:
    """Takes units from the store in blocks and hands them out in this process: one round trip per block instead of one
    per call, for keys that are in constant use.

    The store never grants more than its limits. But a unit may be used up to `for_seconds` after it was taken. So up to
    `units` more per process can fall into a period, and up to `units` per key and process are lost if they are not used
    in time.
    """

    units: int
    """How many units are taken from the store at once. At most the smallest burst."""
    for_seconds: float
    """How long these units may be handed out. The rest is then lost. From 0.001 to one year."""

    def __init__(self, units: int, for_seconds: Seconds) -> None:
        """Checked by the limiter that gets it."""
        object.__setattr__(self, "units", units)
        object.__setattr__(self, "for_seconds", number_of(for_seconds))


def check_share(value: object, most_units: int) -> LocalShare:
    if not isinstance(value, LocalShare):
        raise InvalidArgumentError("local_share", value, "a LocalShare")
    units = check_whole("local_share.units", value.units, 1, most_units)
    return LocalShare(units, check_seconds("local_share.for_seconds", value.for_seconds, 0.001, MAX_TTL_MS / 1_000))


@dataclass
class _Block:
    left: int
    until: Instant


@dataclass
class _Budget:
    blocks: List[_Block] = field(default_factory=list)
    """What is left of each block, the oldest first."""
    answer: Optional[RateLimitResult] = None
    """The store's answer to the last block, which was asked for at `asked_at`."""
    asked_at: Optional[Instant] = None
    empty_until: Optional[Instant] = None
    """The store has no full block before this time."""
    fetching: Optional[asyncio.Task[None]] = field(default=None, repr=False)

    def drop_past(self, now: Instant) -> None:
        self.blocks = [block for block in self.blocks if block.left > 0 and not block.until.is_past(now)]


class LocalShares:
    """Hands out units from blocks that were taken in advance.

    A call for more than what is left fetches a block, and is answered from both. A call that comes meanwhile waits for
    that block. If it gets none of it, or if the store has no full block left, the call asks for its own units. So a
    call costs at most two round trips.
    """

    def __init__(self, share: LocalShare, clock: Clock, ask: Callable[[str, int], Awaitable[RateLimitResult]]) -> None:
        self._share = share
        self._clock = clock
        self._ask = ask
        self._budgets: dict[str, _Budget] = {}

    async def consume(self, key: str, cost: int) -> RateLimitResult:
        if cost > self._share.units:
            return await self._ask(key, cost)
        budget = self._budgets.get(key) or _Budget()
        now = self._clock.now()
        budget.drop_past(now)
        taken = self._take(budget, cost)
        if taken is not None:
            return taken
        if budget.fetching is None and budget.empty_until is not None and not budget.empty_until.is_past(now):
            return await self._ask(key, cost)
        # Shielded: other calls wait for the same block. Calls that waited for it get their units even if its time was
        # over when it arrived, because they are taken.
        await asyncio.shield(budget.fetching or self._fetch(key, budget, now))
        taken = self._take(budget, cost)
        return await self._ask(key, cost) if taken is None else taken

    def forget(self, key: str) -> None:
        """The key was reset or blocked: units that were taken before are no longer handed out."""
        self._budgets.pop(key, None)

    def _take(self, budget: _Budget, cost: int) -> Optional[RateLimitResult]:
        """From the oldest block first."""
        answer, asked_at = budget.answer, budget.asked_at
        left = sum(block.left for block in budget.blocks) - cost
        if answer is None or asked_at is None or left < 0:
            return None
        missing = cost
        for block in budget.blocks:
            taken = min(block.left, missing)
            block.left -= taken
            missing -= taken
        aged = max(0.0, self._clock.now().monotonic_ms - asked_at.monotonic_ms) / 1_000
        return replace(
            answer,
            remaining=answer.remaining + left,
            reset_after_seconds=max(0.0, answer.reset_after_seconds - aged),
            limits=tuple(
                LimitStanding(
                    each.remaining + left,
                    max(0.0, each.next_after_seconds - aged),
                    max(0.0, each.reset_after_seconds - aged),
                )
                for each in answer.limits
            ),
        )

    def _fetch(self, key: str, budget: _Budget, now: Instant) -> asyncio.Task[None]:
        self._budgets.pop(key, None)
        if len(self._budgets) >= _MAX_SHARES:
            del self._budgets[next(iter(self._budgets))]
        self._budgets[key] = budget
        # In an empty context: the block serves all callers, not the one that happened to come first.
        task = create_detached_task(self._fill(key, budget, now))
        # If all callers are cancelled, no one reads its error, and asyncio would report that.
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        budget.fetching = task
        return task

    async def _fill(self, key: str, budget: _Budget, asked_at: Instant) -> None:
        try:
            result = await self._ask(key, self._share.units)
            if not result.allowed:
                budget.empty_until = asked_at.later(result.retry_after_seconds * 1_000)
                return
            budget.drop_past(self._clock.now())
            budget.blocks.append(_Block(self._share.units, asked_at.later(self._share.for_seconds * 1_000)))
            budget.answer, budget.asked_at = result, asked_at
        finally:
            budget.fetching = None
