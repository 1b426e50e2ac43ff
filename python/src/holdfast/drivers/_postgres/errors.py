"""Errors of asyncpg, psycopg and the network, as a `StoreError` that says what happened and what to do."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from typing import Optional

from ...core.secrets import message_of, safe_cause
from ...errors import HoldfastError, StoreError

IN_TRANSACTION = (
    "this connection is inside a transaction that your code has begun: a lock taken or released there would change "
    "only with its COMMIT, and not at all with its ROLLBACK. Give the driver a connection or a pool of its own, and "
    "return a connection to its pool only after COMMIT or ROLLBACK. For a lock that lasts as long as a transaction, "
    "use lock_in_transaction"
)
"""Why a call is refused on a connection on which the caller has begun a transaction."""

READ_ONLY = "25006"
UNSTORABLE = "22P05"
"""The encoding of the database lacks a character of a text that was sent."""
_BROKEN = "could not be reached, or the connection broke"
_LOGIN = "did not accept the user or the password"
_NOT_WITHOUT_TLS = "does not accept this user without TLS: add sslmode=require to the URL, or an entry to pg_hba.conf"
_POOLER = (
    "does not know the prepared statement, probably because of a pooler in transaction mode in between: open the "
    "client without prepared statements (asyncpg: statement_cache_size=0, psycopg: prepare_threshold=None)"
)
_ROW_LOCKED = "its row has been locked by another transaction for too long. End that transaction"
_OF_ROW = re.compile(r"\(\d+,\d+\)|\bFOR (?:NO KEY |KEY )?(?:UPDATE|SHARE)\b|pg_advisory_xact_lock")
_FILE_GROWS = "waited too long for a file to grow. Is the disk slow or full?"

_REASONS = {
    "08": _BROKEN,
    UNSTORABLE: "cannot keep this text: the encoding of the database lacks one of its characters. Use a database in "
    "UTF8",
    "42883": "has no lock functions like those that this version of Holdfast calls: a newer version may have replaced "
    "them. Upgrade Holdfast",
    READ_ONLY: "is a standby, or read-only, on which no lock can be taken: connect to the primary",
    "26000": _POOLER,
    "28": _LOGIN,
    "3D000": "has no such database",
    "42501": "does not let this role use the lock tables: grant it the privileges listed in docs/drivers/postgres.md "
    'under "A role of its own"',
    "42P05": _POOLER,
    "53": "has run out of resources",
    "53200": "has no room left for locks: raise max_locks_per_transaction, or take fewer advisory locks at once",
    "53300": "has no connection left: raise max_connections",
    "55P03": "did not answer: the row of the lock name has been locked by another transaction for too long",
    "57014": "canceled the statement",
    "57P01": "ended the connection on an administrator’s command",
    "57P03": "is starting up or shutting down",
    "57P05": "ended the connection because it was idle for too long",
}

# libpq reports a failed login by its text alone.
_REFUSED_LOGIN = re.compile(
    r"(?i)password authentication failed|authentication failed for user|no password supplied|no pg_hba\.conf entry|"
    r'role ".*" does not exist|SASL authentication failed|pg_hba\.conf rejects'
)
_NO_DATABASE = re.compile(r'(?i)database ".*" does not exist')
_NO_TLS = re.compile(r"(?i)server does not support SSL|rejected SSL upgrade|wrong version number")
_BAD_CERTIFICATE = re.compile(r"(?i)certificate verify failed|root certificate file|SSL error: certificate")
_REFUSED = re.compile(r"(?i)connection refused")
_UNKNOWN_HOST = re.compile(r"(?i)could not translate host name|name or service not known|failed to resolve host")
_TIMEOUT = re.compile(r"(?i)timeout expired|connection timeout|timed out")


def sql_state(error: Optional[BaseException]) -> Optional[str]:
    """The five-character SQLSTATE. SQLAlchemy wraps the client's error, and asyncpg's even twice. psycopg encodes texts
    itself, for the encoding of the database."""
    for _ in range(4):
        if error is None:
            return None
        if isinstance(error, UnicodeEncodeError):
            return UNSTORABLE
        for name in ("sqlstate", "pgcode"):
            code = getattr(error, name, None)
            if isinstance(code, str) and re.fullmatch(r"[0-9A-Z]{5}", code):
                return code
        error = getattr(error, "orig", None) or error.__cause__
    return None


def _is_of_row(error: Optional[BaseException]) -> bool:
    """`lock_timeout` also ends waits for a file that another session makes grow. In every language, the context of a
    row has its place. A second transaction that waits for a row shows none, but the statement, or the gate of its
    queue."""
    for _ in range(4):
        if error is None:
            return True
        context = getattr(error, "context", None) or getattr(getattr(error, "diag", None), "context", None)
        if isinstance(context, str):
            return _OF_ROW.search(context) is not None
        error = getattr(error, "orig", None) or error.__cause__
    return True


def row_locked(lock_name: str) -> StoreError:
    """The answer to one entry of a list. The other entries have answers of their own."""
    return StoreError(f'it is not known whether "{lock_name}" is held: {_ROW_LOCKED}')


def store_error_from(
    error: BaseException, *, place: Optional[str] = None, is_pool: bool = True, has_written: bool = False
) -> HoldfastError:
    """The message says what is wrong, where, and what to do, then what PostgreSQL said.

    `is_pool`: a second try may get another connection. `has_written`: this driver has written there before, so a server
    that is read-only now has been demoted, and another try may reach the new primary.
    """
    if isinstance(error, HoldfastError):
        return error
    state = sql_state(error)
    if state in ("2D000", "25P02"):
        return _with_cause(StoreError(IN_TRANSACTION, retryable=is_pool), error)
    said = message_of(error)
    reason, permanent = _connection_trouble(error, said) if state is None else _refusal(state, said, has_written)
    if state == "55P03" and not _is_of_row(error):
        reason = _FILE_GROWS
    where = "" if place is None else f" at {place}"
    code = state or type(error).__name__
    return _with_cause(StoreError(f"PostgreSQL{where} {reason} ({code}: {said})", retryable=not permanent), error)


def _with_cause(made: StoreError, error: BaseException) -> StoreError:
    made.__cause__ = safe_cause(error)
    return made


def _refusal(state: str, said: str, has_written: bool) -> tuple[str, bool]:
    permanent = (
        state[:2] in ("28", "3D") or state in ("42501", UNSTORABLE) or (state == READ_ONLY and not has_written)
    )
    if state == "28000" and re.search(r"(?i)no encryption|SSL off", said):
        return _NOT_WITHOUT_TLS, permanent
    return _REASONS.get(state) or _REASONS.get(state[:2]) or "refused the statement", permanent


def _connection_trouble(error: BaseException, said: str) -> tuple[str, bool]:
    if _REFUSED_LOGIN.search(said):
        return (_NOT_WITHOUT_TLS if re.search(r"(?i)no encryption|SSL off", said) else _LOGIN), True
    if _NO_DATABASE.search(said):
        return _REASONS["3D000"], True
    if isinstance(error, ConnectionRefusedError) or _REFUSED.search(said):
        return "could not be reached: connection refused. Is the server running?", False
    if isinstance(error, socket.gaierror) or _UNKNOWN_HOST.search(said):
        return "could not be reached: the host name is unknown. Is it spelled correctly?", False
    if isinstance(error, ssl.SSLCertVerificationError) or _BAD_CERTIFICATE.search(said):
        advice = "Pass sslrootcert with the certificate of its authority, and use the host name in the certificate"
        return f"could not be reached: the server’s TLS certificate is not accepted. {advice}", True
    if _NO_TLS.search(said):
        advice = "Use sslmode=disable, or switch TLS on at the server"
        return f"could not be reached: the server does not speak TLS on this port. {advice}", True
    if isinstance(error, (asyncio.TimeoutError, TimeoutError)) or _TIMEOUT.search(said):
        return "did not answer in time. Are host and port correct, and does a firewall drop the packets?", False
    return _BROKEN, False
