"""Continues a lease that another process has handed over."""

from __future__ import annotations

import math
import weakref
from typing import NamedTuple

from ..errors import InvalidArgumentError, LeaseLostError, OverloadError, StoreError, UnsupportedError
from .clock import Instant
from .deadline import trusted_until
from .driver import Driver, Renewal
from .hand_over import HandOver
from .lease import LeaseContext
from .limits import MAX_UNANSWERED_RESTORES
from .renewer import NOT_IN_STORE


class Restored(NamedTuple):
    """The store has confirmed the lease."""

    sent: Instant
    answered: Instant
    granted_ms: float
    """For how long it can be relied on, from `sent`."""
    unanswered_ms: float


class _Restore(NamedTuple):
    """A restore that is in flight, or was never answered."""

    in_flight: bool
    unanswered_ms: float
    """The shortest TTL that was never answered."""


_restores: "weakref.WeakKeyDictionary[Driver, dict[str, _Restore]]" = weakref.WeakKeyDictionary()
"""By claim. Two restores of the same lease must not even be sent: the second one would set the lease to another end
than the one that the first one relies on. A restore that was never answered may arrive after the next one was
answered."""


async def restore(context: LeaseContext, handed_over: HandOver, ttl_ms: int) -> Restored:
    """Renews the lease once. If the store does not answer, the lease stays in the store until it expires, and the same
    text can be restored again. So it can after a cancellation.

    Raises `UnsupportedError` where a lease lasts as long as its connection; `InvalidArgumentError` while this process
    holds the same lease or is restoring it; `LeaseLostError` if the store no longer has the lease; `StoreError`;
    `OverloadError` if too many restores were never answered.
    """
    store = context.store
    driver = store.driver
    if store.ends_with_session:
        raise UnsupportedError(
            f"the {driver.name} driver cannot restore a lease: a lease ends with the connection that acquired it"
        )
    claim_id = handed_over.claim_id
    try:
        known = _restores.setdefault(driver, {})
    except TypeError:
        # A driver of someone else that has no hash or takes no weak reference.
        known = {}
    earlier = known.get(claim_id)
    if store.lease_of(claim_id) is not None or (earlier is not None and earlier.in_flight):
        rule = "restored only once: this process already holds the lease or is restoring it"
        raise InvalidArgumentError("text", "a lease of this process", rule)
    if earlier is None and len(known) >= MAX_UNANSWERED_RESTORES:
        raise OverloadError(f"the store never answered {MAX_UNANSWERED_RESTORES} restores: repeat those first")
    unanswered_ms = math.inf if earlier is None else earlier.unanswered_ms
    known[claim_id] = _Restore(True, unanswered_ms)
    # Also if the caller is cancelled: the renewal has been sent.
    left_ms = min(unanswered_ms, ttl_ms)
    try:
        restored = await _renew(context, handed_over, ttl_ms, unanswered_ms)
        left_ms = math.inf
        return restored
    except LeaseLostError:
        # What the store has lost cannot be cut short any more.
        left_ms = math.inf
        raise
    finally:
        if left_ms < math.inf:
            known[claim_id] = _Restore(False, left_ms)
        else:
            del known[claim_id]


async def _renew(context: LeaseContext, handed_over: HandOver, ttl_ms: int, earlier_ms: float) -> Restored:
    name, token = handed_over.lock_name, handed_over.fencing_token
    sent = context.clock.now()
    context.in_flight.begin()
    try:
        answer = await context.store.confirm(Renewal(name, handed_over.claim_id, token, ttl_ms))
    finally:
        context.in_flight.end()
    answered = context.clock.now()
    if answer != "renewed":
        raise LeaseLostError(name, token, NOT_IN_STORE)
    # An unanswered renewal, of the first holder or of an earlier restore, may reach the store after this one and set
    # the lease to a shorter end. So the lease is trusted for no longer than the shortest of them.
    unanswered_ms = min(handed_over.unanswered_ms, earlier_ms)
    granted_ms = min(ttl_ms, unanswered_ms)
    if trusted_until(sent, granted_ms).is_past(answered):
        raise StoreError(f'the store confirmed the restored lease on "{name}" too late: it may have ended since')
    return Restored(sent, answered, granted_ms, unanswered_ms)
