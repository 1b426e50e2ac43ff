"""Opens a database, and makes its tables if there are none."""

from __future__ import annotations

import os
import sqlite3

from ...errors import StoreError
from .busy import Patience
from .database import STATEMENTS, Database
from .files import SecondCopyError, prepare_file, refuse_place
from .fork import keep_for_ever, refuse_inherited

_APPLICATION_ID = 0x484F4C44
"""`HOLD`, in the file's header. It tells a file of ours from a database of another program."""
_FORMAT = 1

# No flush for every commit: when a machine crashes, all holders of its locks die with it. And a write-ahead log that
# grew because of a long transaction of another program is cut to its usual size again.
_SETTINGS = ("PRAGMA synchronous = NORMAL", f"PRAGMA journal_size_limit = {4 * 1024 * 1024}")

_OLDEST_SQLITE = (3, 35, 0)


def open_and_prepare(path: str, *, is_guest: bool, busy_until: float) -> Database:
    """Raises a `StoreError` for a file that must not be used. A guest is in the database of another program: nothing is
    changed there but its journal mode, and only our tables are added."""
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise StoreError(
            f"this Python has SQLite {sqlite3.sqlite_version}, and the sqlite driver needs 3.35 or later (RETURNING); "
            "use a newer Python or another store",
            retryable=False,
        )
    if sqlite3.threadsafety == 0:
        raise StoreError("the SQLite of this Python was built for programs without threads", retryable=False)
    if is_guest:
        refuse_place(path)
        if not os.path.exists(path):
            # SQLite would create it, and the program that passed its connection works on another file.
            raise StoreError(f"the database {path} was removed; open it again and pass in the new connection")
    else:
        prepare_file(path)
    refuse_inherited(path)
    database = Database(path)
    try:
        refuse_place(database.path)
        _prepare(database, is_guest, busy_until)
        return database
    except SecondCopyError:
        # To close it would drop the locks of the other copy, and might remove the log that it writes to.
        keep_for_ever(database)
        raise
    except BaseException:
        database.close()
        raise


def _prepare(database: Database, is_guest: bool, busy_until: float) -> None:
    def begin() -> bool:
        # In one transaction: otherwise tables that another process is creating would look like another program's.
        ready = database.transaction("BEGIN", lambda: _is_prepared(database, is_guest))
        mode = database.rows("PRAGMA journal_mode = WAL")[0][0]
        if mode != "wal":
            raise StoreError(
                f"the database {database.path} cannot be put into WAL mode: it stays in mode {mode}. Is a transaction "
                "open on it?"
            )
        for setting in _SETTINGS:
            database.rows(setting)
        # The first read in this mode opens the files beside the database.
        database.rows(STATEMENTS["format_table"])
        database.watch_files()
        return ready

    def create() -> None:
        # Another process may have been faster.
        if _is_prepared(database, is_guest):
            return
        database.script("sqlite/schema.sql")
        if not is_guest:
            database.rows(f"PRAGMA application_id = {_APPLICATION_ID}")

    patience = Patience()
    if not patience.until_free(database.path, begin, busy_until):
        patience.until_free(database.path, lambda: database.transaction("BEGIN IMMEDIATE", create), busy_until)


def _is_prepared(database: Database, is_guest: bool) -> bool:
    """Whether the tables exist. False if they may be created. Raises if the file is not ours, or has another format."""
    if database.rows(STATEMENTS["format_table"]):
        rows = database.rows(STATEMENTS["format"])
        version = int(rows[0]["version"]) if rows else 0
        if version == _FORMAT:
            return True
        raise StoreError(
            f"the lock file {database.path} has format {version}, and this version of Holdfast knows {_FORMAT}; "
            "upgrade Holdfast",
            retryable=False,
        )
    application_id = database.rows("PRAGMA application_id")[0][0]
    has_tables = database.rows("SELECT name FROM sqlite_master WHERE type = 'table' LIMIT 1")
    if not is_guest and application_id != _APPLICATION_ID and (application_id != 0 or has_tables):
        raise StoreError(
            f"the file {database.path} is a database of another program; choose another path for the locks",
            retryable=False,
        )
    return False
