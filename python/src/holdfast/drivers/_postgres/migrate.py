"""Creates the tables and functions, or brings them up to date. protocol/postgres/README.md describes the steps."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Literal, Optional, Sequence

from ..._protocol import read
from ...core.secrets import safe_cause
from ...errors import HoldfastError, InvalidArgumentError, StoreError
from .connections import Connections, DedicatedConnection
from .errors import sql_state, store_error_from
from .statements import quote_identifier, statements_for

_MAX_LOCKED_SECONDS = 60.0
_RETRY_SECONDS = 0.3
FORMAT = 1
"""The version of the tables and functions."""


def _files_for(schema: str, only: Optional[Literal["fence"]]) -> Sequence[str]:
    fence = read("postgres/fence.sql")
    if only is not None:
        return [fence]
    name = quote_identifier(schema)
    # The procedures contain the name of the schema, which may contain anything, even the end of their text.
    tag = "$holdfast$"
    while tag in name:
        tag = tag[:-1] + "_$"
    functions = read("postgres/functions.sql").replace("$holdfast$", tag).replace(':"schema"', name)
    return [read("postgres/schema.sql"), functions, fence]


async def read_version(connections: Connections, schema: str) -> int:
    """The version of the tables and functions; 0 if there are none."""
    try:
        rows = await connections.query(statements_for(schema)["version"], [])
        return int(rows[0]["version"]) if rows else 0
    except Exception as error:
        if sql_state(error) in ("42P01", "3F000"):
            return 0
        raise


async def migrate(
    connections: Connections, schema: str, only: Optional[Literal["fence"]] = None
) -> bool:
    """Brings the schema up to date in one transaction. Returns whether there was something to do.

    Any number of instances may call it at once. If a table is locked, it tries again, for up to a minute. Each try
    waits only briefly, because calls of other clients queue behind it.
    """
    if only not in (None, "fence"):
        raise InvalidArgumentError("only", only, "fence, or left out")
    started = time.monotonic()
    while True:
        try:
            return await _migrate_once(connections, schema, only)
        except Exception as error:
            failure = error
        if sql_state(failure) != "55P03":
            raise _error_from(failure, schema, connections)
        if time.monotonic() - started > _MAX_LOCKED_SECONDS:
            locked = StoreError(
                f"cannot bring the lock tables in the schema {quote_identifier(schema)} up to date: another "
                f"transaction has kept them locked for {_MAX_LOCKED_SECONDS:g} s. End it (see "
                "pg_stat_activity), and try again"
            )
            raise locked from safe_cause(failure)
        await asyncio.sleep(_RETRY_SECONDS * (1 + random.random()))


async def _migrate_once(connections: Connections, schema: str, only: Optional[Literal["fence"]]) -> bool:
    statements = statements_for(schema)
    connection = await connections.dedicate()
    try:
        await connection.script(statements["begin_migration"])
        if not await connection.fetch("SELECT FROM pg_namespace WHERE nspname = $1::text", [schema]):
            await connection.script(f"CREATE SCHEMA {quote_identifier(schema)}")
        await connection.script(statements["use_schema"])
        due = [] if await _version_in(connection, schema) >= FORMAT else _files_for(schema, only)
        for file in due:
            await connection.script(file)
        await connection.script("COMMIT")
        return bool(due)
    except BaseException:
        # The first error is the one to report.
        try:
            await connection.script("ROLLBACK")
        except Exception:
            pass
        raise
    finally:
        await connection.close()


async def _version_in(connection: DedicatedConnection, schema: str) -> int:
    # An error would end the transaction. So the table is looked for first.
    there = "SELECT FROM pg_tables WHERE schemaname = $1::text AND tablename = 'holdfast_format'"
    if not await connection.fetch(there, [schema]):
        return 0
    rows = await connection.fetch(statements_for(schema)["version"])
    return int(rows[0]["version"]) if rows else 0


def _error_from(error: BaseException, schema: str, connections: Connections) -> HoldfastError:
    if sql_state(error) != "42501":
        return store_error_from(error, place=connections.place, is_pool=connections.is_pool)
    refused = StoreError(
        f"the lock tables in the schema {quote_identifier(schema)} are missing or old, and this role may not create "
        f'them: run "holdfast migrate --schema {schema}", or the SQL of "holdfast migrate --print", with a role that '
        "may",
        retryable=False,
    )
    refused.__cause__ = safe_cause(error)
    return refused
