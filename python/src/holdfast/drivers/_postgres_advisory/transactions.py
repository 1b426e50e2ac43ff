"""Runs one statement in an open transaction of the caller: asyncpg, psycopg, psycopg2, SQLAlchemy.

SQLAlchemy and psycopg begin a transaction by themselves with the first statement. After it, the client of the database
knows whether it is inside a transaction. If it is not, for example in autocommit mode, what the statement has locked is
free again already, and the call is refused.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Optional, Sequence

from ...errors import InvalidArgumentError
from .._postgres.clients import is_a
from .._postgres.placeholders import arranged, with_percent

Check = Callable[[Any], None]
"""Gets the connection of the client of the database, before the statement is sent."""

_RULE = (
    "an open transaction: a connection of asyncpg in a transaction, an AsyncConnection of psycopg, or an AsyncSession "
    "or AsyncConnection of SQLAlchemy"
)
_SYNC_RULE = "an open transaction: a Session or Connection of SQLAlchemy, or a Connection of psycopg or psycopg2"
_NOT_OPEN = "No transaction is open on this one, so the lock would be free again at once"
_USE_SYNC = "For this synchronous one, use the function that begins with sync_"
_USE_ASYNC = "For this asynchronous one, await the function without sync_"
_IDLE = 0
"""The transaction status of libpq, of psycopg and of psycopg2."""


async def fetch_one(transaction: Any, text: str, values: Sequence[str], check: Check) -> Any:
    """The value of the first column."""
    if is_a(transaction, "asyncpg", "Connection", "PoolConnectionProxy"):
        check(_unwrapped(transaction))
        if not transaction.is_in_transaction():
            raise InvalidArgumentError("transaction", transaction, f"{_RULE}. {_NOT_OPEN}")
        return await transaction.fetchval(text, *values)
    if is_a(transaction, "psycopg", "AsyncConnection"):
        check(transaction)
        _refuse_idle_autocommit(transaction, _RULE)
        cursor = transaction.cursor(row_factory=_tuple_row())
        await cursor.execute(*_percent(text, values))
        return (await cursor.fetchone())[0]
    if is_a(transaction, "sqlalchemy", "AsyncSession", "AsyncConnection"):
        return await transaction.run_sync(lambda handle: _in_sqlalchemy(handle, text, values, check, _RULE))
    raise InvalidArgumentError("transaction", transaction, f"{_RULE}. {_USE_SYNC}" if _is_sync(transaction) else _RULE)


def sync_fetch_one(transaction: Any, text: str, values: Sequence[str], check: Check) -> Any:
    """The value of the first column."""
    if is_a(transaction, "psycopg", "Connection"):
        check(transaction)
        _refuse_idle_autocommit(transaction, _SYNC_RULE)
        cursor = transaction.cursor(row_factory=_tuple_row())
        return cursor.execute(*_percent(text, values)).fetchone()[0]
    if is_a(transaction, "psycopg2", "connection"):
        check(transaction)
        if transaction.autocommit and transaction.get_transaction_status() == _IDLE:
            raise InvalidArgumentError("transaction", transaction, f"{_SYNC_RULE}. {_NOT_OPEN}")
        with transaction.cursor() as cursor:
            cursor.execute(*_percent(text, values))
            return list(_row_values(cursor.fetchone()))[0]
    if is_a(transaction, "sqlalchemy", "Session", "Connection"):
        return _in_sqlalchemy(transaction, text, values, check, _SYNC_RULE)
    raise InvalidArgumentError(
        "transaction", transaction, f"{_SYNC_RULE}. {_USE_ASYNC}" if _is_async(transaction) else _SYNC_RULE
    )


def _in_sqlalchemy(handle: Any, text: str, values: Sequence[str], check: Check, rule: str) -> Any:
    import sqlalchemy

    connection = handle if is_a(handle, "sqlalchemy", "Connection") else handle.connection()
    # A Connection of SQLAlchemy 1.4 without `future` commits after some statements unless `begin` was called.
    if not connection.in_transaction() and not getattr(connection, "_is_future", True):
        raise InvalidArgumentError("transaction", handle, f"{rule}. {_NOT_OPEN}: call begin()")
    raw = _raw(connection)
    check(raw)
    # `\:` is how its text() writes a colon that begins no parameter.
    numbered = re.sub(r"\$(\d+)", r":p\1", text.replace(":", "\\:"))
    parameters = {f"p{number}": value for number, value in enumerate(values, 1)}
    value = connection.execute(sqlalchemy.text(numbered), parameters).scalar()
    if not connection.in_transaction() or not _is_open(raw):
        raise InvalidArgumentError("transaction", handle, f"{rule}. {_NOT_OPEN}")
    return value


def _raw(connection: Any) -> Any:
    """The connection of the client of the database, under SQLAlchemy's."""
    pooled = connection.connection
    raw = getattr(pooled, "driver_connection", None)
    return pooled.connection if raw is None else raw


def _is_open(raw: Any) -> bool:
    for name in ("is_in_transaction", "get_transaction_status"):
        status: Optional[Callable[[], Any]] = getattr(raw, name, None)
        if callable(status):
            return bool(status())
    pgconn = getattr(raw, "pgconn", None)
    if pgconn is not None:
        return int(pgconn.transaction_status) != _IDLE
    # Another client, such as pg8000. SQLAlchemy believes that a transaction is open.
    return not getattr(raw, "autocommit", False)


def _refuse_idle_autocommit(connection: Any, rule: str) -> None:
    """Without autocommit, psycopg begins a transaction with the statement."""
    if connection.autocommit and int(connection.pgconn.transaction_status) == _IDLE:
        raise InvalidArgumentError("transaction", connection, f"{rule}. {_NOT_OPEN}")


def _is_sync(handle: object) -> bool:
    return is_a(handle, "sqlalchemy", "Session", "Connection") or is_a(handle, "psycopg", "Connection")


def _is_async(handle: object) -> bool:
    is_sqlalchemys = is_a(handle, "sqlalchemy", "AsyncSession", "AsyncConnection")
    return is_sqlalchemys or is_a(handle, "asyncpg", "Connection") or is_a(handle, "psycopg", "AsyncConnection")


def _unwrapped(connection: Any) -> Any:
    """A connection of a pool is wrapped anew each time it is lent."""
    return getattr(connection, "_con", None) or connection


def _percent(text: str, values: Sequence[str]) -> "tuple[str, list[str]]":
    sql, order = with_percent(text)
    return sql, arranged(order, values)


def _tuple_row() -> Any:
    from psycopg.rows import tuple_row

    return tuple_row


def _row_values(row: Any) -> Any:
    """A cursor of the caller's connection may return dictionaries."""
    return row.values() if hasattr(row, "values") else row
