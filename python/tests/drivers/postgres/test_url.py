"""Everything in a URL is understood or refused, and no error shows a password."""

from __future__ import annotations

import secrets
import ssl
import traceback
from typing import Any

import asyncpg
import psycopg
import pytest

from holdfast.drivers._postgres.errors import sql_state, store_error_from
from holdfast.drivers._postgres.url import asyncpg_settings, postgres_place, postgres_url, psycopg_settings
from holdfast.drivers.postgres import open_postgres
from holdfast.errors import InvalidArgumentError, StoreError
from support.names import unique
from support.postgres import claim_on, connected, grant_of, opened, refusal_of

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    "url, place",
    [
        ("postgres://app@db/shop", "postgres://db:5432/shop"),
        ("postgresql://app:x@DB.Example:1/shop", "postgres://db.example:1/shop"),
        ("postgres://[::1]:5433/shop", "postgres://[::1]:5433/shop"),
        ("postgres://127.1/shop", "postgres://127.0.0.1:5432/shop"),
        ("postgres:///shop?host=/var/run/postgresql", "postgres:///shop?host=/var/run/postgresql"),
        ("postgres://%2Fvar%2Frun:77/a%2Fb", "postgres:///a/b?host=/var/run"),
        ("postgres://u:p%40ss@h/d?holdfast_schema=a%20b", "postgres://h:5432/d"),
    ],
)
def test_a_url_names_one_place(url: str, place: str) -> None:
    assert postgres_place(postgres_url(url)[0]) == place


def test_what_hosts_and_prisma_put_into_a_url_is_accepted_and_passed_to_no_client() -> None:
    bare = psycopg_settings(postgres_url("postgres://u:p@h/d")[0])
    url = "postgres://u:p@h/d?schema=shop&connection_limit=5&pgbouncer=true&channel_binding=require&keepalives_idle=60"
    assert psycopg_settings(postgres_url(url)[0]) == bare
    asyncpg_settings(postgres_url(url)[0])


def test_the_parts_of_a_url_reach_both_clients() -> None:
    url = (
        "postgres://u%3A:p%2F%40@h:77/d%20b?application_name=a&statement_timeout=5s&connect_timeout=2.5"
        "&options=-c%20geqo%3Doff&sslmode=require&holdfast_durability=relaxed&holdfast_migrate=0"
    )
    target, options = postgres_url(url)
    assert (options.schema, options.durability, options.migrate) == ("public", "relaxed", False)
    asyncpg = asyncpg_settings(target)
    context: Any = asyncpg.pop("ssl")
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_NONE, False)
    assert asyncpg == {
        "host": "h",
        "port": 77,
        "database": "d b",
        "user": "u:",
        "password": "p/@",
        "timeout": 2.5,
        "server_settings": {"application_name": "a", "options": "-c geqo=off", "statement_timeout": "5s"},
    }
    assert psycopg_settings(target) == {
        "host": "h",
        "port": 77,
        "dbname": "d b",
        "user": "u:",
        "password": "p/@",
        "connect_timeout": 3,
        "application_name": "a",
        "options": "-c geqo=off -c statement_timeout=5s",
        "sslmode": "require",
    }
    assert SECRET not in repr(postgres_url(f"postgres://u:{SECRET}@h/d"))


@pytest.mark.parametrize(
    "mode, verifies, names",
    [("require", False, False), ("no-verify", False, False), ("verify-ca", True, False), ("verify-full", True, True)],
)
def test_tls_modes_are_those_of_libpq(mode: str, verifies: bool, names: bool) -> None:
    context = asyncpg_settings(postgres_url(f"postgres://h/d?sslmode={mode}")[0])["ssl"]
    assert (context.verify_mode == ssl.CERT_REQUIRED, context.check_hostname) == (verifies, names)


