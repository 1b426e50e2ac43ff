"""The spans of leases, so that the span of a waiter can link to the one it waits for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Optional

from opentelemetry.trace import Span, SpanContext, TraceFlags, format_span_id, format_trace_id, get_current_span

from ..core.lock_info import LockInfo

_Key = tuple[int, str, str]


@dataclass
class TracedLease:
    """A lease that this process holds, with the span of its block or, until that runs, of its acquisition."""

    key: _Key
    span_context: SpanContext
    running: Optional[Span] = None
    """The span of the block that runs under the lease."""


class LeaseSpans:
    """The spans of the leases that this process holds."""

    def __init__(self) -> None:
        self._by_claim: dict[str, TracedLease] = {}
        self._by_key: dict[_Key, TracedLease] = {}

    def add(self, claim_id: str, lease: TracedLease) -> None:
        self.remove(claim_id)
        self._by_claim[claim_id] = lease
        self._by_key[lease.key] = lease

    def get(self, claim_id: str) -> Optional[TracedLease]:
        return self._by_claim.get(claim_id)

    def remove(self, claim_id: str) -> None:
        lease = self._by_claim.pop(claim_id, None)
        if lease is not None:
            self._by_key.pop(lease.key, None)

    def clear(self) -> None:
        self._by_claim.clear()
        self._by_key.clear()

    def span_of(self, holder: LockInfo) -> Optional[Callable[[], SpanContext]]:
        """The span of a holder, if it is in this process, or if it has put its `traceparent` into the lease's metadata.
        Call the result when the wait is over: the block may begin only after its lock was found held."""
        lease = self._by_key.get((holder.fencing_token, holder.holder_id, holder.lock_name))
        if lease is not None:
            return partial(getattr, lease, "span_context")
        context = _parsed((holder.metadata or {}).get("traceparent"))
        return None if context is None else lambda: context


def trace_metadata() -> dict[str, str]:
    """The current span in the form of W3C Trace Context, for the `metadata` of a claim. A process that has to wait for
    the lease then links its span to this one. Everyone who can read the store sees the ids. Empty without a span::

        async with lock.lock("report", metadata={**trace_metadata(), "job": "nightly"}):
            ...
    """
    context = get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    trace_id, span_id = format_trace_id(context.trace_id), format_span_id(context.span_id)
    return {"traceparent": f"00-{trace_id}-{span_id}-{context.trace_flags & 0xFF:02x}"}


_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


def _parsed(text: Any) -> Optional[SpanContext]:
    """Others write into the store, so anything else than a complete and valid text counts as none."""
    match = _TRACEPARENT.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        return None
    trace_id, span_id, flags = (int(part, 16) for part in match.groups())
    context = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))
    return context if context.is_valid else None
