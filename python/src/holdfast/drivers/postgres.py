"""PostgreSQL: leases in a table, changed only by functions, so that clients in every language share them.

`open_postgres(url)` opens connections of its own. `postgres_driver(client)` uses a client that you already have.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Any, Literal, Optional, Sequence, Union

from ..core.arguments import check_inspect_query
from ..core.driver import (
    Capabilities,
    Claim,
    DriverListener,
    Grant,
    InspectPage,
    InspectQuery,
    LeaseRef,
    RateAnswer,
    RateRequest,
    Refusal,
    Renewal,
    RenewAnswer,
    StopListening,
)
from ..core.tasks import start_task
from ..errors import ClosedError, HoldfastError, InvalidArgumentError, StoreError
from ._postgres.arrays import number_array, parse_booleans
from ._postgres.calls import (
    AcquireAnswer,
    Row,
    acquire_answers,
    acquire_groups_values,
    acquire_values,
    inspect_page,
    lease_values,
    metadata_json,
)
from ._postgres.clients import connections_of, open_connections
from ._postgres.connections import Connections, Values
from ._postgres.errors import row_locked, store_error_from
from ._postgres.fence import PostgresFence, SyncPostgresFence, postgres_fence, sync_postgres_fence
from ._postgres.migrate import FORMAT, migrate, read_version
from ._postgres.notify_connection import NotifyConnection
from ._postgres.rates import consume
from ._postgres.statements import statements_for
from ._postgres.unstorable import without_unstorable
from ._postgres.url import Durability, postgres_url

__all__ = [
    "PostgresDriver",
    "PostgresFence",
    "SyncPostgresFence",
    "capabilities",
    "migrate_postgres",
    "migrate_postgres_url",
    "open_postgres",
    "postgres_driver",
    "postgres_fence",
    "sync_postgres_fence",
]

capabilities = Capabilities(
    expiry="ttl",
    scope="network",
    fencing=True,
    shared=True,
    limit=True,
    queue=True,
    wake=True,
    metadata=True,
    rate=True,
    force="claim",
    groups=True,
)


async def open_postgres(url: str) -> PostgresDriver:
    """Opens a driver for a `postgres://…` URL, with a small connection pool of its own: with asyncpg if that is
    installed, otherwise with psycopg. It sends nothing before the first call.

    Beside the client's own parameters, the URL may have `holdfast_schema`, `holdfast_durability` and
    `holdfast_migrate`.

    Raises `InvalidArgumentError` if some part of the URL is not understood, and `MissingClientError` if neither client
    is installed.
    """
    target, options = postgres_url(url)
    _check_settings(options.schema, options.durability, options.migrate)
    return PostgresDriver(open_connections(target), options.schema, options.durability, options.migrate)


def postgres_driver(
    client: Any, *, schema: str = "public", durability: Durability = "crash-safe", migrate: bool = True
) -> PostgresDriver:
    """A driver that keeps leases in a table, through a client that you already have. It never closes the client, and
    sends nothing before the first call.

    `client` is a `Pool` or a `Connection` of asyncpg, an `AsyncConnectionPool`, a `ConnectionPool`, an
    `AsyncConnection` or a `Connection` of psycopg 3, or an `AsyncEngine` or `Engine` of SQLAlchemy.

    Of a single connection, and of an engine that is not on asyncpg, the driver takes only the settings, and opens up to
    five connections of its own. A pool lends connections for claims. Renewals and releases do not wait for the
    application: they have up to two connections beside the pool, with its settings. If those cannot be opened, the pool
    lends connections for them, too, and a warning of the logger `holdfast` says so. Behind a pooler, a pool of asyncpg
    must have `statement_cache_size=0`. While it has another free connection, the driver keeps one for its next call,
    for at most 10 ms.

    `durability`: with `relaxed`, a lease is granted before it has reached the disk (`synchronous_commit = off`, for the
    driver's statements only). A crash of the server can forget the leases of the last moment, and they are then granted
    to others, with higher fencing tokens. A lock that is handed over to a waiter is on the disk before the waiter has
    it, in either mode.

    `migrate`: whether the first call creates the tables or brings them up to date.

    Raises `InvalidArgumentError` if `client` is not one of the known clients, or an option has a wrong value.
    """
    _check_settings(schema, durability, migrate)
    return PostgresDriver(connections_of(client), schema, durability, migrate)


async def migrate_postgres(
    client: Any, *, schema: str = "public", only: Optional[Literal["fence"]] = None
) -> bool:
    """Creates the tables and functions, or brings them up to date. Any number of instances may call it at once. With
    `only="fence"`, it creates only what `postgres_fence` needs. Returns whether there was something to do."""
    statements_for(schema)
    connections = connections_of(client)
    try:
        return await migrate(connections, schema, only)
    finally:
        await connections.close()


async def migrate_postgres_url(
    url: str, *, schema: Optional[str] = None, only: Optional[Literal["fence"]] = None
) -> bool:
    """Like `migrate_postgres`, for the database that a URL names. `schema` overrides the one in the URL."""
    target, options = postgres_url(url)
    schema = options.schema if schema is None else schema
    statements_for(schema)
    connections = open_connections(target)
    try:
        return await migrate(connections, schema, only)
    finally:
        await connections.close()


_ANSWER = {
    "acquire": "answers",
    "acquire_groups": "answers",
    "acquire_by_force": "fencing_token",
    "renew": "answers",
    "release": "answers",
    "inspect": "page",
    "consume": "answers",
    "change_rate": "answers",
}
"""A column of each answer."""


_URGENT = ("renew", "release")


class PostgresDriver:
    """See `open_postgres` and `postgres_driver`, which make one."""

    name = "postgres"
    capabilities = capabilities
    longest_ttl_ms: Optional[float] = None

    def __init__(self, connections: Connections, schema: str, durability: Durability, migrates: bool) -> None:
        self._connections = connections
        self._schema = schema
        self._statements = statements_for(schema)
        self._relaxed = "true" if durability == "relaxed" else "false"
        self._migrates = migrates
        channel = f"holdfast_{secrets.token_hex(12)}"
        self._notify_connection = NotifyConnection(
            connections,
            channel,
            lambda payload: connections.query(self._statements["hello"], [channel, payload]),
            self._prepare,
            self._statements["listen_key"],
        )
        self._preparing: Optional[_Preparation] = None
        self._has_written = False
        self._closed = False

    @property
    def place(self) -> Optional[str]:
        return self._connections.place

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self.place or 'a client'}>"

    async def acquire(self, claims: Sequence[Claim]) -> Sequence[Union[Grant, Refusal, Exception]]:
        """Claims with force and groups are rare. So a list that has some is sent in parts, in order: each claim with
        force is a call of its own, and so is each run of groups. A failure counts for its own part only."""
        parts = _parts_of(claims)
        if len(parts) == 1:
            return await self._acquire_part(parts[0])
        answers: list[AcquireAnswer] = []
        for part in parts:
            try:
                answers.extend(await self._acquire_part(part))
            except HoldfastError as error:
                answers.extend(error for _ in part)
        return answers

    async def _acquire_part(self, claims: Sequence[Claim]) -> Sequence[AcquireAnswer]:
        if claims[0].force_up_to is not None:
            return [await self._acquire_by_force(claims[0])]
        if claims[0].group is not None:
            groups: dict[Optional[str], list[Claim]] = {}
            for claim in claims:
                groups.setdefault(claim.group, []).append(claim)
            return await without_unstorable([*groups.values()], self._acquire_groups)
        if not any(claim.waiter_ttl_ms > 0 for claim in claims):
            return await self._ask(claims, "")
        sent = self._notify_connection.sends(claims)
        answers = await self._ask(claims, sent.address)
        self._notify_connection.answered(sent, claims, answers)
        return answers

    async def _acquire_groups(self, claims: Sequence[Claim]) -> Sequence[AcquireAnswer]:
        row = await self._call("acquire_groups", acquire_groups_values(claims, self._relaxed))
        return acquire_answers(claims, row)

    async def _ask(self, claims: Sequence[Claim], address: str) -> Sequence[AcquireAnswer]:
        async def send(part: Sequence[Claim]) -> Sequence[AcquireAnswer]:
            row = await self._call("acquire", acquire_values(part, address, self._relaxed))
            return acquire_answers(part, row)

        return await without_unstorable([[claim] for claim in claims], send)

    async def _acquire_by_force(self, claim: Claim) -> AcquireAnswer:
        up_to = str(claim.force_up_to)
        ttl, metadata = repr(claim.ttl_ms), metadata_json(claim)
        row = await self._call(
            "acquire_by_force", [claim.lock_name, claim.claim_id, claim.holder_id, ttl, metadata, self._relaxed, up_to]
        )
        if row["fencing_token"] is None:
            return Refusal()
        return Grant(int(row["fencing_token"]), claim.ttl_ms, float(row["granted_at"]))

    async def renew(self, renewals: Sequence[Renewal]) -> Sequence[Union[RenewAnswer, Exception]]:
        if not renewals:
            return []
        return await without_unstorable([[renewal] for renewal in renewals], self._renew)

    async def _renew(self, renewals: Sequence[Renewal]) -> Sequence[Union[RenewAnswer, Exception]]:
        ttls = number_array(renewal.ttl_ms for renewal in renewals)
        row = await self._call("renew", [*lease_values(renewals), ttls, self._relaxed])
        answers: list[Union[RenewAnswer, Exception]] = []
        for renewal, renewed in zip(renewals, parse_booleans(row["answers"])):
            answers.append(row_locked(renewal.lock_name) if renewed is None else "renewed" if renewed else "lost")
        return answers

    async def release(self, leases: Sequence[LeaseRef]) -> Sequence[Union[bool, Exception]]:
        if not leases:
            return []
        self._notify_connection.forget(leases)
        return await without_unstorable([[lease] for lease in leases], self._release)

    async def _release(self, leases: Sequence[LeaseRef]) -> Sequence[Union[bool, Exception]]:
        row = await self._call("release", [*lease_values(leases), self._relaxed])
        ended = parse_booleans(row["answers"])
        return [row_locked(lease.lock_name) if answer is None else answer for lease, answer in zip(leases, ended)]

    async def inspect(self, query: InspectQuery) -> InspectPage:
        query = check_inspect_query(query)
        row = await self._call("inspect", [query.lock_name, query.prefix or "", query.after, str(query.page_size)])
        return inspect_page(row["page"])

    async def consume(self, requests: Sequence[RateRequest]) -> Sequence[Union[RateAnswer, Exception]]:
        return await consume(
            requests,
            lambda values: self._call("consume", [*values, self._relaxed]),
            lambda values: self._call("change_rate", [*values, self._relaxed]),
        )

    async def listen(self, listener: DriverListener) -> StopListening:
        return await self._notify_connection.listen(listener)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self._notify_connection.close()
        await self._connections.close()

    async def _call(self, statement: str, values: Values) -> Row:
        if self._closed:
            raise ClosedError("the postgres driver is closed")
        preparing = self._preparation()
        try:
            if not preparing.done:
                await preparing.wait()
            send = self._connections.urgent if statement in _URGENT else self._connections.query
            row = (await send(self._statements[statement], values))[0]
            if _ANSWER[statement] not in row:
                # A pooler has mixed it up with a statement of another client.
                raise StoreError(f"the answer to {statement} is that to another statement", retryable=False)
            self._has_written = self._has_written or statement != "inspect"
            return row
        except Exception as error:
            failure = error
        self._prepare_again(preparing)
        # Outside the `except` block, so that the client's own error is not attached to ours.
        raise store_error_from(
            failure,
            place=self._connections.place,
            is_pool=self._connections.is_pool,
            has_written=self._has_written,
        )

    async def _prepare(self) -> None:
        """Creates the tables, or brings them up to date, unless an earlier call has."""
        preparing = self._preparation()
        try:
            if not preparing.done:
                await preparing.wait()
        except Exception:
            self._prepare_again(preparing)
            raise

    def _preparation(self) -> _Preparation:
        if self._preparing is None:
            self._preparing = _Preparation(self._connections, self._schema, self._migrates)
        return self._preparing

    def _prepare_again(self, preparing: _Preparation) -> None:
        """After any failure the next call checks the tables again: they may have been dropped, or just been created."""
        if self._preparing is preparing:
            self._preparing = None


class _Preparation:
    """Checks once that the tables are up to date, however many calls wait for it. Newer ones are used as they are: what
    a call means does not change without a new name for its procedure."""

    def __init__(self, connections: Connections, schema: str, migrates: bool) -> None:
        self.done = False
        self._task = start_task(self._prepare(connections, schema, migrates))

    async def wait(self) -> None:
        await asyncio.shield(self._task)

    async def _prepare(self, connections: Connections, schema: str, migrates: bool) -> None:
        if await read_version(connections, schema) < FORMAT:
            if not migrates:
                where = "" if connections.place is None else f" at {connections.place}"
                raise StoreError(
                    f'the lock tables in the schema "{schema}"{where} are missing or old: '
                    f'run "holdfast migrate --schema {schema}"',
                    retryable=False,
                )
            await migrate(connections, schema)
        self.done = True


def _parts_of(claims: Sequence[Claim]) -> list[Sequence[Claim]]:
    parts: list[list[Claim]] = []
    kind_before: object = None
    for claim in claims:
        kind = "force" if claim.force_up_to is not None else "groups" if claim.group is not None else "plain"
        if kind == kind_before and kind != "force":
            parts[-1].append(claim)
        else:
            parts.append([claim])
        kind_before = kind
    return [*parts]


def _check_settings(schema: object, durability: object, migrates: object) -> None:
    if isinstance(schema, str):
        statements_for(schema)
    else:
        raise InvalidArgumentError("schema", schema, "the name of a schema")
    if durability not in ("crash-safe", "relaxed"):
        raise InvalidArgumentError("durability", durability, "crash-safe or relaxed")
    if not isinstance(migrates, bool):
        raise InvalidArgumentError("migrate", migrates, "True or False")
