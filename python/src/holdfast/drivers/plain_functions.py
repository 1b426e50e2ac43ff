"""A driver over the two plain SQL functions `acquire_lock` and `release_lock`, for any handle that can run SQL."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import math
from types import MappingProxyType
from typing import Any, Mapping, Optional, Sequence, Union

from .._protocol import statements
from ..core.arguments import check_inspect_query
from ..core.driver import (
    Capabilities,
    Claim,
    DriverListener,
    Grant,
    InspectPage,
    InspectQuery,
    LeaseRecord,
    LeaseRef,
    RateAnswer,
    RateRequest,
    Refusal,
    Renewal,
    RenewAnswer,
    StopListening,
)
from ..errors import ClosedError, InvalidArgumentError, StoreError, UnsupportedError
from ._postgres.calls import metadata_json
from ._postgres.clients import is_a
from ._postgres import deadlines
from ._postgres.errors import IN_TRANSACTION, store_error_from
from ._postgres.statements import check_schema, quote_identifier
from ._shared.foreign_json import parse_foreign

__all__ = ["PlainFunctionsDriver", "capabilities", "plain_functions_driver"]

_ONLY = "the two SQL functions cannot do it. Use postgres_driver with a client of asyncpg or psycopg"

capabilities = Capabilities(
    expiry="ttl",
    scope="network",
    fencing=False,
    shared=False,
    limit=False,
    queue=False,
    wake=False,
    metadata=True,
    rate=False,
    force=False,
    groups=False,
    reasons=MappingProxyType(
        {name: _ONLY for name in ("fencing", "shared", "limit", "queue", "wake", "rate", "force", "groups")}
    ),
)

_MAX_HOLDER = 255
_MAX_CLAIM = 200
_MARK = "/claim:"
_RULE = (
    "a handle with an awaitable execute(sql, *args) that returns the rows of the statement, as a list of tuples or of "
    "records. The statements have $1, $2, … for the arguments"
)


def plain_functions_driver(handle: Any, *, schema: str = "public") -> PlainFunctionsDriver:
    """A driver on `handle.execute(sql, *args)`, which must be awaitable and return the rows of the statement.

    It needs nothing of the database but the functions `acquire_lock` and `release_lock` and the five plain columns of
    `distributed_locks`, which `holdfast migrate` creates. It excludes all other clients, and they exclude it.

    What it cannot do, because two functions that return a boolean cannot: fencing tokens (every lease has the token 0,
    which a guard refuses), shared locks and semaphores, a queue, wake-ups (waiters poll), rate limits, taking a lock by
    force.

    - **Each acquisition has a holder id of its own**: yours, `/claim:`, and the claim id. `acquire_lock` is also true
      for the holder that asks again. With one holder id for all, two tasks would both have the lock.
    - **A lease ends at a whole second.** `acquire_lock` takes no fractions, so the database keeps the lease for up to a
      second longer than the holder relies on it. Never shorter.
    - **Renewals do not re-create a lease that has ended**, although `acquire_lock` would. They lock the row, check its
      `expires_at`, and extend it in one statement. See `protocol/postgres/plain.sql`.
    - **Each call must be a transaction of its own.** After each grant, a second statement asks whether it was. If the
      handle is inside an open transaction, the grant is taken back and the call fails with a reason.
    - Each lock name of a list is one call, one after the other: a handle need not allow several at a time.

    Raises `InvalidArgumentError` if `handle` has no `execute`, or one that is known not to return rows, such as that of
    asyncpg, which returns a status such as `'SELECT 1'`. If another handle turns out not to return rows, `acquire`
    fails with a `StoreError`. It never counts as acquired.
    """
    if not callable(getattr(handle, "execute", None)):
        raise InvalidArgumentError("handle", handle, _RULE)
    known = is_a(handle, "asyncpg", "Connection", "PoolConnectionProxy", "Pool") or is_a(
        handle, "psycopg", "AsyncConnection", "Connection"
    )
    if known or any(each.__module__.split(".")[0] == "sqlalchemy" for each in type(handle).__mro__):
        what = "Its execute does not return rows. Pass this client to postgres_driver, which needs no such handle"
        raise InvalidArgumentError("handle", handle, f"{_RULE}. {what}")
    check_schema(schema)
    return PlainFunctionsDriver(handle, schema)


class PlainFunctionsDriver:
    """See `plain_functions_driver`, which makes one."""

    name = "plain_functions"
    place: Optional[str] = None
    capabilities = capabilities
    longest_ttl_ms: Optional[float] = None

    def __init__(self, handle: Any, schema: str) -> None:
        self._handle = handle
        quoted = quote_identifier(schema)
        sql = statements("postgres/plain.sql")
        self._statements = {name: text.replace(':"schema"', quoted) for name, text in sql.items()}
        self._closed = False

    def __repr__(self) -> str:
        return f"<PlainFunctionsDriver on a client ({type(self._handle).__module__}.{type(self._handle).__qualname__})>"

    async def acquire(self, claims: Sequence[Claim]) -> Sequence[Union[Grant, Refusal, Exception]]:
        for claim in claims:
            if claim.mode != "exclusive" or claim.force_up_to is not None or claim.group is not None:
                raise UnsupportedError(f"the plain_functions driver has exclusive locks only: {_ONLY}")
        answers: list[Union[Grant, Refusal, Exception]] = []
        for claim in claims:
            try:
                answers.append(await self._acquire(claim))
            except StoreError as error:
                answers.append(error)
        return answers

    async def _acquire(self, claim: Claim) -> Union[Grant, Refusal]:
        end = _end_of_holder(claim.claim_id)
        holder = claim.holder_id[: _MAX_HOLDER - len(end)] + end
        values = (claim.lock_name, holder, _seconds(claim.ttl_ms), metadata_json(claim))
        try:
            [[acquired, at_ms, *before]] = _rows(await self._execute("acquire", *values), 6)
            is_acquired = _boolean(acquired)
            if is_acquired:
                [[committed]] = _rows(await self._execute("committed"), 1)
                if not _boolean(committed):
                    raise StoreError(IN_TRANSACTION, retryable=False)
        except ValueError:
            failure = _no_rows("another number of rows")
        except StoreError as error:
            if error.retryable:
                raise
            failure = error
        else:
            lease = None if before[0] is None else _lease(claim.lock_name, *before)
            if not is_acquired:
                return Refusal(lease)
            is_again = lease is not None and before[0] == holder
            return Grant(0, claim.ttl_ms, lease.acquired_at_ms if lease is not None and is_again else float(at_ms))
        # The lock may have been taken by the call whose answer cannot be used.
        await self._release_quietly(LeaseRef(claim.lock_name, claim.claim_id))
        raise failure

    async def renew(self, renewals: Sequence[Renewal]) -> Sequence[Union[RenewAnswer, Exception]]:
        answers: list[Union[RenewAnswer, Exception]] = []
        for renewal in renewals:
            values = (renewal.lock_name, _end_of_holder(renewal.claim_id), _seconds(renewal.ttl_ms))
            try:
                rows = _rows(await self._execute("renew", *values), 1)
                # No row: it has ended. False: it ended while it was renewed, and the next in line has the lock.
                answers.append("renewed" if rows and _boolean(rows[0][0]) else "lost")
            except StoreError as error:
                answers.append(error)
        return answers

    async def release(self, leases: Sequence[LeaseRef]) -> Sequence[Union[bool, Exception]]:
        answers: list[Union[bool, Exception]] = []
        for lease in leases:
            try:
                answers.append(await self._release(lease))
            except StoreError as error:
                answers.append(error)
        return answers

    async def _release(self, lease: LeaseRef) -> bool:
        rows = _rows(await self._execute("release", lease.lock_name, _end_of_holder(lease.claim_id)), 1)
        return len(rows) > 0 and _boolean(rows[0][0])

    async def _release_quietly(self, lease: LeaseRef) -> None:
        try:
            await self._release(lease)
        except StoreError:
            # Then it ends with its TTL. The first error is the one to report.
            pass

    async def inspect(self, query: InspectQuery) -> InspectPage:
        """The locks that are held, by their plain columns: shared leases are shown as one, and waiters not at all."""
        query = check_inspect_query(query)
        values = (query.lock_name, query.prefix or "", query.after, query.page_size + 1)
        rows = _rows(await self._execute("inspect", *values), 5)
        leases = [_lease(*row) for row in rows[: query.page_size]]
        return InspectPage(leases, [], leases[-1].lock_name if len(rows) > query.page_size else None)

    async def listen(self, listener: DriverListener) -> StopListening:
        raise UnsupportedError(f"the plain_functions driver has no wake-ups: {_ONLY}")

    async def consume(self, requests: Sequence[RateRequest]) -> Sequence[Union[RateAnswer, Exception]]:
        raise UnsupportedError(f"the plain_functions driver has no rate limits: {_ONLY}")

    async def close(self) -> None:
        """The handle is the caller's, and stays as it is."""
        self._closed = True

    async def _execute(self, statement: str, *values: Union[str, int, None]) -> object:
        if self._closed:
            raise ClosedError("the plain_functions driver is closed")
        try:
            answer = self._handle.execute(self._statements[statement], *values)
            if not inspect.isawaitable(answer):
                raise _no_rows(f"an object that cannot be awaited ({type(answer).__name__})")
            # Not cancelled at the deadline: the handle may then be in the middle of an answer.
            work = asyncio.ensure_future(answer)
            done, _ = await asyncio.wait({work}, timeout=deadlines.QUERY_SECONDS)
            if done:
                return work.result()
            work.add_done_callback(lambda late: late.cancelled() or late.exception())
            failure: Exception = asyncio.TimeoutError("no answer in time")
        except Exception as error:
            failure = error
        # Outside the `except` block, so that the client's own error is not attached to ours.
        raise store_error_from(failure)


