"""The parameters of the statements, and their answers. The SQL in `protocol/postgres` says what each of them means."""

from __future__ import annotations

import json
from typing import Any, Mapping, Optional, Sequence, Union

from ...core.driver import (
    Claim,
    Grant,
    InspectPage,
    LeaseRecord,
    LeaseRef,
    Refusal,
    Renewal,
    WaiterRecord,
)
from .._shared.foreign_json import parse_foreign
from .._shared.groups import left_over
from .arrays import boolean_array, number_array, text_array
from .errors import row_locked

Row = Mapping[str, Any]
AcquireAnswer = Union[Grant, Refusal, Exception]


def acquire_values(claims: Sequence[Claim], channel: str, relaxed: str) -> list[str]:
    return [
        text_array(claim.lock_name for claim in claims),
        text_array(claim.claim_id for claim in claims),
        text_array(claim.holder_id for claim in claims),
        boolean_array(claim.mode == "shared" for claim in claims),
        number_array(claim.limit for claim in claims),
        number_array(claim.permits for claim in claims),
        number_array(claim.ttl_ms for claim in claims),
        number_array(claim.waiter_ttl_ms for claim in claims),
        text_array(metadata_json(claim) for claim in claims),
        channel,
        relaxed,
    ]


def acquire_groups_values(claims: Sequence[Claim], relaxed: str) -> list[str]:
    return [
        text_array(claim.lock_name for claim in claims),
        text_array(claim.claim_id for claim in claims),
        text_array(claim.group for claim in claims),
        text_array(claim.holder_id for claim in claims),
        number_array(claim.ttl_ms for claim in claims),
        text_array(metadata_json(claim) for claim in claims),
        relaxed,
    ]


def metadata_json(claim: Claim) -> Optional[str]:
    if claim.metadata is None:
        return None
    return json.dumps(claim.metadata, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def lease_values(leases: Sequence[Union[LeaseRef, Renewal]]) -> list[str]:
    """The first parameters of `renew` and `release`."""
    return [
        text_array(lease.lock_name for lease in leases),
        text_array(lease.claim_id for lease in leases),
        number_array(lease.fencing_token for lease in leases),
    ]


def acquire_answers(claims: Sequence[Claim], row: Row) -> list[AcquireAnswer]:
    """The answers of `holdfast_acquire` or `holdfast_acquire_group`. Of the refusals on one name, only the first has
    the holder."""
    sent: list[Optional[Mapping[str, Any]]] = parse_foreign(row["answers"])
    holders = {
        claim.lock_name: lease_record(answer["holder"])
        for claim, answer in zip(claims, sent)
        if answer is not None and answer.get("holder") is not None
    }
    return [_answer_to(claim, answer, holders.get(claim.lock_name)) for claim, answer in zip(claims, sent)]


def _answer_to(
    claim: Claim, answer: Optional[Mapping[str, Any]], holder: Optional[LeaseRecord]
) -> AcquireAnswer:
    if answer is None:
        return row_locked(claim.lock_name)
    if "fencingToken" in answer:
        return Grant(answer["fencingToken"], claim.ttl_ms, float(answer["grantedAt"]))
    if "leftOver" in answer:
        return left_over(claim.lock_name)
    answered_at_ms = float(answer["refusedAt"])
    if "free" in answer:
        return Refusal(free=True, answered_at_ms=answered_at_ms)
    if holder is not None and holder.claim_id == claim.claim_id:
        # The claim itself, if it was handed the lock while the rest of the list was decided.
        holder = None
    if claim.waiter_ttl_ms == 0:
        return Refusal(holder, answered_at_ms=answered_at_ms)
    return Refusal(holder, False, answer["ahead"], float(answer["until"]), answered_at_ms)


def lease_record(lease: Mapping[str, Any]) -> LeaseRecord:
    """From the JSON of `holdfast_lease_json`."""
    return LeaseRecord(
        lock_name=lease["lockName"],
        claim_id=lease["claimId"],
        holder_id=lease["holderId"],
        mode=lease["mode"],
        permits=lease["permits"],
        fencing_token=lease["fencingToken"],
        acquired_at_ms=lease["acquiredAtMs"],
        expires_at_ms=lease["expiresAtMs"],
        limit=lease.get("limit"),
        metadata=lease.get("metadata"),
    )


def inspect_page(page: str) -> InspectPage:
    found = parse_foreign(page)
    waiters = [
        WaiterRecord(
            lock_name=waiter["lockName"],
            claim_id=waiter["claimId"],
            holder_id=waiter["holderId"],
            mode=waiter["mode"],
            permits=waiter["permits"],
            waiting_since_ms=waiter["waitingSinceMs"],
            limit=waiter.get("limit"),
        )
        for waiter in found["waiters"]
    ]
    return InspectPage([lease_record(lease) for lease in found["leases"]], waiters, found.get("next"))
