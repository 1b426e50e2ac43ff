"""Locks that last as long as a transaction of the caller."""

from __future__ import annotations

from typing import Any, Optional

from ...core.arguments import check_lock_name
from ...errors import InvalidArgumentError
from .._postgres.transactions import rows_in, sync_rows_in
from .key import advisory_key
from .occupied_clients import is_occupied
from .statements import STATEMENTS, boolean

_OCCUPIED = (
    "on a connection without a postgres-advisory driver: the server would grant it that driver's locks as well"
)


async def lock_in_transaction(transaction: Any, lock_name: str, *, shared: bool = False) -> None:
    """Takes a lock in your own open transaction, and waits for it as long as its `lock_timeout` allows.

    The commit or rollback releases the lock. So does a rollback to a savepoint that was set before, as when a nested
    `transaction()` or `begin_nested()` fails: take the lock outside of it. It excludes, and is excluded by, the leases
    of the postgres-advisory driver on the same name. It works behind a pooler in transaction mode. With `shared` it is
    held beside other shared locks, never beside an exclusive one.

    `transaction` is a connection of asyncpg in a transaction, an AsyncConnection of psycopg, or an AsyncSession or
    AsyncConnection of SQLAlchemy. Where the client begins transactions by itself, the lock begins one.

    Raises `InvalidArgumentError` if no transaction is open, because the lock would be free again at once, and if a
    postgres-advisory driver uses the connection. Every other error is the client's own.

        async with sessions.begin() as session:
            await lock_in_transaction(session, "invoice:2026")
    """
    await _take(transaction, lock_name, shared, waits=True)


async def try_lock_in_transaction(transaction: Any, lock_name: str, *, shared: bool = False) -> bool:
    """As `lock_in_transaction`, but returns at once. False: another client holds the lock."""
    return await _take(transaction, lock_name, shared, waits=False)


def sync_lock_in_transaction(transaction: Any, lock_name: str, *, shared: bool = False) -> None:
    """`lock_in_transaction` for a Session or Connection of SQLAlchemy, or a connection of psycopg or psycopg2.

        with Session(engine) as session, session.begin():
            sync_lock_in_transaction(session, "invoice:2026")
    """
    _sync_take(transaction, lock_name, shared, waits=True)


def sync_try_lock_in_transaction(transaction: Any, lock_name: str, *, shared: bool = False) -> bool:
    """As `sync_lock_in_transaction`, but returns at once. False: another client holds the lock."""
    return _sync_take(transaction, lock_name, shared, waits=False)


async def _take(transaction: Any, lock_name: str, shared: bool, *, waits: bool) -> bool:
    values = _values(lock_name, shared, waits)
    return await rows_in(transaction, STATEMENTS["lock_in_transaction"], values, _refuse_occupied) == 2


def _sync_take(transaction: Any, lock_name: str, shared: bool, *, waits: bool) -> bool:
    values = _values(lock_name, shared, waits)
    return sync_rows_in(transaction, STATEMENTS["lock_in_transaction"], values, _refuse_occupied) == 2


def _values(lock_name: str, shared: bool, waits: bool) -> "list[str]":
    lock_name = check_lock_name(lock_name)
    if not isinstance(shared, bool):
        raise InvalidArgumentError("shared", shared, "True or False")
    return [str(advisory_key(lock_name)), boolean(shared), boolean(waits)]


def _refuse_occupied(connection: Optional[Any]) -> None:
    if connection is not None and is_occupied(connection):
        raise InvalidArgumentError("transaction", connection, _OCCUPIED)
