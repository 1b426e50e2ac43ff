"""Locks that last as long as a transaction of the caller."""

from __future__ import annotations

from typing import Any, Optional

from ...core.arguments import Seconds, blocking_ms_from, check_lock_name
from ...errors import InvalidArgumentError, NotAcquiredError
from .._postgres.errors import sql_state
from .._postgres.transactions import rows_in, sync_rows_in
from .callers_connection import is_occupied
from .held_locks import advisory_key
from .statements import STATEMENTS, boolean

_OCCUPIED = (
    "on a connection without a postgres-advisory driver: the server would grant it that driver's locks as well"
)


async def lock_in_transaction(
    transaction: Any,
    lock_name: str,
    *,
    shared: bool = False,
    blocking: Optional[bool] = None,
    blocking_timeout_seconds: Optional[Seconds] = None,
) -> None:
    """Takes a lock in your own open transaction, and raises `NotAcquiredError` if another client holds it.

    The commit or rollback releases the lock. So does a rollback to a savepoint that was set before, as when a nested
    `transaction()` or `begin_nested()` fails: take the lock outside of it. It excludes, and is excluded by, the leases
    of the postgres-advisory driver on the same name. It works behind a pooler in transaction mode. With `shared` it is
    held beside other shared locks, never beside an exclusive one.

    Nothing waits unless you ask for it: `blocking=True` waits for 10 seconds, in the server's queue. The wait has its
    own `lock_timeout`, and leaves that of the transaction as it was. A wait that ends without the lock aborts the
    transaction, like every statement that fails: roll it back.

    `transaction` is a connection of asyncpg in a transaction, an AsyncConnection of psycopg, or an AsyncSession or
    AsyncConnection of SQLAlchemy. Where the client begins transactions by itself, the lock begins one.

    Raises `InvalidArgumentError` if no transaction is open, because the lock would be free again at once, and if a
    postgres-advisory driver uses the connection. Every other error is the client's own.

        async with sessions.begin() as session:
            await lock_in_transaction(session, "invoice:2026")
    """
    wait_ms = blocking_ms_from(blocking, blocking_timeout_seconds)
    try:
        taken = await _take(transaction, lock_name, shared, wait_ms)
    except Exception as error:
        if not _ended_wait(error, wait_ms):
            raise
        raise _waited_too_long(lock_name, wait_ms) from error
    if not taken:
        raise _held_by_another(lock_name)


async def try_lock_in_transaction(transaction: Any, lock_name: str, *, shared: bool = False) -> bool:
    """Like `lock_in_transaction` without waiting, but returns False if another client holds the lock."""
    return await _take(transaction, lock_name, shared, 0)


def sync_lock_in_transaction(
    transaction: Any,
    lock_name: str,
    *,
    shared: bool = False,
    blocking: Optional[bool] = None,
    blocking_timeout_seconds: Optional[Seconds] = None,
) -> None:
    """`lock_in_transaction` for a Session or Connection of SQLAlchemy, or a connection of psycopg or psycopg2.

        with Session(engine) as session, session.begin():
            sync_lock_in_transaction(session, "invoice:2026")
    """
    wait_ms = blocking_ms_from(blocking, blocking_timeout_seconds)
    try:
        taken = _sync_take(transaction, lock_name, shared, wait_ms)
    except Exception as error:
        if not _ended_wait(error, wait_ms):
            raise
        raise _waited_too_long(lock_name, wait_ms) from error
    if not taken:
        raise _held_by_another(lock_name)


def sync_try_lock_in_transaction(transaction: Any, lock_name: str, *, shared: bool = False) -> bool:
    """Like `sync_lock_in_transaction` without waiting, but returns False if another client holds the lock."""
    return _sync_take(transaction, lock_name, shared, 0)


async def _take(transaction: Any, lock_name: str, shared: bool, wait_ms: int) -> bool:
    values = _values(lock_name, shared, wait_ms)
    return await rows_in(transaction, STATEMENTS["lock_in_transaction"], values, _refuse_occupied) == 2


def _sync_take(transaction: Any, lock_name: str, shared: bool, wait_ms: int) -> bool:
    values = _values(lock_name, shared, wait_ms)
    return sync_rows_in(transaction, STATEMENTS["lock_in_transaction"], values, _refuse_occupied) == 2


_MAX_LOCK_TIMEOUT_MS = 2**31 - 1
"""What `lock_timeout` can be: 24 days."""


def _values(lock_name: str, shared: bool, wait_ms: int) -> "list[str]":
    lock_name = check_lock_name(lock_name)
    if not isinstance(shared, bool):
        raise InvalidArgumentError("shared", shared, "True or False")
    return [str(advisory_key(lock_name)), boolean(shared), str(min(wait_ms, _MAX_LOCK_TIMEOUT_MS))]


def _ended_wait(error: Exception, wait_ms: int) -> bool:
    return wait_ms > 0 and sql_state(error) == _LOCK_NOT_AVAILABLE


_LOCK_NOT_AVAILABLE = "55P03"


def _waited_too_long(lock_name: str, wait_ms: int) -> NotAcquiredError:
    waited = f"waited {wait_ms / 1_000:.1f} s, which has aborted the transaction: roll it back"
    return NotAcquiredError(lock_name, f'"{lock_name}" is held by another client ({waited})')


def _held_by_another(lock_name: str) -> NotAcquiredError:
    return NotAcquiredError(lock_name, f'"{lock_name}" is held by another client')


def _refuse_occupied(connection: Optional[Any]) -> None:
    if connection is not None and is_occupied(connection):
        raise InvalidArgumentError("transaction", connection, _OCCUPIED)
