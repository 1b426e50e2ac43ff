"""Notifications that have not been passed on yet.

They prove nothing, because every role that can connect can send to every channel. So the store is asked about each
grant. One that it confirms is passed on as the store states it. One that it does not confirm only wakes the waiter. A
loss only makes the holder ask.

One query is in flight at a time, about all hints that came meanwhile. Rounds that confirm nothing have a bounded rate,
so that a flood of forged notifications costs a bounded number of queries. Hints that come faster are handled together,
and a real one among them is late by at most one round.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from itertools import islice
from typing import Awaitable, Callable, Literal, Mapping, Optional, Set

from ...core.driver import DriverListener, Grant
from ...core.tasks import start_task
from ...errors import StoreError

_MAX_HINTS = 10_000
"""The claims that may have a hint between two rounds. More are dropped: the slow poll of each claim covers them."""
_MAX_EMPTY_ROUNDS = 20.0
"""How many rounds in a row may confirm nothing, and after that one in so many seconds."""
_EMPTY_ROUND_SECONDS = 0.05
_MAX_LIST = 1_000


@dataclass(frozen=True)
class Hint:
    kind: Literal["granted", "wake", "lost"]
    about: str
    """The lock name or, for `lost`, the new holder."""


class HintQueue:
    def __init__(
        self,
        listeners: Set[DriverListener],
        confirm: Callable[[Mapping[str, str]], Awaitable[Mapping[str, Grant]]],
    ) -> None:
        """`confirm` asks the store which claims hold their lock: from lock names to grants, by claim id."""
        self._listeners = listeners
        self._confirm = confirm
        self._hints: dict[str, Hint] = {}
        self._running: Optional[asyncio.Task[None]] = None
        self._empty_rounds = _MAX_EMPTY_ROUNDS
        self._refilled = time.monotonic()

    def add(self, claim_id: str, hint: Hint) -> None:
        if len(self._hints) >= _MAX_HINTS or not any(each.concerns(claim_id) for each in self._listeners):
            return
        # Every other hint includes a wake-up.
        if hint.kind != "wake" or claim_id not in self._hints:
            self._hints[claim_id] = hint
        if self._running is None:
            self._running = start_task(self._run())

    def clear(self) -> None:
        """Drops the hints that have not been passed on yet."""
        self._hints.clear()

    async def _run(self) -> None:
        try:
            while self._hints:
                if not self._may_be_empty():
                    await asyncio.sleep(_EMPTY_ROUND_SECONDS)
                await self._round(dict(islice(self._hints.items(), _MAX_LIST)))
        finally:
            self._running = None

    async def _round(self, hints: Mapping[str, Hint]) -> None:
        for claim_id in hints:
            self._hints.pop(claim_id, None)
        claims = {claim_id: hint.about for claim_id, hint in hints.items() if hint.kind == "granted"}
        grants: Mapping[str, Grant] = {}
        if claims:
            try:
                grants = await self._confirm(claims)
            except Exception:
                # The waiters are woken and ask for themselves, with the deadlines and retries of every claim.
                pass
        for claim_id, hint in hints.items():
            grant = grants.get(claim_id)
            for listener in list(self._listeners):
                if grant is not None:
                    listener.granted(claim_id, grant)
                elif hint.kind == "lost":
                    listener.lost(claim_id, StoreError(f"it was stolen by {hint.about}"))
                else:
                    listener.wake(hint.about, claim_id)
        if len(grants) < len(hints):
            self._empty_rounds -= 1

    def _may_be_empty(self) -> bool:
        now = time.monotonic()
        refill = (now - self._refilled) / _EMPTY_ROUND_SECONDS
        self._empty_rounds = min(_MAX_EMPTY_ROUNDS, self._empty_rounds + refill)
        self._refilled = now
        return self._empty_rounds >= 1
