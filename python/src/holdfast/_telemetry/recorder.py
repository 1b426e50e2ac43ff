"""Turns events into measurements."""

from __future__ import annotations

import os
import time
import weakref
from typing import Any, Callable, Iterable, Iterator, NamedTuple, Optional, Protocol, Sequence, Type, get_args

from .._observable import Observable
from ..core import events
from ..core.emitter import process_events
from ..errors import InvalidArgumentError
from .templates import template_finder


class Sink(Protocol):
    """Receives what is measured. `values` are those of the metric's labels, in their order."""

    def add(self, name: str, values: Sequence[str], by: int) -> None:
        """Adding 0 makes the counter visible before its first event: a rate needs a first sample to compare with."""

    def record(self, name: str, values: Sequence[str], seconds: float) -> None: ...


class GaugeReading(NamedTuple):
    name: str
    values: Sequence[str]
    value: float


def listen(handlers: dict[Type[events.Event], Callable[[Any], None]], instances: object) -> Callable[[], None]:
    """Calls the handlers at the events of the instances, or of the whole process. Returns a function that ends it.
    Raises `InvalidArgumentError`."""
    emitters = [process_events]
    if instances is not None:
        if not isinstance(instances, (list, tuple)):
            raise InvalidArgumentError("instances", instances, "a list")
        for at, instance in enumerate(instances):
            if not isinstance(instance, Observable):
                raise InvalidArgumentError(f"instances[{at}]", instance, "a lock or another instance of Holdfast")
        emitters = [instance._events for instance in instances]
    stops = [emitter.listen(kind, handler) for emitter in emitters for kind, handler in handlers.items()]

    def stop() -> None:
        for each in stops:
            each()

    return stop


