"""Decides claims. Everything here runs within one transaction."""

from __future__ import annotations

import json
import math
import sqlite3
from typing import Optional, Sequence, Union

from ...core.driver import Claim, Grant, Refusal
from ...core.lock_share import Share
from .._shared.admission import admitted
from .._shared.groups import in_groups, left_over
from .connection import Connection
from .lock_view import LockView, LockViews
from .rows import QUEUE_WINDOWS, Part, lease_record, next_end_of, part_of

Answer = Union[Grant, Refusal, Exception]



def acquire_all(connection: Connection, claims: Sequence[Claim], now_ms: int) -> list[Answer]:
    views = LockViews(connection, now_ms)
    answers: list[Answer] = []
    for members in in_groups(claims):
        if members[0].group is None:
            answers.append(_acquire_one(connection, views.of(members[0].lock_name), members[0], now_ms))
        else:
            answers.extend(_acquire_group(connection, views, members, now_ms))
    return answers


def whole_ms(ms: float) -> int:
    """The stored format has whole milliseconds. Rounded up: a lease must not end before its holder expects it."""
    return math.ceil(ms)


def _acquire_one(connection: Connection, view: LockView, claim: Claim, now_ms: int) -> Union[Grant, Refusal]:
    own = _own_lease(connection, view, claim, now_ms)
    if own is not None:
        ttl_ms = whole_ms(claim.ttl_ms)
        connection.run("set_end", now_ms + ttl_ms, ttl_ms, claim.lock_name, claim.claim_id, now_ms)
        return Grant(own["fencing_token"], claim.ttl_ms, own["acquired_at_ms"])
    if claim.force_up_to is not None:
        view.clamp()
        newer = connection.get("newer_lease", claim.lock_name, claim.force_up_to, now_ms)
        if newer is not None:
            return Refusal(holder=lease_record(newer, now_ms))
        if connection.run("note_forced_releases", claim.holder_id, now_ms, claim.lock_name, now_ms) > 0:
            connection.run("trim_forced_releases")
        connection.run("end_leases", claim.lock_name)
        return _grant(connection, view, claim, now_ms, is_queued=True)
    is_admitted, is_queued = _place_of(view, claim)
    if is_admitted:
        return _grant(connection, view, claim, now_ms, is_queued)
    return _refuse(connection, view, claim, now_ms)


def _acquire_group(connection: Connection, views: LockViews, claims: Sequence[Claim], now_ms: int) -> list[Answer]:
    """All claims are checked before any is written, so that a refused group writes nothing."""
    looks: list[tuple[Claim, LockView, bool, bool]] = []
    for claim in claims:
        view = views.of(claim.lock_name)
        is_own = _own_lease(connection, view, claim, now_ms) is not None
        looks.append((claim, view, is_own, is_own or _place_of(view, claim)[0]))
    if all(is_open for _, _, _, is_open in looks):
        return [_acquire_one(connection, view, claim, now_ms) for claim, view, _, _ in looks]
    answers: list[Answer] = []
    for claim, view, is_own, is_open in looks:
        if is_own:
            answers.append(left_over(claim.lock_name))
        elif is_open:
            answers.append(Refusal(free=True))
        else:
            answers.append(_refuse(connection, view, claim, now_ms))
    return answers


def _grant(connection: Connection, view: LockView, claim: Claim, now_ms: int, is_queued: bool) -> Grant:
    view.changed()
    if is_queued:
        connection.run("delete_waiter", claim.lock_name, claim.claim_id)
    token = _next_token(connection, now_ms)
    ttl_ms = whole_ms(claim.ttl_ms)
    metadata = None if claim.metadata is None else json.dumps(claim.metadata, ensure_ascii=False, separators=(",", ":"))
    connection.run(
        "insert_lease",
        *(claim.lock_name, claim.claim_id, claim.holder_id, claim.mode, claim.limit, claim.permits),
        *(token, now_ms, now_ms + ttl_ms, ttl_ms, metadata),
    )
    return Grant(token, claim.ttl_ms, now_ms)


def _refuse(connection: Connection, view: LockView, claim: Claim, now_ms: int) -> Refusal:
    holder = None if view.holder is None else lease_record(view.holder, now_ms)
    if claim.waiter_ttl_ms <= 0:
        return Refusal(holder=holder)
    place = _join_queue(connection, view, claim, now_ms)
    ahead, first_gone_ms = _ahead_of(connection, view, claim.lock_name, place, now_ms)
    # The first waiter waits for a lease to expire. The others wait until a waiter ahead of them, which may be dead,
    # ends.
    next_ms = next_end_of(connection, claim.lock_name, now_ms) if ahead == 0 else first_gone_ms
    return Refusal(holder=holder, ahead=ahead, ask_again_ms=(now_ms if next_ms is None else next_ms) - now_ms)


def _place_of(view: LockView, claim: Claim) -> tuple[bool, bool]:
    """Whether the claim is admitted, and whether it has a place in the queue (known only if it is admitted).

    Reads only as much of the queue as the decision needs. A claim behind that part is not admitted yet, because the
    waiters ahead of it come first.
    """
    for most in QUEUE_WINDOWS:
        queue = [part_of(row) for row in view.waiters(most)]
        is_queued = any(part.claim_id == claim.claim_id for part in queue)
        own = Part(claim.mode, claim.limit, claim.permits, claim.claim_id)
        candidates: Sequence[Part] = queue if is_queued else [*queue, own]
        held: Sequence[Share] = view.held(candidates)
        through = admitted(held, candidates)
        if len(queue) < most or is_queued or len(through) < len(queue):
            return any(part.claim_id == claim.claim_id for part in through), is_queued
    return False, False


def _own_lease(connection: Connection, view: LockView, claim: Claim, now_ms: int) -> Optional[sqlite3.Row]:
    held = view.held([claim])
    if not held or held[0].mode != claim.mode:
        return None
    if claim.mode == "exclusive":
        holder = view.holder
        return holder if holder is not None and holder["claim_id"] == claim.claim_id else None
    return connection.get("lease", claim.lock_name, claim.claim_id, now_ms)


def _join_queue(connection: Connection, view: LockView, claim: Claim, now_ms: int) -> int:
    wait_ms = whole_ms(claim.waiter_ttl_ms)
    kept = connection.get("keep_place", now_ms + wait_ms, wait_ms, claim.lock_name, claim.claim_id, now_ms)
    if kept is not None:
        return int(kept["place"])
    joined = connection.get(
        "insert_waiter",
        *(claim.lock_name, claim.claim_id, claim.holder_id, claim.mode, claim.limit, claim.permits),
        *(now_ms, now_ms + wait_ms, wait_ms),
    )
    view.joined()
    return int(joined["place"]) if joined is not None else 0


def _ahead_of(
    connection: Connection, view: LockView, lock_name: str, place: int, now_ms: int
) -> tuple[int, Optional[int]]:
    front = view.front
    if place > front.last_place:
        return front.waiters, front.first_gone_ms
    row = connection.get("ahead_of", lock_name, place, now_ms)
    assert row is not None
    return row["ahead"], row["first_gone_ms"]


def _next_token(connection: Connection, now_ms: int) -> int:
    row = connection.get("next_token", now_ms)
    if row is None:
        # The table was emptied. The clock in microseconds is above every token that was granted.
        connection.run("restore_counter")
        row = connection.get("next_token", now_ms)
    assert row is not None
    return int(row["last_token"])
