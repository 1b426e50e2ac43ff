"""A database of the caller, with the caller's own tables."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast import SyncDistributedLock
from holdfast.core.driver import InspectQuery
from holdfast.drivers.sqlite import sqlite_driver
from holdfast.errors import InvalidArgumentError, StoreError
from holdfast.lock import DistributedLock
from support.sqlite_driver import claim_on, grant_of, is_granted, lease_of, opened


@pytest.fixture
def database(sqlite_path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(sqlite_path, isolation_level=None)
    for statement in (
        "CREATE TABLE customers (name TEXT)",
        "INSERT INTO customers VALUES ('Ann')",
        "PRAGMA user_version = 42",
        "PRAGMA application_id = 4711",
        "PRAGMA synchronous = EXTRA",
        "PRAGMA busy_timeout = 1234",
    ):
        connection.execute(statement)
    return connection


async def test_nothing_of_the_callers_is_changed_and_it_is_not_closed(database: sqlite3.Connection) -> None:
    driver = sqlite_driver(database)
    claim = claim_on("name")
    await driver.release([lease_of(claim, await grant_of(driver, claim))])
    await driver.close()
    for statement, value in (
        ("SELECT * FROM customers", "Ann"),
        ("PRAGMA user_version", 42),
        ("PRAGMA application_id", 4711),
        ("PRAGMA synchronous", 3),
        ("PRAGMA busy_timeout", 1234),
    ):
        assert database.execute(statement).fetchall() == [(value,)]
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    added = {name for name in tables if not name.startswith("sqlite_")} - {"customers"}
    assert added and all(name.startswith("holdfast_") for name in added)


async def test_it_excludes_all_other_users_of_the_file_however_they_opened_it(
    database: sqlite3.Connection, sqlite_path: Path
) -> None:
    driver = sqlite_driver(database)
    await grant_of(driver, claim_on("name"))
    second = sqlite_driver(sqlite3.connect(sqlite_path))
    assert not await is_granted(second, claim_on("name"))
    # The tables are there now, so a URL may name the file.
    async with opened(f"sqlite:{sqlite_path}") as by_url:
        assert not await is_granted(by_url, claim_on("name"))
    await second.close()
    await driver.close()


async def test_a_write_transaction_of_the_caller_keeps_locks_waiting_and_nothing_of_it_is_lost(
    database: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failure 40: a lock must not be taken inside of a transaction that may be rolled back."""
    driver = sqlite_driver(database)
    await driver.open()
    monkeypatch.setattr("holdfast.drivers.sqlite.MAX_BUSY_SECONDS", 0.1)
    database.execute("BEGIN")
    database.execute("INSERT INTO customers VALUES ('Bob')")
    with pytest.raises(StoreError, match="another connection has kept the write lock for too long"):
        await driver.acquire([claim_on("name")])
    assert database.in_transaction
    database.execute("INSERT INTO customers VALUES ('Eve')")
    database.execute("COMMIT")
    assert [name for (name,) in database.execute("SELECT name FROM customers")] == ["Ann", "Bob", "Eve"]
    assert (await driver.inspect(InspectQuery())).leases == []
    await grant_of(driver, claim_on("name"))
    await driver.close()


async def test_a_rollback_of_the_caller_does_not_undo_a_lock(database: sqlite3.Connection) -> None:
    driver = sqlite_driver(database)
    await driver.open()
    database.execute("BEGIN")
    database.execute("SELECT * FROM customers").fetchall()
    await grant_of(driver, claim_on("name"))
    database.execute("ROLLBACK")
    assert not await is_granted(driver, claim_on("name"))
    await driver.close()


async def test_a_database_in_memory_is_refused_because_it_excludes_no_other_process() -> None:
    for name in (":memory:", ""):
        with pytest.raises(StoreError, match="in memory excludes no other process"):
            sqlite_driver(sqlite3.connect(name))


async def test_a_newer_format_is_refused(database: sqlite3.Connection) -> None:
    driver = sqlite_driver(database)
    await driver.open()
    await driver.close()
    database.execute("UPDATE holdfast_format SET version = version + 1")
    later = sqlite_driver(database)
    with pytest.raises(StoreError, match="has format 2, and this version of Holdfast knows 1; upgrade"):
        await later.open()
    await later.close()


