"""Proves that a connection is one session of the server, although a pooler is in between."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Optional, Sequence

from ...core.tasks import start_task
from ...errors import StoreError, UnsupportedError
from .connections import Connection, Connections, NoEvents, Row, ignore_outcome
from .statements import STATEMENTS

PROOF_ROUNDS = 6
_PAUSE_SECONDS = 0.008
_TRY_SECONDS = 1.0
_MAX_TRIES = 8

POOLER_REASON = (
    "advisory locks need a session of the server, but there is a pooler in transaction mode in between (PgBouncer): "
    "each statement may reach another session, and two clients would hold one lock. Connect to PostgreSQL directly, "
    "use a pool in session mode, or use the postgres driver"
)


@dataclass(frozen=True)
class SessionIdentity:
    pid: str
    """Its process at the server."""
    session_id: str
    """No other session has it."""


async def prove_session(
    connections: Connections, own: Connection, identity: SessionIdentity, rounds: int = PROOF_ROUNDS
) -> None:
    """Raises `UnsupportedError` behind a pooler in transaction mode.

    Such a pooler gives the session that has just taken our lock to the next transaction of any client: two clients
    would hold one lock. While our connection is open and idle, no other connection may reach its session, and ours must
    always reach the same one. Other traffic through the pooler can hide a violation for a moment, so this is checked
    several times.
    """
    for _ in range(_MAX_TRIES):
        witnesses = [await connections.dedicate(NoEvents()) for _ in range(2)]
        try:
            proof = start_task(_prove(own, witnesses, identity, rounds))
            proof.add_done_callback(ignore_outcome)
            done, _ = await asyncio.wait({proof}, timeout=_TRY_SECONDS)
            if done:
                return proof.result()
        finally:
            # An error while a witness closes leaves nothing behind.
            await asyncio.gather(*(witness.end() for witness in witnesses), return_exceptions=True)
        # The witnesses of several processes may keep all connections of a small pooler from each other. With the end of
        # these, our own statement is answered.
        await asyncio.wait({proof})
        await asyncio.sleep(_PAUSE_SECONDS + random.random() / 5)
    raise StoreError("the pooler in front of PostgreSQL has too few connections to check whether it keeps sessions")


async def _prove(own: Connection, witnesses: Sequence[Connection], identity: SessionIdentity, rounds: int) -> None:
    for _ in range(rounds):
        seen = []
        for witness in witnesses:
            await witness.script("BEGIN")
            seen.append(await _identity_of(witness))
        if any(_is(row, identity.pid, "pid") or _is(row, identity.session_id, "session") for row in seen):
            raise UnsupportedError(POOLER_REASON)
        mine = await _identity_of(own)
        if not (_is(mine, identity.pid, "pid") and _is(mine, identity.session_id, "session")):
            raise UnsupportedError(POOLER_REASON)
        for witness in witnesses:
            await witness.script("ROLLBACK")
        await asyncio.sleep(_PAUSE_SECONDS)


async def _identity_of(connection: Connection) -> Optional[Row]:
    rows = await connection.query(STATEMENTS["witness"])
    return rows[0] if rows else None


def _is(row: Optional[Row], wanted: str, column: str) -> bool:
    return row is not None and row[column] == wanted
