"""A span for each claim, and one for each block that runs under a lease."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Optional, Type

from opentelemetry import context as contexts
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, Status, StatusCode, Tracer, set_span_in_context

from ..core import events
from ..core.emitter import warn_of_fault
from ..core.lock_info import LockInfo
from ..errors import HoldfastError
from .links import LeaseSpans, TracedLease
from .recorder import listen
from .templates import OTHER, template_finder


@dataclass
class _OpenClaim:
    """A claim that has not ended. Its span is created when it ends, with the time and the parent of its beginning: so a
    sampler sees all attributes and links."""

    context: Context
    started_ns: int
    started: float
    """On the monotonic clock, so that a step of the wall clock makes no span of hours."""
    waits: bool = False
    blocker: Optional[LockInfo] = None
    """One of the leases that it waits for, or was refused for."""
    blocking: Optional[Callable[[], SpanContext]] = None
    """That lease's span, if it is known."""
    ahead: Optional[int] = None


class Spans:
    """Makes spans until `close`."""

    def __init__(self, tracer: Tracer, templates: object, instances: object, lock_names: bool) -> None:
        """`lock_names`: whether spans show lock names, and messages of errors, which contain them. Raises
        `InvalidArgumentError`."""
        self._tracer = tracer
        self._template_of = template_finder(templates)
        self._lock_names = lock_names
        self._claims: dict[str, _OpenClaim] = {}
        self._leases = LeaseSpans()
        self._stop = listen(self._handlers(), instances)

    def close(self) -> None:
        self._stop()
        self._claims.clear()
        self._leases.clear()

    def _handlers(self) -> dict[Type[events.Event], Callable[[Any], None]]:
        def forget(event: events.ClaimEvent) -> None:
            self._leases.remove(event.claim_id)

        return {
            events.Requested: self._requested,
            events.Waiting: self._waiting,
            events.Acquired: self._acquired,
            events.Refused: self._refused,
            events.AcquireFailed: self._acquire_failed,
            events.Running: self._running,
            events.Lost: self._lost,
            events.Released: forget,
            events.HandedOver: forget,
            events.ReleaseFailed: forget,
        }

    def _requested(self, event: events.Requested) -> None:
        self._claims[event.claim_id] = _OpenClaim(contexts.get_current(), time.time_ns(), time.monotonic())

    def _waiting(self, event: events.Waiting) -> None:
        claim = self._claims.get(event.claim_id)
        if claim is not None:
            claim.waits, claim.ahead = True, event.ahead
            self._blocked(claim, event.holder)

    def _blocked(self, claim: _OpenClaim, holder: Optional[LockInfo]) -> None:
        claim.blocker = holder
        # Looked up now: when the wait is over, that lease has ended.
        claim.blocking = None if holder is None else self._leases.span_of(holder)

    def _acquired(self, event: events.Acquired) -> None:
        span = self._end_claim(event, "acquired", {"holdfast.fencing_token": event.fencing_token})
        if span is not None:
            key = event.fencing_token, event.holder_id, event.lock_name
            self._leases.add(event.claim_id, TracedLease(key, span.get_span_context()))

    def _refused(self, event: events.Refused) -> None:
        claim = self._claims.get(event.claim_id)
        if claim is not None and claim.blocker is None:
            self._blocked(claim, event.holder)
        self._end_claim(event, "refused", {})

    def _acquire_failed(self, event: events.AcquireFailed) -> None:
        kind = _type_of(event.error)
        failure = None if kind in _ENDED_BY_CALLER else event.error
        self._end_claim(event, "failed", {"error.type": kind}, failure)

    def _running(self, event: events.Running) -> None:
        event.around.append(self._locked(event))

    def _lost(self, event: events.Lost) -> None:
        lease = self._leases.get(event.claim_id)
        if lease is not None and lease.running is not None:
            attributes: dict[str, str] = {"holdfast.reason": event.reason}
            if self._lock_names:
                attributes["exception.message"] = str(event.error)
            lease.running.add_event("holdfast.lease.lost", attributes)
        self._leases.remove(event.claim_id)

    def _end_claim(
        self, event: events.ClaimEvent, outcome: str, more: dict[str, Any], failure: Optional[BaseException] = None
    ) -> Optional[Span]:
        claim = self._claims.pop(event.claim_id, None)
        if claim is None:
            return None
        attributes = {**self._base(event), "holdfast.outcome": outcome, "holdfast.waited": claim.waits, **more}
        if claim.ahead is not None:
            attributes["holdfast.waiters.ahead"] = claim.ahead
        if claim.blocker is not None:
            attributes["holdfast.blocker.holder.id"] = claim.blocker.holder_id
            attributes["holdfast.blocker.fencing_token"] = claim.blocker.fencing_token
        span = self._tracer.start_span(
            self._name("acquire", event),
            context=claim.context,
            attributes=attributes,
            links=None if claim.blocking is None else [Link(claim.blocking(), {"holdfast.link": "blocker"})],
            start_time=claim.started_ns,
        )
        if failure is not None:
            self._fail(span, failure)
        span.end(claim.started_ns + round((time.monotonic() - claim.started) * 1e9))
        return span

    @contextmanager
    def _locked(self, event: events.Running) -> Iterator[None]:
        """The span of a block. A fault of the tracer, or of a span processor, must not become one of the block."""
        span = before = inside = None
        try:
            before = contexts.get_current()
            attributes = {**self._base(event), "holdfast.fencing_token": event.fencing_token}
            span = self._tracer.start_span(self._name("locked", event), context=before, attributes=attributes)
            lease = self._leases.get(event.claim_id)
            if lease is not None:
                lease.span_context, lease.running = span.get_span_context(), span
            # What runs while a generator is suspended is not inside the block.
            if not event.in_generator:
                inside = set_span_in_context(span, before)
                contexts.attach(inside)
        except Exception as error:
            warn_of_fault("OpenTelemetry", error)
        try:
            yield
        except Exception as error:
            if span is not None:
                self._fail_block(span, error)
            raise
        finally:
            # Not `detach`, which complains if the block ends in another task than it began in.
            if inside is not None and before is not None and contexts.get_current() is inside:
                contexts.attach(before)
            if span is not None:
                _quietly(span.end)

    def _fail_block(self, span: Span, error: Exception) -> None:
        def fail() -> None:
            self._fail(span, error)
            if self._lock_names:
                span.record_exception(error)

        _quietly(fail)

    def _fail(self, span: Span, error: BaseException) -> None:
        span.set_attribute("error.type", _type_of(error))
        span.set_status(Status(StatusCode.ERROR, str(error) if self._lock_names else None))

    def _base(self, event: events.ClaimEvent) -> dict[str, Any]:
        name = {"holdfast.lock.name": event.lock_name} if self._lock_names else {}
        template = self._template_of(event.lock_name)
        return {"holdfast.lock.template": template, **name, "holdfast.holder.id": event.holder_id}

    def _name(self, verb: str, event: events.ClaimEvent) -> str:
        template = self._template_of(event.lock_name)
        return verb if template == OTHER else f"{verb} {template}"


def _quietly(call: Callable[[], object]) -> None:
    try:
        call()
    except Exception as error:
        warn_of_fault("OpenTelemetry", error)


def _type_of(error: BaseException) -> str:
    return error.code if isinstance(error, HoldfastError) else type(error).__name__


_ENDED_BY_CALLER = ("CancelledError", "CLOSED")
"""The caller wanted this end, so it is no error of the claim."""
