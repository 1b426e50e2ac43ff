"""The time of one candidate as the leader."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Callable, Iterator, Optional, Union

from ..core.emitter import notify
from ..core.in_flight import InFlight
from ..core.lease import HeldLease, LostEvent
from ..errors import HoldfastError, LeaseLostError, NotHeldError

DemotionReason = Union[LeaseLostError, NotHeldError]


class Term:
    """One candidate's time as the leader: from its election to its resignation or the loss of its lease.

    It can be used in a block that ends it: `async with await election.campaign() as term: …`.
    """

    def __init__(
        self,
        lease: HeldLease,
        value: Any,
        on_demoted: Optional[Callable[[Term, DemotionReason], object]],
        on_change: Callable[[], None],
        running: InFlight,
    ) -> None:
        self._lease = lease
        self._on_demoted = on_demoted
        self._on_change = on_change
        self._running = running
        self._ended: Optional[DemotionReason] = None
        self._watchers: set[Callable[[], None]] = set()
        self.value = value
        """What the leader published."""

    @property
    def name(self) -> str:
        """What is led."""
        return self._lease.lock_name

    @property
    def holder_id(self) -> str:
        return self._lease.holder_id

    @property
    def term(self) -> int:
        """The number of the term: the fencing token of the lease. Larger than that of every earlier term."""
        return self._lease.fencing_token

    @property
    def fencing_token(self) -> int:
        """The same number, under the name that guards expect. Pass it to what the leader writes to."""
        return self._lease.fencing_token

    @property
    def since(self) -> datetime:
        """By the store's clock."""
        return self._lease.acquired_at

    @property
    def held(self) -> bool:
        """Whether it leads now. Reads the clocks, so it is correct in the first statement after a stall."""
        return self._lease.held

    @property
    def remaining_seconds(self) -> float:
        """How long it leads from now if no renewal succeeds."""
        return self._lease.remaining_seconds

    @property
    def lost(self) -> LostEvent:
        """Is set when the lease is lost, no later than its deadline: `await term.lost`. A resignation is no loss."""
        return self._lease.lost

    async def wait_ended(self) -> DemotionReason:
        """Returns when the term has ended: the `LeaseLostError`, or a `NotHeldError` after a resignation."""
        self._lease.held  # notices a loss that no timer has reported yet
        if self._ended is None:
            over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            unwatch = self._watch_end(lambda: None if over.done() else over.set_result(None))
            try:
                await over
            finally:
                unwatch()
        assert self._ended is not None
        return self._ended

    def assert_held(self) -> None:
        """Raises `LeaseLostError` if the lease was lost, and `NotHeldError` after resigning."""
        self._lease.assert_held()

    async def resign(self) -> bool:
        """Ends the term at once and wakes the next candidate, even if work for this term is still running. True if it
        still led. No cancellation stops it.

        Raises `StoreError` if the store did not answer. The release is then sent again in the background; if that
        fails, the lease expires.
        """
        try:
            return await self._lease.release()
        finally:
            # Not when the term ends: a look at that moment would find the old leader.
            self._on_change()

    async def __aenter__(self) -> Term:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Resigns. An error of that would hide an error of the block."""
        try:
            await self._lease.answer_to(self._lease.begin_dispose())
        except HoldfastError:
            pass
        finally:
            self._on_change()

    def __repr__(self) -> str:
        return f"<Term {self.term} of {self.name!r} by {self.holder_id}, {'held' if self.held else 'not held'}>"

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        """Work runs under the lease: closing waits for it, and a release from outside is a loss for it."""
        self._lease.users += 1
        self._running.begin()
        try:
            yield
        finally:
            self._lease.users -= 1
            self._running.end()

    def _watch_end(self, ended: Callable[[], None]) -> Callable[[], None]:
        """Calls `ended` in the step in which the term ends, or at once if it has."""
        if self._ended is not None:
            ended()
        else:
            self._watchers.add(ended)
        return lambda: self._watchers.discard(ended)

    def _demote(self) -> None:
        """Called in the step in which the lease ends: before a release is sent, and before another can be elected."""
        if self._ended is not None:
            return
        self._ended = self._lease.loss_error or NotHeldError(self.name)
        watchers, self._watchers = self._watchers, set()
        for ended in watchers:
            ended()
        if self._on_demoted is not None:
            # The term ends whether or not the callback works, so its error must not stop the release.
            notify(f'on_demoted of the election "{self.name}"', self._on_demoted, self, self._ended)
        self._on_change()