class Recording:
    """Measures until `close`."""

    def __init__(self, templates: object, instances: object, sink: Sink) -> None:
        """Raises `InvalidArgumentError`."""
        self._sink = sink
        self._template_of = template_finder(templates)
        self._locks: dict[str, None] = {}
        """The templates of the locks of which an event was seen."""
        self._held = Population()
        self._waiters = Population()
        self._stop = listen(self._handlers(), instances)
        for operation in _OPERATIONS:
            sink.add("store.errors", (operation,), 0)
        sink.add("heartbeat.failures", (), 0)
        _recordings.add(self)

    def gauges(self) -> Iterator[GaugeReading]:
        """As they are now."""
        now = time.monotonic()
        for population, count_name, age_name in (
            (self._held, "lock.held", "lock.longest_hold"),
            (self._waiters, "lock.waiters", "lock.longest_wait"),
        ):
            for group, (count, since) in population.read(list(self._locks)).items():
                yield GaugeReading(count_name, (group,), count)
                yield GaugeReading(age_name, (group,), 0.0 if since is None else max(0.0, now - since))

    def close(self) -> None:
        """All gauges are 0 from then on: what happens to a lease is not seen any more."""
        self._stop()
        self.forget()

    def forget(self) -> None:
        self._held.clear()
        self._waiters.clear()

    def _lock_of(self, event: events.ClaimEvent) -> str:
        """The template of a lock. With the first event of a template, its counters appear, with 0."""
        lock = self._template_of(event.lock_name)
        if lock not in self._locks:
            self._locks[lock] = None
            for name in _LOCK_COUNTERS:
                self._sink.add(name, (lock,), 0)
            for reason in get_args(events.LossReason):
                self._sink.add("lock.losses", (lock, reason), 0)
        return lock

    def _handlers(self) -> dict[Type[events.Event], Callable[[Any], None]]:
        sink, held, waiters, lock_of = self._sink, self._held, self._waiters, self._lock_of

        def ended(lock: str, outcome: str, waited_ms: float) -> None:
            sink.record("lock.wait.duration", (lock, outcome), waited_ms / 1_000)

        def let_go(event: events.LeaseEvent, lock: str, outcome: str, held_ms: float) -> None:
            held.remove(event.claim_id)
            sink.record("lock.hold.duration", (lock, outcome), held_ms / 1_000)

        def waiting(event: events.Waiting) -> None:
            lock = lock_of(event)
            sink.add("lock.contentions", (lock,), 1)
            waiters.add(event.claim_id, lock)

        def acquired(event: events.Acquired) -> None:
            lock = lock_of(event)
            if waiters.remove(event.claim_id):
                sink.add("lock.handoffs", (lock,), 1)
            ended(lock, "acquired", event.waited_ms)
            held.add(event.claim_id, lock)

        def refused(event: events.Refused) -> None:
            lock = lock_of(event)
            if not waiters.remove(event.claim_id):
                sink.add("lock.contentions", (lock,), 1)
            sink.add("lock.refusals", (lock,), 1)
            ended(lock, "refused", event.waited_ms)

        def acquire_failed(event: events.AcquireFailed) -> None:
            waiters.remove(event.claim_id)
            ended(lock_of(event), "failed", event.waited_ms)

        def restored(event: events.Restored) -> None:
            held.add(event.claim_id, lock_of(event))

        def renewed(event: events.Renewed) -> None:
            sink.record("lock.renewal.duration", (lock_of(event),), event.took_ms / 1_000)

        def renewal_failed(event: events.RenewalFailed) -> None:
            sink.add("lock.renewal.failures", (lock_of(event),), 1)
            sink.add("store.errors", ("renew",), 1)

        def released(event: events.Released) -> None:
            let_go(event, lock_of(event), "released", event.held_ms)

        def handed_over(event: events.HandedOver) -> None:
            let_go(event, lock_of(event), "handed_over", event.held_ms)

        def lost(event: events.Lost) -> None:
            lock = lock_of(event)
            sink.add("lock.losses", (lock, event.reason), 1)
            let_go(event, lock, "lost", event.held_ms)

        def release_failed(event: events.ReleaseFailed) -> None:
            # The process no longer relies on the lease, although the store may keep it until it expires.
            held.remove(event.claim_id)
            sink.add("lock.release.failures", (lock_of(event),), 1)
            sink.add("store.errors", ("release",), 1)

        def force_released(event: events.ForceReleased) -> None:
            sink.add("lock.forced_releases", (lock_of(event),), 1)

        def consumed(event: events.Consumed) -> None:
            template = self._template_of(event.key)
            sink.add("ratelimit.decisions", (template, "allowed"), int(event.allowed))
            sink.add("ratelimit.decisions", (template, "denied"), int(not event.allowed))

        return {
            events.Waiting: waiting,
            events.Acquired: acquired,
            events.Refused: refused,
            events.AcquireFailed: acquire_failed,
            events.Restored: restored,
            events.Renewed: renewed,
            events.RenewalFailed: renewal_failed,
            events.Released: released,
            events.HandedOver: handed_over,
            events.Lost: lost,
            events.ReleaseFailed: release_failed,
            events.ForceReleased: force_released,
            events.HeartbeatFailed: lambda _: sink.add("heartbeat.failures", (), 1),
            events.ListenFailed: lambda _: sink.add("store.errors", ("listen",), 1),
            events.StoreFailed: lambda event: sink.add("store.errors", (event.operation,), 1),
            events.Consumed: consumed,
        }


_OPERATIONS = ("open", "acquire", "renew", "release", "listen", "consume")
_LOCK_COUNTERS = (
    *("lock.contentions", "lock.refusals", "lock.handoffs"),
    *("lock.forced_releases", "lock.renewal.failures", "lock.release.failures"),
)


class Population:
    """What exists now: the leases that are held, or the claims that wait, by their claim's id. An id is counted once
    and removed once, so that neither a repeated event nor one whose beginning was not seen makes the count drift."""

    def __init__(self) -> None:
        self._members: dict[str, tuple[str, float]] = {}

    def add(self, member: str, group: str) -> None:
        # A dict keeps the order of insertion, and the last one is the youngest.
        self._members.pop(member, None)
        self._members[member] = group, time.monotonic()

    def remove(self, member: str) -> bool:
        """Whether it was there."""
        return self._members.pop(member, None) is not None

    def clear(self) -> None:
        self._members.clear()

    def read(self, groups: Iterable[str]) -> dict[str, tuple[int, Optional[float]]]:
        """The size of each group, and since when its oldest member is there. Counted here and not with each event: a
        server reads this a few times a minute, and locks come and go thousands of times a second."""
        readings: dict[str, tuple[int, Optional[float]]] = {group: (0, None) for group in groups}
        # A copy: event loops in other threads go on.
        for group, since in list(self._members.values()):
            count, oldest = readings.get(group, (0, None))
            readings[group] = count + 1, since if oldest is None else oldest
        return readings


_recordings: "weakref.WeakSet[Recording]" = weakref.WeakSet()


def _after_fork() -> None:
    """The leases and claims are those of the parent."""
    for recording in list(_recordings):
        recording.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
