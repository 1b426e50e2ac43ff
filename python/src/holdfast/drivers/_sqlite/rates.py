"""Rate limits. Everything here runs within one transaction."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from typing import Optional

from ...core.driver import RateAnswer, RateRequest
from .._shared.gcra import Moment, policy_of, take_step
from .connection import Connection


def is_look(request: RateRequest) -> bool:
    return request.cost == 0 and not request.reset and request.block_ms is None


def consume_one(connection: Connection, request: RateRequest, now_ms: int) -> RateAnswer:
    ids = policy_of(request).ids
    kept = [_moment_of(connection.get("rate", request.name, each)) for each in ids]
    moments = [replace(moment) for moment in kept]
    answer = take_step(request, moments, now_ms)
    for limit_id, before, moment in zip(ids, kept, moments):
        if (moment.at_ms, moment.until_ms) == (before.at_ms, before.until_ms):
            continue
        if moment.end_ms == 0:
            connection.run("delete_rate", request.name, limit_id)
        else:
            connection.run("set_rate", request.name, limit_id, moment.end_ms, _block_text(moment, now_ms))
    return answer


def _moment_of(row: Optional[sqlite3.Row]) -> Moment:
    """A blocked row keeps its moment beside the block, and ends with the later of the two."""
    if row is None:
        return Moment()
    if row["block"] is None:
        return Moment(row["reset_at_ms"])
    return Moment(*(float(each) for each in row["block"].split(" ")))


def _block_text(moment: Moment, now_ms: int) -> Optional[str]:
    if moment.until_ms <= now_ms:
        return None
    return " ".join(_decimal(each) for each in (moment.at_ms, moment.until_ms, moment.block_ms))


def _decimal(number: float) -> str:
    """As every language writes it: whole numbers without a point."""
    return str(int(number)) if number == int(number) else repr(number)
