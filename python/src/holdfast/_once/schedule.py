"""The ticks of one schedule in one instance."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any, Generic, List, Literal, Optional, TypeVar, Union

from .._instance import Instance
from ..core.clock import backoff_ms
from ..core.holder import ClaimRequest, Holder, Refused
from ..core.lease import HeldLease
from ..core.store_client import is_outage
from ..core.tasks import pause
from ..errors import ClosedError, LeaseLostError, StoreError
from .results import FoundResult, assert_keeps_results
from .runs import Job, Runs, Turn
from .tick import TickNames, tick_names

T = TypeVar("T")

Missed = Literal["skip", "last", "all"]
Reason = Literal["elsewhere", "overlap", "missed", "closed"]


@dataclass(frozen=True)
class TickResult(Generic[T]):
    """What happened to a tick. True in a condition if it ran here."""

    ran: bool
    result: Optional[T] = None
    """What the job returned."""
    reason: Optional[Reason] = None
    """Why it did not run."""

    def __bool__(self) -> bool:
        return self.ran


@dataclass(frozen=True)
class ScheduleOptions:
    name: str
    ttl_ms: float
    patience_ms: float
    for_ms: float
    """How long the record of a tick is kept."""
    missed: Missed
    overlap: bool


class Schedule:
    """The calls ask the store one at a time, in the order in which they came. So after an outage there is one call that
    asks, and those behind it: only the last of them runs, or all in order. A call leaves the queue with the store's
    answer. With `missed="all"` it stays until it has ended."""

    def __init__(self, instance: Instance, runs: Runs, options: ScheduleOptions) -> None:
        self._instance = instance
        self._runs = runs
        self._options = options
        self._queue: List[_Call] = []
        """The calls that the store has not answered. The first one asks."""
        self._newest: Optional[_Call] = None
        self._has_yielded = False
        """The last call that got the lock left it to a later one. That one keeps it, or a slow store would prevent
        all."""

    async def call(self, tick: str, job: Job[T]) -> TickResult[T]:
        options = self._options
        names = tick_names(options.name, tick, options.overlap)
        first = self._queue[0] if self._queue else None
        # Only with `missed="all"` is the first one still here when the store has answered.
        if first is not None and first.answered and first.tick != tick and not options.overlap:
            return _skipped("overlap")
        before = self._queue[-1] if self._queue else None
        call = self._newest = _Call(tick, late=before is not None)
        self._queue.append(call)
        try:
            if before is not None:
                await before.left.wait()
            turn = await self._turn(call, names)
            if isinstance(turn, TickResult):
                return turn
            granted = turn
            return await self._runs.under(granted.holder, granted.lease, lambda: self._run(call, names, granted, job))
        except ClosedError:
            if call.begun:
                raise
            return _skipped("closed")
        except LeaseLostError:
            if call.begun or not self._instance.closed:
                raise
            return _skipped("closed")
        finally:
            # After the lease was released: the next call must not find its own instance in its way.
            self._leave(call)

    async def _run(self, call: _Call, names: TickNames, granted: _Granted, job: Job[T]) -> TickResult[T]:
        holder, lease, runs = granted.holder, granted.lease, self._runs
        if await runs.insist(lease, lambda: runs.find(holder, names.done)) is not None:
            return _skipped("elsewhere")
        if self._yields(call):
            return _skipped("missed")
        # The lease may have ended meanwhile, by closing, by force or by time. Then another run may have begun.
        lease.assert_held()
        call.begun = call.answered = True
        if self._options.missed != "all" or (self._options.overlap and not call.late):
            self._leave(call)

        def found(_: FoundResult) -> None:
            """No call waits for the result of a tick."""

        # Nothing reads the result of a tick from the store, so it need not be JSON.
        turn = Turn(holder, lease, names.key, names.done, self._options.for_ms, lambda _: {}, found)
        return TickResult(True, (await runs.run(turn, job)).own)

    async def _turn(self, call: _Call, names: TickNames) -> Union[TickResult[Any], _Granted]:
        """Asks the store, and waits while the tick runs elsewhere. Returns a lease, or why there is none."""
        options, runs, instance = self._options, self._runs, self._instance
        until_ms = runs.now_ms + options.patience_ms
        claim = ClaimRequest(names.run, options.ttl_ms, 0, heartbeat=True, metadata={"tick": call.tick})
        tries = 0
        while True:
            tries += 1
            if self._superseded(call):
                return _skipped("missed")
            rest_ms = backoff_ms(50, 2_000, tries, instance.random)
            try:
                asked = runs.claims.prepared(replace(claim))
                holder = await instance.open()
                assert_keeps_results(holder.driver_name, holder.capabilities, holder.longest_ttl_ms, options.for_ms)
                outcome = await holder.acquire(asked)
                if isinstance(outcome, HeldLease):
                    return _Granted(holder, outcome)
                self._has_yielded = False
                found = await self._found_elsewhere(holder, call, outcome, names.done)
                if found == "done":
                    return _skipped("elsewhere")
                if found == "busy" and not (options.missed == "all" and call.late):
                    return _skipped("overlap")
                if found != "unknown":
                    call.answered = True
                    if options.missed != "all":
                        self._leave(call)
                    left_ms = max(0, until_ms - runs.now_ms)
                    # A tick that is over frees the lock at once, or when its lease ends.
                    patience_ms = max(left_ms, options.ttl_ms) if found == "over" else left_ms
                    otherwise: Reason = "elsewhere" if found == "same" else "overlap"
                    return await self._wait(holder, replace(claim, wait_ms=patience_ms), otherwise)
                if runs.now_ms >= until_ms:
                    return _skipped("elsewhere")
            except StoreError as error:
                if not is_outage(error) or options.missed == "skip" or runs.now_ms + rest_ms >= until_ms:
                    raise
                call.late = True
            await pause(instance.clock, rest_ms, instance.watch_closing)

    async def _found_elsewhere(
        self, holder: Holder, call: _Call, refused: Refused, done: str
    ) -> Literal["unknown", "same", "done", "busy", "over"]:
        """Why the lock was refused. `over`: by a tick that is done, whose holder only looks or is about to release."""
        record = refused.refusal.holder
        # Where votes are split, no one has the lock yet.
        if record is None:
            return "unknown"
        theirs = None if record.metadata is None else record.metadata.get("tick")
        if theirs == call.tick:
            return "same"
        if await self._runs.find(holder, done) is not None:
            return "done"
        if not isinstance(theirs, str):
            return "busy"
        others = tick_names(self._options.name, theirs, self._options.overlap).done
        return "busy" if await self._runs.find(holder, others) is None else "over"

    async def _wait(
        self, holder: Holder, claim: ClaimRequest, otherwise: Reason
    ) -> Union[TickResult[Any], _Granted]:
        """Waits for the run of another process, to take over if it does not end well."""
        if claim.wait_ms == 0:
            return _skipped(otherwise)
        self._runs.claims.prepared(claim)
        self._runs.claims.reentry.assert_outside(claim, "a run has no result before it has ended")
        outcome = await holder.acquire(claim)
        return _Granted(holder, outcome) if isinstance(outcome, HeldLease) else _skipped(otherwise)

    def _superseded(self, call: _Call) -> bool:
        """A later tick has come. With `missed="all"` that does not matter."""
        newest = self._newest
        return self._options.missed != "all" and newest is not None and newest.tick != call.tick

    def _yields(self, call: _Call) -> bool:
        superseded = self._superseded(call)
        # A call that has left the queue waited for a run elsewhere. A later tick runs by itself.
        if call not in self._queue:
            return superseded
        self._has_yielded = superseded and not self._has_yielded
        return self._has_yielded

    def _leave(self, call: _Call) -> None:
        if call in self._queue:
            self._queue.remove(call)
        call.left.set()


class _Call:
    def __init__(self, tick: str, *, late: bool) -> None:
        self.tick = tick
        self.late = late
        """It could not run when it came: it had to wait behind another call, or for a store that was away."""
        self.answered = False
        self.begun = False
        self.left = asyncio.Event()


@dataclass(frozen=True)
class _Granted:
    holder: Holder
    lease: HeldLease


def _skipped(reason: Reason) -> TickResult[Any]:
    return TickResult(False, reason=reason)
