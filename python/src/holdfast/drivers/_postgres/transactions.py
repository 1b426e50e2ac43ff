"""Runs one statement in an open transaction of the caller: asyncpg, psycopg, psycopg2, SQLAlchemy.

SQLAlchemy and psycopg begin a transaction by themselves with the first statement. After it, the client of the database
knows whether it is inside a transaction. If it is not, for example in autocommit mode, what the statement has locked is
free again already, and the call is refused.
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
SYNC_RULE = "an open transaction: a Session or Connection of SQLAlchemy, or a Connection of psycopg or psycopg2"
_NOT_OPEN = "No transaction is open on this one, so what it locks would be free again at once"
USE_SYNC = "For this synchronous one, use the function that begins with sync_"
USE_ASYNC = "For this asynchronous one, await the function without sync_"
_IDLE = 0
"""The transaction status of libpq, of psycopg and of psycopg2."""

_SYNC = {
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


async def fetch_one(transaction: Any, text: str, values: Sequence[str], check: Optional[Check] = None) -> Any:
    """The value of the first column."""
    check = check or _no_check
    kinds = _kinds(transaction)
    if kinds & {"asyncpg.Connection", "asyncpg.PoolConnectionProxy"}:
        # A connection of a pool is wrapped anew each time it is lent.
        check(getattr(transaction, "_con", None) or transaction)
        if not transaction.is_in_transaction():
            raise InvalidArgumentError("transaction", transaction, f"{RULE}. {_NOT_OPEN}")
        return await transaction.fetchval(text, *values)
    if "psycopg.AsyncConnection" in kinds:
        check(transaction)
        _refuse_idle_autocommit(transaction, RULE)
        cursor = transaction.cursor(row_factory=_tuple_row())
        await cursor.execute(*_with_values(text, values))
        _refuse_idle(transaction, RULE)
        return (await cursor.fetchone())[0]
    if kinds & {"sqlalchemy.AsyncSession", "sqlalchemy.AsyncConnection", "sqlalchemy.async_scoped_session"}:
        if "sqlalchemy.async_scoped_session" in kinds:
            transaction = transaction()
        checked = check
        return await transaction.run_sync(lambda handle: _in_sqlalchemy(handle, text, values, checked, RULE))
    raise InvalidArgumentError("transaction", transaction, f"{RULE}. {USE_SYNC}" if kinds & _SYNC else RULE)


def sync_fetch_one(transaction: Any, text: str, values: Sequence[str], check: Optional[Check] = None) -> Any:
    """The value of the first column."""
    check = check or _no_check
    kinds = _kinds(transaction)
    if "psycopg.Connection" in kinds:
        check(transaction)
        _refuse_idle_autocommit(transaction, SYNC_RULE)
        cursor = transaction.cursor(row_factory=_tuple_row())
        cursor.execute(*_with_values(text, values))
        _refuse_idle(transaction, SYNC_RULE)
        return cursor.fetchone()[0]
    if "psycopg2.connection" in kinds:
        check(transaction)
        if transaction.autocommit and transaction.get_transaction_status() == _IDLE:
            raise InvalidArgumentError("transaction", transaction, f"{SYNC_RULE}. {_NOT_OPEN}")
        with transaction.cursor() as cursor:
            cursor.execute(*_with_values(text, values))
            if transaction.get_transaction_status() == _IDLE:
                raise InvalidArgumentError("transaction", transaction, f"{SYNC_RULE}. {_NOT_OPEN}")
            row = cursor.fetchone()
            # A cursor of the caller's connection may return dictionaries.
            return list(row.values() if hasattr(row, "values") else row)[0]
    if kinds & {"sqlalchemy.Session", "sqlalchemy.Connection", "sqlalchemy.scoped_session"}:
        if "sqlalchemy.scoped_session" in kinds:
            transaction = transaction()
        return _in_sqlalchemy(transaction, text, values, check, SYNC_RULE)
    rule = f"{SYNC_RULE}. {USE_ASYNC}" if kinds & _ASYNC else SYNC_RULE
    raise InvalidArgumentError("transaction", transaction, rule)


def _in_sqlalchemy(handle: Any, text: str, values: Sequence[str], check: Check, rule: str) -> Any:
    import sqlalchemy

    connection = handle if "sqlalchemy.Connection" in _kinds(handle) else handle.connection()
    # A Connection of SQLAlchemy 1.4 without `future` commits after some statements unless `begin` was called.
    if not connection.in_transaction() and not getattr(connection, "_is_future", True):
        raise InvalidArgumentError("transaction", handle, f"{rule}. {_NOT_OPEN}: call begin()")
    raw = _raw(connection)
    check(raw)
    parameters = {f"p{number}": value for number, value in enumerate(values, 1)}
    value = connection.execute(sqlalchemy.text(with_names(text)), parameters).scalar()
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
    if connection.autocommit:
        _refuse_idle(connection, rule)


def _refuse_idle(connection: Any, rule: str) -> None:
    """Also after the statement: while another one was in flight, such as a COMMIT, the status said only that."""
    if int(connection.pgconn.transaction_status) == _IDLE:
        raise InvalidArgumentError("transaction", connection, f"{rule}. {_NOT_OPEN}")


def _kinds(handle: Any) -> "set[str]":
    """The names of its classes, behind the name of the package that each comes from."""
    return {f"{base.__module__.partition('.')[0]}.{base.__name__}" for base in type(handle).__mro__}


def _with_values(text: str, values: Sequence[str]) -> "tuple[str, list[str]]":
    sql, order = with_percent(text)
    return sql, arranged(order, values)


def _tuple_row() -> Any:
    from psycopg.rows import tuple_row

    return tuple_row


def _no_check(_connection: Any) -> None:
    pass