@pytest.mark.parametrize(
    "url, argument",
    [
        ("postgres://h", "url database"),
        ("postgres://h/", "url database"),
        ("postgres://h/a/b", "url database"),
        ("postgres://h/a%3Fb", "url database"),
        ("postgres://a,b/d", "url host"),
        ("postgres:///d", "url host"),
        ("postgres://h:99999/d", "url port"),
        ("postgres://h:x/d", "url port"),
        ("postgres://h/d?host=/x", "url parameter host"),
        ("postgres://h/d#x", "url"),
        ("postgres://h/d\n", "url"),
        ("postgres://h/d?a@b=1", "url"),
        ("postgres://h/d?holdfast_scheme=x", "url parameter"),
        ("postgres://h/d?holdfast_schema=x&holdfast_schema=y", "url parameter holdfast_schema"),
        ("postgres://h/d?holdfast_schema=a+b", "url parameter holdfast_schema"),
        ("postgres://h/d?holdfast_schema=", "schema"),
        ("postgres://h/d?holdfast_durability=fast", "durability"),
        ("postgres://h/d?holdfast_migrate=yes", "url parameter holdfast_migrate"),
        ("postgres://h/d?connect_timeout=0", "url parameter connect_timeout"),
        ("postgres://h/d?target_session_attrs=any", "url parameter"),
        ("postgres://h/d?sslmode=full", "url parameter sslmode"),
        ("postgres://h/d?sslmode=require&ssl=true", "url parameter ssl"),
        ("postgres://h/d?sslkey=/x", "url parameter sslkey"),
        ("postgres://h/d?sslmode=verify-full&sslrootcert=/nowhere/x.pem", "url parameter sslrootcert"),
        ("postgres://h/%zz", "url database"),
        ("postgres://u:%zz@h/d", "url password"),
    ],
)
async def test_failure_55_what_is_not_understood_is_refused_before_anything_is_sent(url: str, argument: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        await open_postgres(url)
    assert refused.value.argument == argument
    if "ssl" not in url and "durability" not in url and "schema=" not in url:
        with pytest.raises(InvalidArgumentError):
            psycopg_settings(postgres_url(url)[0])


@pytest.mark.parametrize(
    "url",
    [
        f"postgres://app:{SECRET}",
        f"postgres://app:{SECRET}@",
        f"postgres://app:{SECRET}@h:port/d",
        f"postgres://app:{SECRET}/@h/d",
        f"postgres://app:{SECRET}?@h/d",
        f"postgres://app:{SECRET}#@h/d",
        f"postgres://app:{SECRET}?x=1/d",
        f"postgres://app:{SECRET}%zz@h/d",
        f"postgres://app:{SECRET}@a,b/d",
        f"postgres://app:{SECRET}@h/d?{SECRET}",
        f"postgres://app:{SECRET}@h\t/d",
        f"postgres:/app:{SECRET}@h/d",
        f"postgres://app:{SECRET}@h",
    ],
)
async def test_failure_52_a_url_that_is_refused_shows_no_password(url: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        await open_postgres(url)
    shown = "".join(traceback.format_exception(refused.type, refused.value, None))
    assert SECRET not in shown and SECRET not in str(refused.value.value)


@pytest.mark.parametrize("how", ["url with asyncpg", "url with psycopg"])
async def test_failure_52_a_login_that_fails_shows_no_password(how: str, postgres_url: str) -> None:
    role = f"py_{secrets.token_hex(6)}"
    cases = [
        (postgres_url.replace("postgres@", f"{role}:{SECRET}@"), False),
        (f"postgres://{role}:{SECRET}@127.0.0.1:1/d", True),
        (postgres_url.replace("postgres@", f"postgres:{SECRET}@").rpartition("/")[0] + "/no_such_database", False),
        (f"postgres://{role}:{SECRET}@no-such-host.invalid/d", True),
    ]
    for url, retryable in cases:
        async with opened(how, url) as driver:
            with pytest.raises(StoreError) as failed:
                await driver.acquire([claim_on("x")])
            assert failed.value.retryable is retryable, str(failed.value)
            error: Any = failed.value
            while error is not None:
                assert error.__context__ is None or error.__context__ is error.__cause__
                assert SECRET not in str(error) + repr(error) + repr(vars(error))
                error = error.__cause__


def test_failure_52_the_cause_of_an_error_is_a_copy_without_what_a_client_attached_to_it() -> None:
    said = f"cannot connect to postgres://app:{SECRET}@db/shop"
    errors: Any = [
        psycopg.OperationalError(said),
        asyncpg.PostgresError(said),
        OSError(111, said),
        ValueError(said),
    ]
    for original in errors:
        original.settings = {"password": SECRET}
        original.__cause__ = ConnectionError(said)
        error: Any = store_error_from(original)
        for _ in range(3):
            shown = "".join(traceback.format_exception(type(error), error, None))
            assert SECRET not in shown + repr(error) + repr(vars(error)), original
            error = error.__cause__
        assert error is None
    state = store_error_from(asyncpg.exceptions.TooManyConnectionsError("no"))
    assert state.__cause__ is not None and sql_state(state.__cause__) == "53300"
    assert isinstance(state.__cause__, asyncpg.PostgresError)


async def test_a_database_whose_name_needs_encoding_has_one_place(postgres_url: str) -> None:
    database = f'py {secrets.token_hex(4)} 50%/ü "x"'
    quoted = database.replace('"', '""')
    encoded = database.replace("%", "%25").replace("/", "%2F").replace(" ", "%20")
    base = postgres_url.rpartition("/")[0]
    async with connected(postgres_url) as admin:
        await admin.execute(f'CREATE DATABASE "{quoted}"')
        try:
            async with opened("url with asyncpg", f"{base}/{encoded}") as one:
                async with opened("url with psycopg", f"{base}/{encoded.replace('%20', ' ')}") as other:
                    name = unique()
                    await grant_of(one, claim_on(name))
                    await refusal_of(other, claim_on(name))
            async with opened("url with asyncpg", postgres_url) as elsewhere:
                await grant_of(elsewhere, claim_on(name))
        finally:
            await admin.execute(f'DROP DATABASE "{quoted}" WITH (FORCE)')

