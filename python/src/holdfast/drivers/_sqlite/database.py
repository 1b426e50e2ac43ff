"""An open database: its statements and its transactions."""

from __future__ import annotations

import sqlite3
from typing import Any, Callable, Optional, TypeVar, cast

from ... import _protocol
from ...errors import StoreError
from .errors import store_error_from
from .files import OpenFiles
from .url import IN_MEMORY

T = TypeVar("T")

STATEMENTS = {**_protocol.statements("sqlite/statements.sql"), "data_version": "PRAGMA data_version"}


class Database:
    """Only the driver's thread uses it, and the process that opened it."""

    def __init__(self, path: str) -> None:
        try:
            # Autocommit, so that Python begins no transaction of its own, and no waiting inside of SQLite. Its thread
            # is not checked, because another thread closes it before a fork.
            self._connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise store_error_from(error, path) from error
        self._cursor = self._connection.cursor()
        self._cursor.row_factory = cast(Any, sqlite3.Row)
        self._given_path = path
        self._files: Optional[OpenFiles] = None
        try:
            self.path: str = self.rows("PRAGMA database_list")[0]["file"]
        except sqlite3.Error as error:
            self._connection.close()
            raise store_error_from(error, path) from error
        if self.path == "":
            self._connection.close()
            raise StoreError(IN_MEMORY, retryable=False)

    @property
    def connection(self) -> sqlite3.Connection:
        return self._connection

    @property
    def files(self) -> Optional[OpenFiles]:
        return self._files

    def rows(self, sql: str, *values: Any) -> list[sqlite3.Row]:
        # All rows: a statement that is not finished keeps its transaction open.
        return self._cursor.execute(sql, values).fetchall()

    def run(self, sql: str, *values: Any) -> int:
        """Returns how many rows were changed."""
        return self._cursor.execute(sql, values).rowcount

    def script(self, path: str) -> None:
        """Runs a file of `protocol/`. Not `executescript`, which would commit the open transaction first."""
        lines = [line for line in _protocol.read(path).split("\n") if not line.strip().startswith("--")]
        for statement in "\n".join(lines).split(";"):
            if statement.strip():
                self._cursor.execute(statement)

    def transaction(self, begin: str, work: Callable[[], T]) -> T:
        self._cursor.execute(begin)
        try:
            result = work()
            # Just before the commit, so that a grant is written to the files that every other process reads.
            self.assert_current()
            self._cursor.execute("COMMIT")
            return result
        except BaseException:
            # Some errors, such as a full disk, have already rolled it back. A failed COMMIT can leave it open.
            if self._connection.in_transaction:
                self._cursor.execute("ROLLBACK")
            raise

    def watch_files(self) -> None:
        """From now on, what is written must be seen by every other process."""
        self._files = OpenFiles(self.path, self._given_path)

    def assert_current(self) -> None:
        if self._files is not None:
            self._files.assert_current()

    def is_current(self) -> bool:
        try:
            self.assert_current()
            return True
        except StoreError:
            # The reason may be temporary, such as a second link. Opening the file again reports it.
            return False

    def close(self) -> None:
        try:
            self._connection.close()
        except sqlite3.Error as error:
            raise store_error_from(error, self.path) from error