@pytest.mark.parametrize("suffix", ["", "-wal"])
async def test_a_file_that_is_removed_while_it_is_open_is_an_error_and_no_grant(
    database: sqlite3.Connection, sqlite_path: Path, suffix: str
) -> None:
    """The caller's connection still works on the old file, so the driver must not go on in a new one."""
    driver = sqlite_driver(database)
    await driver.open()
    os.unlink(f"{sqlite_path}{suffix}")
    for _ in range(3):
        with pytest.raises(StoreError, match="was removed or replaced while it was open; close the database and open"):
            await driver.acquire([claim_on("name")])
    assert sqlite_path.exists() == (suffix != "")
    await driver.close()


async def test_a_file_that_was_removed_before_the_first_call_is_not_created_again(
    database: sqlite3.Connection, sqlite_path: Path
) -> None:
    driver = sqlite_driver(database)
    sqlite_path.unlink()
    with pytest.raises(StoreError, match="was removed or replaced"):
        await driver.open()
    assert not sqlite_path.exists()
    await driver.close()


async def test_a_connection_that_is_closed_or_of_another_thread_is_refused(
    database: sqlite3.Connection, sqlite_path: Path
) -> None:
    database.close()
    with pytest.raises(InvalidArgumentError, match="an open sqlite3.Connection"):
        sqlite_driver(database)
    made = []
    thread = threading.Thread(target=lambda: made.append(sqlite3.connect(sqlite_path)))
    thread.start()
    thread.join()
    with pytest.raises(InvalidArgumentError, match="an open sqlite3.Connection, but is .*thread"):
        sqlite_driver(made[0])


async def test_the_settings_of_the_callers_connection_do_not_matter(sqlite_path: Path) -> None:
    connection = sqlite3.connect(sqlite_path)
    connection.row_factory = lambda cursor, row: {"row": row}  # type: ignore[assignment]
    connection.execute("CREATE TABLE customers (name TEXT)")
    connection.row_factory = sqlite3.Row  # type: ignore[assignment]
    connection.text_factory = bytes
    driver = sqlite_driver(connection)
    await grant_of(driver, claim_on("name", metadata={"a": "ü"}))
    [lease] = (await driver.inspect(InspectQuery())).leases
    assert (lease.lock_name, lease.metadata) == ("name", {"a": "ü"})
    await driver.close()


@pytest.mark.parametrize(
    "row_factory",
    [sqlite3.Row, lambda cursor, row: {column[0]: value for column, value in zip(cursor.description, row)}, None],
    ids=["Row", "dict", "none"],
)
async def test_the_callers_row_factory_does_not_matter(row_factory: Any, database: sqlite3.Connection) -> None:
    database.row_factory = row_factory
    async with DistributedLock(database) as lock, lock.lock("name") as lease:
        assert lease.held
    driver = sqlite_driver(database)
    assert await is_granted(driver, claim_on("name"))
    await driver.close()
    assert database.row_factory is row_factory


async def test_a_lock_takes_the_callers_connection_even_if_its_engine_runs_in_another_thread(
    database: sqlite3.Connection,
) -> None:
    """As in the synchronous API. A connection of sqlite3 may be used only in the thread that opened it."""
    lock = DistributedLock(database)

    async def hold() -> bool:
        async with lock.lock("name"):
            async with opened(f"sqlite:{path}") as other:
                return await is_granted(other, claim_on("name"))

    path = database.execute("PRAGMA database_list").fetchone()[2]
    assert await asyncio.to_thread(asyncio.run, hold()) is False
    assert database.execute("SELECT COUNT(*) FROM holdfast_leases").fetchone() == (0,)



def test_the_synchronous_lock_takes_the_callers_connection_too(database: sqlite3.Connection, sqlite_path: Path) -> None:
    with SyncDistributedLock(database) as lock, SyncDistributedLock(f"sqlite:{sqlite_path}") as other:
        with lock.lock("name"):
            assert not other.acquire("name")
        assert other.acquire("name")
