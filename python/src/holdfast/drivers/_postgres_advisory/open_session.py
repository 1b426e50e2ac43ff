"""Opens a session: a connection with its settings and prepared statements, which is proved to be one session."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import List

from ...core.secrets import safe_cause
from ...errors import StoreError, UnsupportedError
from .._postgres.connections import DedicatedConnection, Opener, Row
from .._postgres.errors import IN_TRANSACTION, READ_ONLY, sql_state
from .session_proof import POOLER_REASON, SessionIdentity, prove_reset, prove_session, refuse_others
from .statements import STATEMENTS, boolean, deallocation, execution, preparation, restoring

# 11.5 days, as 10^12 microseconds. Tokens stay below 2^53 for 7,000 promotions.
_LEAD = 1_000_000_000_000
# No such function, no such type, not supported, or not in the required state (a standby was refused before).
_NO_TIMELINE = ("42883", "42704", "0A000", "55000")
_NO_PRIVILEGE = (
    "this role may not read the timeline of PostgreSQL, which fencing tokens need to rise over a failover: "
    "in this database, run GRANT EXECUTE ON FUNCTION pg_walfile_name(pg_lsn) TO the role"
)


@dataclass(frozen=True)
class OpenedSession:
    connection: DedicatedConnection
    pid: str
    session_id: str
    """Random: no other session has it."""
    max_comment_bytes: int
    """How many bytes of a statement `pg_stat_activity` shows."""
    is_pooled: bool
    """There is a pooler in between, which is proved to keep the session for this connection."""
    undo_opening: str
    """SQL that undoes the opening, for a connection that stays open."""
    lead: int
    """By how much its tokens are ahead."""


class StandbyError(Exception):
    """The server says that it is in recovery, before anything was written."""

    sqlstate = READ_ONLY

    def __init__(self) -> None:
        super().__init__("it is in recovery")


class _Opening:
    """What is known of a session before it is open."""

    def __init__(self, connection: DedicatedConnection) -> None:
        self.connection = connection
        self.ended: List[BaseException] = []
        self.undo = ""
        connection.watch(self.ended.append)


async def open_session(connections: Opener) -> OpenedSession:
    """Raises `UnsupportedError` when the connection is not one session of the server."""
    connection = await connections.dedicate()
    opening = _Opening(connection)
    try:
        # The rollback of the caller's transaction would undo the settings, and the lock would last beyond it.
        if connection.in_transaction:
            raise StoreError(IN_TRANSACTION, retryable=False)
        return await _opened(connections, opening)
    except BaseException:
        try:
            await end_connection(connection, opening.undo)
        except Exception:
            pass  # The first error is the one to report.
        raise


async def end_connection(connection: DedicatedConnection, undo: str) -> None:
    """Closes it. `undo` is SQL that undoes what was done on a connection of the caller, which stays open."""
    try:
        if connection.is_callers and connection.is_open and undo:
            await connection.script(undo)
    finally:
        await connection.close()


async def _opened(connections: Opener, opening: _Opening) -> OpenedSession:
    connection, session_id = opening.connection, secrets.token_hex(9)
    row = await _identify(connection, session_id)
    identity = SessionIdentity(row["pid"], session_id)
    opening.undo = restoring(row["before"])
    # A session survives a promotion, but its tokens would still have the lead of the old timeline.
    if row["standby"]:
        raise StandbyError
    # At the start of a connection the server sends the id of its process. A pooler sends an invented one.
    is_pooled = str(connection.server_pid) != identity.pid
    if is_pooled:
        # The caller's one connection leaves no second one to prove it with.
        if connection.is_callers:
            raise UnsupportedError(POOLER_REASON)
        await prove_session(connections, connection, identity)
        await prove_reset(connections, connection)
    lead = await _lead_of(connection)
    await connection.script(preparation(session_id, lead))
    opening.undo += deallocation(session_id)
    if is_pooled:
        # Locks are taken only in the session in which the statements were prepared.
        await _refuse_elsewhere(connection, identity)
        await prove_session(connections, connection, identity, 1)
    if opening.ended:
        raise opening.ended[0]
    return OpenedSession(connection, identity.pid, session_id, int(row["room"]), is_pooled, opening.undo, lead)


async def _identify(connection: DedicatedConnection, session_id: str) -> Row:
    try:
        row = (await connection.fetch(STATEMENTS["identity"], [session_id, boolean(not connection.is_callers)]))[0]
    except Exception as error:
        # The first error is the one to report, if the server is PostgreSQL.
        if sql_state(error) is not None:
            await _refuse_others_on(connection)
        raise
    refuse_others(row["version"])
    return row


async def _refuse_others_on(connection: DedicatedConnection) -> None:
    try:
        rows = await connection.fetch(STATEMENTS["version"])
    except Exception:
        return
    refuse_others(rows[0]["version"])


async def _lead_of(connection: DedicatedConnection) -> int:
    """By how much the tokens of this server are ahead, for each promotion of it or of a server that it replaced.

    See advisory.sql. A service without a timeline has replicas that share its storage and do not lag. If the timeline
    cannot be read for any other reason, the session is not opened: without this lead its tokens would be lower than
    those of other sessions.
    """
    try:
        rows = await connection.fetch(STATEMENTS["timeline"])
        return (int(rows[0]["timeline"]) - 1) * _LEAD
    except Exception as error:
        failure = error
    if sql_state(failure) in _NO_TIMELINE:
        return 0
    if sql_state(failure) == "42501":
        raise StoreError(_NO_PRIVILEGE, retryable=False) from safe_cause(failure)
    raise failure


async def _refuse_elsewhere(connection: DedicatedConnection, identity: SessionIdentity) -> None:
    try:
        rows = await connection.fetch(execution("ping", identity.session_id, []))
        if rows and rows[0]["pid"] == identity.pid:
            return
    except Exception as error:
        # A prepared statement that is missing shows that another session was reached.
        if sql_state(error) != "26000":
            raise
    raise UnsupportedError(POOLER_REASON)
