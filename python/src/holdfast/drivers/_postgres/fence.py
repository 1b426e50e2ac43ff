"""Checks a fencing token in the transaction that writes to a protected resource."""

from __future__ import annotations

from typing import Any, NoReturn, Optional

from ...core.fencing import Token, check_resource, token_of
from ...core.secrets import safe_cause
from ...errors import InvalidArgumentError, StaleTokenError, StoreError
from .errors import sql_state
from .statements import statements_for
from .transactions import RULE, SYNC_RULE, USE_ASYNC, USE_SYNC, is_synchronous, rows_in, sync_rows_in

__all__ = ["PostgresFence", "SyncPostgresFence", "postgres_fence", "sync_postgres_fence"]

_STALE = "HF001"
_MISSING = ("42883", "3F000", "42P01")
"""No such function, no such schema, or no table behind the function."""


def postgres_fence(transaction: Any, *, schema: str = "public") -> PostgresFence:
    """See `holdfast.postgres_fence`."""
    statements_for(schema)
    if is_synchronous(transaction):
        raise InvalidArgumentError("transaction", transaction, f"{RULE}. {USE_SYNC}")
    return PostgresFence(transaction, schema)


def sync_postgres_fence(transaction: Any, *, schema: str = "public") -> SyncPostgresFence:
    """See `holdfast.sync_postgres_fence`."""
    statements_for(schema)
    if not is_synchronous(transaction):
        raise InvalidArgumentError("transaction", transaction, f"{SYNC_RULE}. {USE_ASYNC}")
    return SyncPostgresFence(transaction, schema)


class PostgresFence:
    """For an asynchronous transaction."""

    def __init__(self, transaction: Any, schema: str = "public") -> None:
        self._transaction = transaction
        self._schema = schema

    def __repr__(self) -> str:
        return f"<PostgresFence in a transaction of {type(self._transaction).__module__}, schema {self._schema}>"

    async def accept(self, resource: str, token: Token) -> None:
        """Accepts the token if no larger one has been seen for the resource, and remembers it.

        Raises `StaleTokenError` if a larger token has been seen: the lease was lost. Roll the transaction back. Raises
        `StoreError` if the schema has no fencing guard, and `InvalidArgumentError` if no transaction is open. Every
        other error is the client's own.
        """
        resource, fencing_token = check_resource(resource), token_of(token)
        values = [resource, str(fencing_token)]
        try:
            await rows_in(self._transaction, statements_for(self._schema)["fence"], values)
            return
        except Exception as error:
            failure = error
        _raise(failure, self._schema, resource, fencing_token)

    async def reset(self, resource: str) -> bool:
        """Forgets the largest token when the transaction commits. Then any token is accepted. True if there was one.

        Use it for a resource that is gone, or whose lock moves to another store, once no process with an old token can
        reach the resource.
        """
        resource = check_resource(resource)
        try:
            return await rows_in(self._transaction, statements_for(self._schema)["reset_fence"], [resource]) == 2
        except Exception as error:
            failure = error
        _raise(failure, self._schema)


class SyncPostgresFence:
    """For a synchronous transaction. Like `PostgresFence`, without await."""

    def __init__(self, transaction: Any, schema: str = "public") -> None:
        self._transaction = transaction
        self._schema = schema

    def __repr__(self) -> str:
        return f"<SyncPostgresFence in a transaction of {type(self._transaction).__module__}, schema {self._schema}>"

    def accept(self, resource: str, token: Token) -> None:
        resource, fencing_token = check_resource(resource), token_of(token)
        values = [resource, str(fencing_token)]
        try:
            sync_rows_in(self._transaction, statements_for(self._schema)["fence"], values)
            return
        except Exception as error:
            failure = error
        _raise(failure, self._schema, resource, fencing_token)

    def reset(self, resource: str) -> bool:
        resource = check_resource(resource)
        try:
            return sync_rows_in(self._transaction, statements_for(self._schema)["reset_fence"], [resource]) == 2
        except Exception as error:
            failure = error
        _raise(failure, self._schema)


def _raise(error: Exception, schema: str, resource: str = "", token: int = 0) -> NoReturn:
    state = sql_state(error)
    if state == _STALE:
        raise StaleTokenError(resource, token, _largest(error)) from safe_cause(error)
    if state in _MISSING:
        command = f"holdfast migrate --only fence --schema {schema}"
        message = f'the schema "{schema}" of this database has no holdfast_fence, or an old one: run "{command}"'
        raise StoreError(message, retryable=False) from safe_cause(error)
    raise error


def _largest(error: Optional[BaseException]) -> Optional[int]:
    """The token in the detail of the error, which SQLAlchemy wraps."""
    for _ in range(4):
        if error is None:
            return None
        detail = getattr(error, "detail", None) or getattr(getattr(error, "diag", None), "message_detail", None)
        if isinstance(detail, str) and detail.isdigit():
            return int(detail)
        error = getattr(error, "orig", None) or error.__cause__
    return None
