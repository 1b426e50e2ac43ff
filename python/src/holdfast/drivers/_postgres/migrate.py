"""Creates the tables and functions, or brings them up to date. protocol/postgres/README.md describes the steps."""

from __future__ import annotations

import asyncio
import random
import re
import time
from functools import lru_cache
from importlib.resources import files
from typing import Literal, Optional, Sequence

from ..._protocol import read
from ...errors import HoldfastError, InvalidArgumentError, StoreError
from .._shared.secrets import safe_cause
from .connections import Connections, Session
from .errors import sql_state, store_error_from
from .statements import quote_identifier, statements_for

_MAX_LOCKED_SECONDS = 60.0
_RETRY_SECONDS = 0.3
_FENCE_VERSION = 8
"""The migration that `postgres_fence` needs."""


@lru_cache(maxsize=None)
def _versions() -> Sequence[tuple[int, str]]:
    """The numbers and names of the files, in order."""
    folder = files("holdfast") / "protocol" / "postgres"
    names = sorted(each.name for each in folder.iterdir() if re.match(r"\d{4}-.*\.sql$", each.name))
    return [(int(name[:4]), name) for name in names]


def latest_version() -> int:
    return _versions()[-1][0]


def migrations(only: Optional[Literal["fence"]] = None) -> Sequence[tuple[int, str]]:
    if only not in (None, "fence"):
        raise InvalidArgumentError("only", only, "fence, or left out")
    return [
        (version, read(f"postgres/{name}"))
        for version, name in _versions()
        if only is None or version == _FENCE_VERSION
    ]


async def read_version(connections: Connections, schema: str) -> int:
    """The number of the last migration that was run; 0 if there was none."""
    try:
        rows = await connections.query(statements_for(schema)["version"], [])
        return int(rows[0]["version"])
    except Exception as error:
        if sql_state(error) in ("42P01", "3F000"):
            return 0
        raise


async def migrate(
    connections: Connections, schema: str, only: Optional[Literal["fence"]] = None
) -> Sequence[int]:
    """Brings the schema up to date in one transaction. Returns the numbers of the migrations that it ran.

    Any number of instances may call it at once. If a table is locked, it tries again, for up to a minute. Each try
    waits only briefly, because calls of other clients queue behind it.
    """
    due = migrations(only)
    started = time.monotonic()
    while True:
        try:
            return await _migrate_once(connections, schema, due)
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


async def _migrate_once(connections: Connections, schema: str, migrations: Sequence[tuple[int, str]]) -> Sequence[int]:
    statements = statements_for(schema)
    session = await connections.dedicate()
    try:
        await session.script(statements["begin_migration"])
        if not await session.fetch("SELECT FROM pg_namespace WHERE nspname = $1::text", [schema]):
            await session.script(f"CREATE SCHEMA {quote_identifier(schema)}")
        await session.script(statements["use_schema"])
        due = [] if latest_version() in await _versions_in(session, schema) else migrations
        for _, sql in due:
            await session.script(sql)
        await session.script("COMMIT")
        return [version for version, _ in due]
    except BaseException:
        # The first error is the one to report.
        try:
            await session.script("ROLLBACK")
        except Exception:
            pass
        raise
    finally:
        await session.close()


async def _versions_in(session: Session, schema: str) -> set[int]:
    there = "SELECT FROM pg_tables WHERE schemaname = $1::text AND tablename = 'holdfast_migrations'"
    if not await session.fetch(there, [schema]):
        return set()
    return {int(row["version"]) for row in await session.fetch("SELECT version FROM holdfast_migrations")}


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
