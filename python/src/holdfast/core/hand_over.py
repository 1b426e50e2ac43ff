"""A lease on its way from one process to another, as a text. Nothing in it depends on the store or the language."""

from __future__ import annotations

import base64
import json
import math
from dataclasses import dataclass
from typing import Any, Mapping, Optional

from ..errors import InvalidArgumentError, UnsupportedError
from .arguments import check_holder_id, check_lock_name, check_metadata, check_text, check_whole, is_finite_number
from .driver import Claim, Driver
from .limits import MAX_SAFE_INTEGER, MAX_TTL_MS, MIN_TTL_MS

_PREFIX = "holdfast-lease-1."
"""It contains the version of the format: a text of another version is rejected, not guessed at."""
_MAX_CLAIM_ID_LENGTH = 1_000
"""The ids that Holdfast creates are far shorter."""


@dataclass(frozen=True)
class HandOver:
    lock_name: str
    claim_id: str
    fencing_token: int
    holder_id: str
    acquired_at_ms: float
    store_at_ms: float
    """A lower bound of the store's clock at the hand-over."""
    ttl_ms: int
    metadata: Optional[Mapping[str, Any]] = None
    unanswered_ms: float = math.inf
    """The shortest TTL that was sent and never answered. It may still reach the store, and then sets the lease to end
    this long after its arrival."""
    min_hold_ms: float = 0
    """What is left of `min_hold_seconds`."""
    max_hold_ms: float = math.inf
    """What is left of `max_hold_seconds`."""


def write_hand_over(lease: HandOver) -> str:
    fields: dict[str, Any] = {
        "lockName": lease.lock_name,
        "claimId": lease.claim_id,
        "fencingToken": lease.fencing_token,
        "holderId": lease.holder_id,
        "acquiredAtMs": lease.acquired_at_ms,
        "storeAtMs": lease.store_at_ms,
        "ttlMs": lease.ttl_ms,
    }
    if lease.metadata is not None:
        fields["metadata"] = dict(lease.metadata)
    if lease.unanswered_ms < math.inf:
        fields["unansweredMs"] = lease.unanswered_ms
    if lease.min_hold_ms > 0:
        fields["minHoldMs"] = lease.min_hold_ms
    if lease.max_hold_ms < math.inf:
        fields["maxHoldMs"] = max(0, lease.max_hold_ms)
    text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
    return _PREFIX + base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_hand_over(text: object) -> HandOver:
    """Raises `InvalidArgumentError`, which contains no part of the text: the text is a secret, and a reader of a log
    could end the lease with it."""
    if isinstance(text, str) and text.startswith(_PREFIX):
        encoded = str.__str__(text)[len(_PREFIX) :]
        try:
            fields = json.loads(base64.b64decode(encoded + "=" * (-len(encoded) % 4), b"-_", validate=True))
            return _checked(**fields)
        except (InvalidArgumentError, TypeError, ValueError, RecursionError):
            pass
    found = f"a string of {len(text)} characters" if isinstance(text, str) else type(text).__name__
    rule = "the result of lease.serialize(), from a version of Holdfast with the same format"
    # Without the parts of it as a cause.
    raise InvalidArgumentError("text", found, rule) from None


def _checked(
    *,
    lockName: object,
    claimId: object,
    fencingToken: object,
    holderId: object,
    acquiredAtMs: object,
    storeAtMs: object,
    ttlMs: object,
    metadata: object = None,
    unansweredMs: object = math.inf,
    minHoldMs: object = 0,
    maxHoldMs: object = math.inf,
) -> HandOver:
    """The arguments have the names of the format."""
    return HandOver(
        lock_name=check_lock_name(lockName),
        claim_id=check_text("claimId", claimId, _MAX_CLAIM_ID_LENGTH),
        fencing_token=check_whole("fencingToken", fencingToken, 1, MAX_SAFE_INTEGER),
        holder_id=check_holder_id(holderId),
        acquired_at_ms=_ms("acquiredAtMs", acquiredAtMs),
        store_at_ms=_ms("storeAtMs", storeAtMs),
        ttl_ms=check_whole("ttlMs", ttlMs, MIN_TTL_MS, MAX_TTL_MS),
        metadata=check_metadata(metadata),
        unanswered_ms=_ms("unansweredMs", unansweredMs, math.inf),
        min_hold_ms=_ms("minHoldMs", minHoldMs),
        max_hold_ms=_ms("maxHoldMs", maxHoldMs, math.inf),
    )


def _ms(argument: str, value: object, absent: Optional[float] = None) -> float:
    if absent is not None and value is absent:
        return absent
    if is_finite_number(value) and 0 <= value <= MAX_SAFE_INTEGER:
        return value
    raise InvalidArgumentError(argument, value, "a number of ms")


def assert_can_hand_over(driver: Driver, claim: Claim, *, runs_block: bool, is_shared: bool) -> None:
    """Raises `UnsupportedError` if a lease of this claim, with these uses, must stay here."""
    if driver.capabilities.expiry == "session":
        why = f"with the {driver.name} driver a lease ends with its connection, which no other process can use"
    elif claim.mode == "shared":
        why = "it is shared, and only an exclusive lease can be handed over"
    elif is_shared:
        why = (
            "it has several uses. Use `acquire` or `hold` outside of the block that holds it, without "
            "`reacquire='extend'`"
        )
    elif runs_block:
        why = "a block runs under it, and releases it when it ends. Use `acquire` or `hold`"
    else:
        return
    raise UnsupportedError(f'the lease on "{claim.lock_name}" cannot be handed over: {why}')
