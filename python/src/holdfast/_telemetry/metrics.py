"""Every metric by its name, as in TypeScript: one dashboard shows the processes of both languages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Optional, Sequence


@dataclass(frozen=True)
class Metric:
    kind: Literal["histogram", "counter", "gauge"]
    unit: str
    """`s`, or what is counted, in braces."""
    labels: Sequence[str]
    help: str
    buckets: Optional[Sequence[float]] = None
    """The upper bounds of a histogram's buckets, in seconds."""


METRICS = {
    "lock.wait.duration": Metric(
        "histogram",
        "s",
        ("lock", "outcome"),
        "Time from the request for a lock to its end, also of claims that were granted at once.",
        (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
    ),
    "lock.hold.duration": Metric(
        "histogram",
        "s",
        ("lock", "outcome"),
        "Time for which a lease was held.",
        (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3_600),
    ),
    "lock.renewal.duration": Metric(
        "histogram",
        "s",
        ("lock",),
        "Time from the request to renew a lease to its confirmation.",
        (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
    ),
    "lock.contentions": Metric(
        "counter", "{claim}", ("lock",), "Claims that found the lock held, and then waited or were refused."
    ),
    "lock.refusals": Metric(
        "counter", "{claim}", ("lock",), "Claims that ended without a lease because another claim held the lock."
    ),
    "lock.handoffs": Metric("counter", "{lease}", ("lock",), "Grants to a claim that had waited."),
    "lock.losses": Metric("counter", "{lease}", ("lock", "reason"), "Leases that ended before they were released."),
    "lock.forced_releases": Metric("counter", "{lock}", ("lock",), "Locks that this process force-released."),
    "lock.renewal.failures": Metric("counter", "{renewal}", ("lock",), "Renewals that the store did not confirm."),
    "lock.release.failures": Metric("counter", "{release}", ("lock",), "Releases that the store did not confirm."),
    "store.errors": Metric(
        "counter", "{error}", ("operation",), "Requests that the store did not answer, by operation."
    ),
    "heartbeat.failures": Metric(
        "counter", "{failure}", (), "Heartbeat threads that ended, so that the main thread renews."
    ),
    "ratelimit.decisions": Metric("counter", "{decision}", ("key", "decision"), "Decisions of rate limiters."),
    "lock.held": Metric("gauge", "{lease}", ("lock",), "Leases that this process holds."),
    "lock.waiters": Metric("gauge", "{claim}", ("lock",), "Claims of this process that wait."),
    "lock.longest_hold": Metric("gauge", "s", ("lock",), "Age of the oldest lease that this process holds."),
    "lock.longest_wait": Metric("gauge", "s", ("lock",), "Age of the oldest claim of this process that waits."),
}

LABELS = {
    "lock": "holdfast.lock.template",
    "key": "holdfast.key.template",
    "outcome": "holdfast.outcome",
    "reason": "holdfast.reason",
    "operation": "holdfast.operation",
    "decision": "holdfast.decision",
}
"""The names of the labels in OpenTelemetry, where names of a library begin with its own."""


def prometheus_name(name: str) -> str:
    metric = METRICS[name]
    unit, total = "_seconds" if metric.unit == "s" else "", "_total" if metric.kind == "counter" else ""
    return f"holdfast_{name.replace('.', '_')}{unit}{total}"
