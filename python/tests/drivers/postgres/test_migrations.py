"""Migrations: from many instances at once, on locked tables, and with roles that may not create anything."""

from __future__ import annotations

import asyncio
import secrets

import asyncpg
import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from holdfast.drivers._postgres.arrays import text_array
from holdfast.drivers._postgres.placeholders import arranged, with_names, with_percent
from holdfast.drivers.postgres import migrate_postgres, migrate_postgres_url
from holdfast.errors import InvalidArgumentError, StoreError
from support.postgres import claim_on, connected, grant_of, opened, own_schema


async def test_of_many_instances_at_once_one_migrates_and_the_others_find_it_done(postgres_url: str) -> None:
    async with own_schema(postgres_url) as schema:
        ran = await asyncio.gather(*(migrate_postgres_url(postgres_url, schema=schema) for _ in range(6)))
        assert sorted(ran) == [False] * 5 + [True]
        assert not await migrate_postgres_url(f"{postgres_url}?holdfast_schema={schema}")
        with pytest.raises(InvalidArgumentError):
            await migrate_postgres_url(postgres_url, schema=schema, only="locks")  # type: ignore[arg-type]


async def test_failure_46_a_table_that_is_locked_is_waited_for_only_briefly_and_tried_again(postgres_url: str) -> None:
    async with own_schema(postgres_url) as schema, connected(postgres_url) as other, connected(postgres_url) as admin:
        await migrate_postgres(admin, schema=schema)
        await admin.execute(f"DELETE FROM {schema}.holdfast_format")
        await other.execute(f"BEGIN; LOCK TABLE {schema}.holdfast_format IN EXCLUSIVE MODE")
        migrating = asyncio.ensure_future(migrate_postgres_url(postgres_url, schema=schema))
        table = f"'{schema}.holdfast_format'::regclass"
        waits = f"SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = {table}"
        tries = 0
        before = 0
        while tries < 2:
            now = await admin.fetchval(waits)
            tries += now > before
            before = now
            assert not migrating.done()
        await other.execute("COMMIT")
        assert await migrating


async def test_a_migration_takes_no_connection_of_an_engine(postgres_url: str) -> None:
    url = postgres_url.replace("postgres://", "postgresql+asyncpg://")
    engine = create_async_engine(url, pool_size=1, max_overflow=0)
    async with engine.connect():
        async with own_schema(postgres_url) as schema:
            assert await migrate_postgres(engine, schema=schema) is True
    await engine.dispose()


async def test_a_role_that_may_not_create_the_tables_is_told_what_to_run(postgres_url: str) -> None:
    role = f"py_{secrets.token_hex(6)}"
    async with own_schema(postgres_url) as schema, connected(postgres_url) as admin:
        await admin.execute(f"CREATE ROLE {role} LOGIN")
        try:
            url = postgres_url.replace("postgres@", f"{role}@")
            for how in ("url with asyncpg", "url with psycopg"):
                async with opened(how, url, schema=schema) as driver:
                    with pytest.raises(StoreError, match=f"holdfast migrate --schema {schema}") as refused:
                        await driver.acquire([claim_on("x")])
                    assert not refused.value.retryable
            await migrate_postgres(admin, schema=schema)
            await admin.execute(
                f"GRANT USAGE ON SCHEMA {schema} TO {role}; GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {role}; "
                f"GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO {role}"
            )
            for how in ("url with asyncpg", "url with psycopg"):
                async with opened(how, url, schema=schema) as driver:
                    await grant_of(driver, claim_on(how))
        finally:
            await admin.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


async def test_lists_of_any_text_reach_the_server(postgres_url: str) -> None:
    texts = ["", "NULL", "null", 'a"b', "a\\b", "a,b", "{a}", " a ", "ü\U0001f512", "line\nbreak", "$1 %s", "\\", '"']
    async with connected(postgres_url) as connection:
        sql = "SELECT $1::text::text[] AS list, $1::text::text[]::text AS text"
        row = await connection.fetchrow(sql, text_array([*texts, None]))
        assert row["list"] == [*texts, ""]
        assert isinstance(row, asyncpg.Record)


def test_placeholders_in_the_schemas_name_are_left_alone() -> None:
    sql = 'CALL "a$1%s"":p1".f($2::text, $1::text, $2::text)'
    assert with_percent(sql) == ('CALL "a$1%%s"":p1".f(%s::text, %s::text, %s::text)', (1, 0, 1))
    assert arranged((1, 0, 1), ["x", "y"]) == ["y", "x", "y"]
    assert with_names(sql) == 'CALL "a$1%s""\\:p1".f(:p2\\:\\:text, :p1\\:\\:text, :p2\\:\\:text)'