def _end_of_holder(claim_id: str) -> str:
    is_short = len(claim_id) <= _MAX_CLAIM
    return _MARK + (claim_id if is_short else hashlib.sha256(claim_id.encode("utf-8")).hexdigest())


def _lease(
    lock_name: str, holder: str, acquired_at_ms: float, expires_at_ms: float, metadata: Optional[str]
) -> LeaseRecord:
    holder_id, mark, claim_id = holder.rpartition(_MARK)
    return LeaseRecord(
        lock_name=lock_name,
        # Other drivers show the lease of a plain client in the second form.
        claim_id=claim_id if mark else f"plain:{holder}",
        holder_id=holder_id if mark else holder,
        mode="exclusive",
        permits=1,
        fencing_token=0,
        acquired_at_ms=float(acquired_at_ms),
        expires_at_ms=float(expires_at_ms),
        metadata=None if metadata is None else parse_foreign(metadata),
    )


def _seconds(ttl_ms: float) -> int:
    """Rounded up, so that the database never ends a lease before its holder does."""
    return max(1, math.ceil(ttl_ms / 1_000))


def _rows(answer: object, columns: int) -> list[list[Any]]:
    """The rows of an answer as lists. Raises `StoreError` for anything else: a text such as 'SELECT 1' is true, and so
    is a cursor, but neither says whether the lock was acquired."""
    if isinstance(answer, (str, bytes)) or not isinstance(answer, Sequence):
        raise _no_rows(f"{answer!r}" if isinstance(answer, (str, bytes)) else f"an object ({type(answer).__name__})")
    rows = [_values(row) for row in answer]
    if any(len(row) != columns for row in rows):
        raise _no_rows("rows with another number of columns")
    return rows


def _values(row: Any) -> list[Any]:
    """Of a tuple, a mapping, or a record that is both."""
    if isinstance(row, Mapping):
        return list(row.values())
    if isinstance(row, (str, bytes)) or not hasattr(row, "__iter__"):
        raise _no_rows(f"a list of {type(row).__name__}")
    return list(row)


def _boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise _no_rows(f"{type(value).__name__} instead of a boolean")


def _no_rows(what: str) -> StoreError:
    return StoreError(f"the handle must be {_RULE}. It returned {what}", retryable=False)
