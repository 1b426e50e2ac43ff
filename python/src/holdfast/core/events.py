"""The events of an instance, and what each of them says."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import ContextManager, Literal, Optional, Type

from .driver import Metadata
from .lock_info import LockInfo

LossReason = Literal["expired", "missing", "force-released", "session", "failed"]
"""Why a lease was lost. `expired`: it was not renewed in time. `missing`: the store no longer had it, also because of a
forced release of which no message arrived. `force-released`: another client has ended it by force. `session`: the
connection that carried it has ended, or its event loop. `failed`: the driver failed."""


@dataclass(frozen=True)
class Event:
    """An event. Its name is that of its class: `renewal_failed` is a `RenewalFailed`."""


@dataclass(frozen=True)
class ClaimEvent(Event):
    """What every event of a claim has."""

    lock_name: str
    holder_id: str
    claim_id: str


@dataclass(frozen=True)
class LeaseEvent(ClaimEvent):
    """What every event of a lease has."""

    fencing_token: int


@dataclass(frozen=True)
class Requested(ClaimEvent):
    """A claim is about to be sent. Called in the context of the caller. One of `acquired`, `refused` and
    `acquire_failed` follows."""

    waits: bool


@dataclass(frozen=True)
class Waiting(ClaimEvent):
    """A claim found the lock held, and now waits. Emitted once."""

    holder: Optional[LockInfo]
    """One of the current holders, if the store shows it."""
    ahead: Optional[int]
    """The number of waiters before the claim, if the store has a queue."""


@dataclass(frozen=True)
class Acquired(LeaseEvent):
    """A claim was granted."""

    waited_ms: float


@dataclass(frozen=True)
class Refused(ClaimEvent):
    """A claim ended without a lease because of contention."""

    waited_ms: float
    holder: Optional[LockInfo]
    """One of the holders, if the store shows it."""


@dataclass(frozen=True)
class AcquireFailed(ClaimEvent):
    """A claim ended with an error: an outage, a cancellation, a deadlock, or the end of its instance."""

    waited_ms: float
    error: BaseException


@dataclass(frozen=True)
class Running(LeaseEvent):
    """A block is about to run under a lease. Not emitted for a re-entry."""

    in_generator: bool
    """Other code of its task or thread runs while the block is suspended."""
    around: list[ContextManager[object]] = field(default_factory=list, repr=False, compare=False)
    """What is entered around the block, in the context of its caller. For `holdfast.opentelemetry`."""


@dataclass(frozen=True)
class Renewed(LeaseEvent):
    """The store confirmed a renewal."""

    took_ms: float
    """How long that took."""


@dataclass(frozen=True)
class RenewalFailed(LeaseEvent):
    """One renewal failed. The lease is held until its deadline, and renewals continue."""

    error: Exception


@dataclass(frozen=True)
class ForceReleased(LeaseEvent):
    """This instance took the lock from its holders. Their instances emit `lost`. With a driver that ends leases one by
    one (`redlock`, `postgres_advisory`), `claim_id` and `fencing_token` are those of the lease that was ended."""

    metadata: Optional[Metadata]


@dataclass(frozen=True)
class Lost(LeaseEvent):
    """A lease ended before it was released."""

    held_ms: float
    """How long it was held."""
    reason: LossReason
    error: Exception
    """That of `lease.lost`."""


@dataclass(frozen=True)
class Released(LeaseEvent):
    """A lease was released."""

    held_ms: float
    """How long it was held."""


@dataclass(frozen=True)
class HandedOver(LeaseEvent):
    """A lease was handed over to another process, which emits `restored`."""

    held_ms: float
    """How long it was held here."""


@dataclass(frozen=True)
class Restored(LeaseEvent):
    """A lease that another process had handed over continues in this instance."""


@dataclass(frozen=True)
class ReleaseFailed(ClaimEvent):
    """A release failed. It is sent again a limited number of times. If all of them fail, the lease expires."""

    error: Exception


@dataclass(frozen=True)
class HeartbeatFailed(Event):
    """The heartbeat thread cannot open the store, and tries again. Until then only the event loop renews leases."""

    error: BaseException


@dataclass(frozen=True)
class ListenFailed(Event):
    """The subscription to the store's messages failed. Until it works again, waiting claims poll, and a holder learns
    of a forced release with its next renewal."""

    error: Exception


@dataclass(frozen=True)
class StoreFailed(Event):
    """The store could not be opened, or did not answer a claim or a step of a rate limiter. A claim that waits tries
    again. Renewals, releases and subscriptions that fail have events of their own."""

    operation: Literal["open", "acquire", "consume"]
    error: Exception


@dataclass(frozen=True)
class Consumed(Event):
    """A rate limiter has decided."""

    key: str
    cost: int
    allowed: bool
    fallback: bool
    """Its store did not answer, and the limiter's `fallback` decided."""


def name_of(kind: Type[Event]) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


EVENTS: dict[str, Type[Event]] = {
    name_of(kind): kind
    for kind in (
        *(Requested, Waiting, Acquired, Refused, AcquireFailed, Running, Renewed, RenewalFailed, ForceReleased, Lost),
        *(Released, HandedOver, Restored, ReleaseFailed, HeartbeatFailed, ListenFailed, StoreFailed, Consumed),
    )
}
"""Every event by its name."""
