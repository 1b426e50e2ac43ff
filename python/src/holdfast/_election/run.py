"""Campaigns, leads and campaigns again: `LeaderElection.run`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Awaitable, Callable, Optional, Union

from .._instance import Instance
from ..core.clock import backoff_ms
from ..core.tasks import answered, finish, pause, supervise
from ..errors import ClosedError, LeaseLostError, NotHeldError
from .term import Term

Lead = Callable[[Term], Union[Awaitable[Any], Any]]
OnError = Callable[[BaseException, Term], object]

_MAX_REST_MS = 30_000
_MIN_REST_MS = 100
"""After a failure, even with `rest_seconds=0`: a function that always fails must not campaign in a busy loop."""


@dataclass(frozen=True)
class LeadParts:
    instance: Instance
    campaign: Callable[[], Awaitable[Term]]


@dataclass(frozen=True)
class _Led:
    error: Optional[BaseException]
    lost: bool
    stopped: bool
    cancelled: Optional[asyncio.CancelledError]


async def lead_repeatedly(parts: LeadParts, lead: Lead, on_error: Optional[OnError], rest_ms: float) -> None:
    """See `LeaderElection.run`."""
    failures = 0
    while not parts.instance.closed:
        try:
            term = await parts.campaign()
        except ClosedError:
            # A campaign that ended because the election is closed is not an error.
            if parts.instance.closed:
                return
            raise
        led = await _lead_once(parts, term, lead)
        if led.error is not None:
            # A cancellation does not hide what the function raises while it stops.
            if on_error is None and (led.stopped or led.cancelled is None):
                raise led.error
            if on_error is not None:
                on_error(led.error, term)
        if led.cancelled is not None:
            # It is not lost if the function had failed before.
            raise led.cancelled from led.error
        failures = 0 if led.error is None else failures + 1
        if led.lost or parts.instance.closed:
            continue
        first_ms = rest_ms if led.error is None else max(rest_ms, _MIN_REST_MS)
        delay_ms = backoff_ms(first_ms, max(rest_ms, _MAX_REST_MS), max(failures, 1), parts.instance.random)
        await pause(parts.instance.clock, delay_ms, parts.instance.watch_closing)


async def _lead_once(parts: LeadParts, term: Term, lead: Lead) -> _Led:
    cancelled: Optional[asyncio.CancelledError] = None
    error: Optional[BaseException] = None
    stopped = False
    leader: Optional[asyncio.Task[Any]] = None

    def call() -> Union[Awaitable[Any], Any]:
        nonlocal leader
        leader = asyncio.current_task()
        return lead(term)

    def watch_end(stop: Callable[[], None]) -> Callable[[], None]:
        def ended() -> None:
            # A function that resigns goes on to its own end.
            if term.lost.is_set() or asyncio.current_task() is not leader:
                stop()

        return term._watch_end(ended)

    # The process may have stalled until the term was over.
    if term.held and not parts.instance.closed:
        # Closing waits for it.
        with term._in_use():
            led = await supervise(call, watch_end, parts.instance.watch_closing)
        cancelled = led.cancelled
        stopped = led.stopped
        error = led.error
        # That is how it stops. Reading `held` notices a loss that no timer has reported yet.
        if isinstance(error, (LeaseLostError, NotHeldError)) and (stopped or not term.held):
            error = None
    # Sent in this step: a program that cancels all tasks would also cancel a task that has not begun.
    resigning = term._lease.begin_release()
    try:
        await finish(answered(resigning))
    except asyncio.CancelledError as late:
        cancelled = late
    finally:
        term._on_change()
    return _Led(error, term.lost.is_set(), stopped, cancelled)
