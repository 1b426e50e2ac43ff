"""Runs one statement in an open transaction of the caller: asyncpg, psycopg, psycopg2, SQLAlchemy, Django.

The statement does nothing, and returns no row, unless an earlier statement has marked its transaction. It marks it
then, and is sent again. So the database proves that the transaction is open and lasts longer than one statement.
SQLAlchemy and psycopg begin a transaction by themselves with the first statement.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

from ...errors import InvalidArgumentError
from .placeholders import arranged, with_names, with_percent

Check = Callable[[Any], None]
"""Gets the connection of the client of the database, before the statement is sent."""

RULE = (
    "an open transaction: a connection of asyncpg in a transaction, an AsyncConnection of psycopg, or an AsyncSession "
    "or AsyncConnection of SQLAlchemy"
)
SYNC_RULE = (
    "an open transaction: a Session or Connection of SQLAlchemy, a Connection of psycopg or psycopg2, or "
    "django.db.connection in atomic()"
)
_NOT_OPEN = "No transaction is open on this one, so what it locks would be free again at once"
USE_SYNC = "For this synchronous one, use the function that begins with sync_"
USE_ASYNC = "For this asynchronous one, await the function without sync_"
_DJANGO = {"django.ConnectionProxy", "django.DefaultConnectionProxy", "django.BaseDatabaseWrapper"}
_SYNC = _DJANGO | {
    "psycopg.Connection",
    "psycopg2.connection",
    "sqlalchemy.Session",
    "sqlalchemy.Connection",
    "sqlalchemy.scoped_session",
}
_ASYNC = {
    "asyncpg.Connection",
    "asyncpg.PoolConnectionProxy",
    "psycopg.AsyncConnection",
    "sqlalchemy.AsyncSession",
    "sqlalchemy.AsyncConnection",
    "sqlalchemy.async_scoped_session",
}


def is_synchronous(transaction: Any) -> bool:
    """Raises `InvalidArgumentError` if it is no transaction of a known client."""
    kinds = _kinds(transaction)
    if not kinds & (_SYNC | _ASYNC):
        raise InvalidArgumentError("transaction", transaction, f"{RULE}, or the synchronous form of one of these")
    return bool(kinds & _SYNC)


async def rows_in(transaction: Any, text: str, values: Sequence[str], check: Optional[Check] = None) -> int:
    """How many rows there are. They can be counted even if the application converts values and has rows of its own."""
    marked = await _send(transaction, text, values, check or _no_check)
    rows = marked if marked > 0 else await _send(transaction, text, values, check or _no_check)
    if rows == 0:
        raise InvalidArgumentError("transaction", transaction, f"{RULE}. {_NOT_OPEN}")
    return rows


def sync_rows_in(transaction: Any, text: str, values: Sequence[str], check: Optional[Check] = None) -> int:
    marked = _sync_send(transaction, text, values, check or _no_check)
    rows = marked if marked > 0 else _sync_send(transaction, text, values, check or _no_check)
    if rows == 0:
        raise InvalidArgumentError("transaction", transaction, f"{SYNC_RULE}. {_NOT_OPEN}")
    return rows


async def _send(transaction: Any, text: str, values: Sequence[str], check: Check) -> int:
    kinds = _kinds(transaction)
    if kinds & {"asyncpg.Connection", "asyncpg.PoolConnectionProxy"}:
        # A connection of a pool is wrapped anew each time it is lent.
        check(getattr(transaction, "_con", None) or transaction)
        return len(await transaction.fetch(text, *values))
    if "psycopg.AsyncConnection" in kinds:
        from psycopg import AsyncCursor

        check(transaction)
        _refuse_pipeline(transaction, RULE)
        # Cursors of the connection's own kind may have other placeholders.
        cursor = AsyncCursor(transaction)
        await cursor.execute(*_with_values(text, values))
        return len(await cursor.fetchall())
    if kinds & {"sqlalchemy.AsyncSession", "sqlalchemy.AsyncConnection", "sqlalchemy.async_scoped_session"}:
        if "sqlalchemy.async_scoped_session" in kinds:
            transaction = transaction()
        return int(await transaction.run_sync(lambda handle: _in_sqlalchemy(handle, text, values, check, RULE)))
    raise InvalidArgumentError("transaction", transaction, f"{RULE}. {USE_SYNC}" if kinds & _SYNC else RULE)


def _sync_send(transaction: Any, text: str, values: Sequence[str], check: Check) -> int:
    kinds = _kinds(transaction)
    if kinds & _DJANGO:
        transaction = _under_django(transaction)
        kinds = _kinds(transaction)
    if "psycopg.Connection" in kinds:
        from psycopg import Cursor

        check(transaction)
        _refuse_pipeline(transaction, SYNC_RULE)
        cursor = Cursor(transaction)
        cursor.execute(*_with_values(text, values))
        return len(cursor.fetchall())
    if "psycopg2.connection" in kinds:
        check(transaction)
        with transaction.cursor() as older:
            older.execute(*_with_values(text, values))
            return int(older.rowcount)
    if kinds & {"sqlalchemy.Session", "sqlalchemy.Connection", "sqlalchemy.scoped_session"}:
        if "sqlalchemy.scoped_session" in kinds:
            transaction = transaction()
        return _in_sqlalchemy(transaction, text, values, check, SYNC_RULE)
    rule = f"{SYNC_RULE}. {USE_ASYNC}" if kinds & _ASYNC else SYNC_RULE
    raise InvalidArgumentError("transaction", transaction, rule)


def _in_sqlalchemy(handle: Any, text: str, values: Sequence[str], check: Check, rule: str) -> int:
    import sqlalchemy

    connection = handle if "sqlalchemy.Connection" in _kinds(handle) else handle.connection()
    # A Connection of SQLAlchemy 1.4 without `future` commits after some statements unless `begin` was called.
    if not connection.in_transaction() and not getattr(connection, "_is_future", True):
        raise InvalidArgumentError("transaction", handle, f"{rule}. {_NOT_OPEN}: call begin()")
    check(_raw(connection))
    parameters = {f"p{number}": value for number, value in enumerate(values, 1)}
    return len(connection.execute(sqlalchemy.text(with_names(text)), parameters).fetchall())


def _under_django(connection: Any) -> Any:
    """`django.db.connection` is the connection of the current thread, which Django opens when it is needed."""
    if connection.vendor != "postgresql":
        raise InvalidArgumentError("transaction", connection, f"{SYNC_RULE}. This one is on {connection.vendor}")
    connection.ensure_connection()
    return connection.connection


def _raw(connection: Any) -> Any:
    """The connection of the client of the database, under SQLAlchemy's."""
    pooled = connection.connection
    raw = getattr(pooled, "driver_connection", None)
    return pooled.connection if raw is None else raw


def _refuse_pipeline(connection: Any, rule: str) -> None:
    """To the server, what is sent in a pipeline is one transaction until the next synchronization."""
    if connection.autocommit and int(connection.pgconn.pipeline_status) != 0:
        raise InvalidArgumentError("transaction", connection, f"{rule}. {_NOT_OPEN}, or it is in pipeline mode")


def _kinds(handle: Any) -> "set[str]":
    """The names of its classes, behind the name of the package that each comes from."""
    return {f"{base.__module__.partition('.')[0]}.{base.__name__}" for base in type(handle).__mro__}


def _with_values(text: str, values: Sequence[str]) -> "tuple[str, list[str]]":
    sql, order = with_percent(text)
    return sql, arranged(order, values)


def _no_check(_connection: Any) -> None:
    pass
