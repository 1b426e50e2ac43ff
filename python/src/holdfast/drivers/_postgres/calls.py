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
from .._shared.groups import left_over
from .arrays import boolean_array, number_array, parse_floats, parse_integers, parse_texts, text_array
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
    granted, refused, holders, answered_at_ms = _answers_in(row)
    ahead, until = parse_floats(row["refused_ahead"]), parse_floats(row["refused_until"])
    answers: list[AcquireAnswer] = []
    for claim in claims:
        grant = granted.get(claim.claim_id)
        if grant is not None:
            answers.append(Grant(grant[0], claim.ttl_ms, grant[1]))
            continue
        index = refused.get(claim.claim_id)
        if index is None:
            answers.append(row_locked(claim.lock_name))
            continue
        holder = holders.get(claim.lock_name)
        if holder is not None and holder.claim_id == claim.claim_id:
            # The claim itself, if it was handed the lock while the rest of the list was decided.
            holder = None
        if claim.waiter_ttl_ms == 0:
            answers.append(Refusal(holder, answered_at_ms=answered_at_ms))
        else:
            place = ahead[index]
            answers.append(Refusal(holder, False, None if place is None else int(place), until[index], answered_at_ms))
    return answers


def acquire_groups_answers(claims: Sequence[Claim], row: Row) -> list[AcquireAnswer]:
    granted, refused, holders, answered_at_ms = _answers_in(row)
    not_known = set(parse_texts(row["not_known"]))
    refused_groups = {claim.group for claim in claims if claim.claim_id in refused}
    answers: list[AcquireAnswer] = []
    for claim in claims:
        grant = granted.get(claim.claim_id)
        if grant is not None:
            answers.append(Grant(grant[0], claim.ttl_ms, grant[1]))
        elif claim.claim_id in refused:
            answers.append(Refusal(holders.get(claim.lock_name), answered_at_ms=answered_at_ms))
        elif claim.group not in refused_groups:
            answers.append(row_locked(claim.lock_name))
        elif claim.claim_id in not_known:
            answers.append(left_over(claim.lock_name))
        else:
            answers.append(Refusal(free=True, answered_at_ms=answered_at_ms))
    return answers


def _answers_in(
    row: Row,
) -> tuple[Mapping[str, tuple[int, float]], Mapping[str, int], Mapping[str, LeaseRecord], float]:
    """Grants by claim id; the positions of the refused claims in the lists of the answer; holders by lock name."""
    tokens = parse_integers(row["granted_tokens"])
    times = [float(at or 0) for at in parse_floats(row["granted_at"])]
    granted = dict(zip(parse_texts(row["granted_claims"]), zip(tokens, times)))
    refused = {claim_id: index for index, claim_id in enumerate(parse_texts(row["refused_claims"]))}
    holders = {name: lease_record(lease) for name, lease in json.loads(row["holders"] or "{}").items()}
    return granted, refused, holders, float(row["refused_at"])


def lease_record(lease: Mapping[str, Any]) -> LeaseRecord:
    """From the JSON of `holdfast_lease_json` in 0005-inspect.sql."""
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
    found = json.loads(page)
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
