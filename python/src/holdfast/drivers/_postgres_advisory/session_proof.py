"""Proves that a connection is one session of the server, although a pooler is in between."""

from __future__ import annotations

import asyncio
import random
import re
import secrets
from dataclasses import dataclass
from typing import Optional, Sequence

from ...core.tasks import ignore_outcome, start_task
from ...errors import StoreError, UnsupportedError
from .._postgres.connections import DedicatedConnection, Opener, Row
from .statements import STATEMENTS

_RESET_LOOKS = 15
PROOF_ROUNDS = 6
_PAUSE_SECONDS = 0.008
_TRY_SECONDS = 1.0
_MAX_TRIES = 8

POOLER_REASON = (
    "advisory locks need a session of the server, but there is a pooler in transaction mode in between (PgBouncer): "
    "each statement may reach another session, and two clients would hold one lock. Connect to PostgreSQL directly, "
    "use a pool in session mode, or use the postgres driver"
)


_NO_RESET = (
    "the pooler in between does not reset the session of a client that has disconnected: a client that is killed would "
    "keep its locks. Set server_reset_query = DISCARD ALL (PgBouncer), or connect to PostgreSQL directly"
)
_NO_EXCLUSION = (
    "a session lock that one connection has does not exclude another connection here, or is not visible to it: this "
    "server or proxy does not implement advisory locks, or the connections lead to different servers"
)
_NOT_POSTGRES = "advisory locks and their fencing tokens need PostgreSQL, and this is another server"


@dataclass(frozen=True)
class SessionIdentity:
    pid: str
    """Its process at the server."""
    session_id: str
    """No other session has it."""


async def prove_session(
    connections: Opener, own: DedicatedConnection, identity: SessionIdentity, rounds: int = PROOF_ROUNDS
) -> None:
    """Raises `UnsupportedError` behind a pooler in transaction mode.

    Such a pooler gives the session that has just taken our lock to the next transaction of any client: two clients
    would hold one lock. While our connection is open and idle, no other connection may reach its session, and ours must
    always reach the same one. Other traffic through the pooler can hide a violation for a moment, so this is checked
    several times.
    """
    for _ in range(_MAX_TRIES):
        witnesses = [await connections.dedicate() for _ in range(2)]
        try:
            proof = start_task(_prove(own, witnesses, identity, rounds))
            proof.add_done_callback(ignore_outcome)
            done, _ = await asyncio.wait({proof}, timeout=_TRY_SECONDS)
            if done:
                return proof.result()
        finally:
            # An error while a witness closes leaves nothing behind.
            await asyncio.gather(*(witness.close() for witness in witnesses), return_exceptions=True)
        # The witnesses of several processes may keep all connections of a small pooler from each other. With the end of
        # these, our own statement is answered.
        await asyncio.wait({proof})
        await asyncio.sleep(_PAUSE_SECONDS + random.random() / 5)
    raise StoreError("the pooler in front of PostgreSQL has too few connections to check whether it keeps sessions")


async def _prove(
    own: DedicatedConnection, witnesses: Sequence[DedicatedConnection], identity: SessionIdentity, rounds: int
) -> None:
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


async def prove_reset(connections: Opener, own: DedicatedConnection) -> None:
    """Raises `UnsupportedError` behind a pooler that does not reset the session of a client that has disconnected.

    A client that is killed would keep its locks until the pooler closes that session, which can take an hour.
    """
    key = _random_key()
    leaving = await connections.dedicate()
    try:
        await leaving.fetch(STATEMENTS["try_key"], [key])
    finally:
        await leaving.close()
    for look in range(1, _RESET_LOOKS + 1):
        if not (await own.fetch(STATEMENTS["see_key"], [key]))[0]["seen"]:
            return
        await asyncio.sleep(_PAUSE_SECONDS * look)
    # The next client probably gets that session.
    following = await connections.dedicate()
    try:
        await following.fetch(STATEMENTS["free_key"], [key])
    finally:
        await following.close()
    raise UnsupportedError(_NO_RESET)


async def prove_exclusion(own: DedicatedConnection, other: DedicatedConnection) -> None:
    """Raises `UnsupportedError` if a lock of one session does not exclude the other one, or is not visible to it.

    Some servers and proxies accept `pg_try_advisory_lock` and do nothing.
    """
    key = _random_key()

    async def ask(connection: DedicatedConnection, name: str, column: str) -> bool:
        return bool((await connection.fetch(STATEMENTS[name], [key]))[0][column])

    got = await ask(own, "try_key", "got")
    is_seen = await ask(other, "see_key", "seen")
    is_shared = await ask(other, "try_key", "got")
    if is_shared:
        await ask(other, "free_key", "freed")
    is_freed = await ask(own, "free_key", "freed")
    if not got or not is_seen or is_shared or not is_freed:
        raise UnsupportedError(_NO_EXCLUSION)


def refuse_others(version: object) -> None:
    """For servers that speak PostgreSQL's protocol, but whose locks exclude nothing, or whose ids do not rise."""
    text = str(version)
    if re.match(r"PostgreSQL \d", text) is None or re.search(r"-YB-|Redshift|Greenplum", text) is not None:
        raise UnsupportedError(f'{_NOT_POSTGRES}: its version is "{text[:100]}". Use another store')


def _random_key() -> str:
    return str(secrets.randbits(64) - 2**63)


async def _identity_of(connection: DedicatedConnection) -> Optional[Row]:
    rows = await connection.fetch(STATEMENTS["witness"])
    return rows[0] if rows else None


def _is(row: Optional[Row], wanted: str, column: str) -> bool:
    return row is not None and row[column] == wanted
