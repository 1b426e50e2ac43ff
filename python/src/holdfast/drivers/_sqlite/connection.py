"""One connection, which is opened when it is needed, and again when the path leads to another file."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from typing import Any, Callable, Optional, TypeVar

from ...errors import ClosedError, StoreError
from . import fork
from .busy import Patience
from .database import STATEMENTS, Database
from .files import Identity, MovedError, identity_of
from .prepare import open_and_prepare

T = TypeVar("T")

_MAX_REOPENINGS = 3


class Connection:
    """All methods but `close` are called in the driver's thread, and `all`, `get` and `run` only within `work`.

    `guest_of` is the identity of a database whose owner passed it in. The driver has a connection of its own to it, so
    that no statement of the owner's gets into a transaction of ours. It follows the path to no other file.
    """

    def __init__(self, path: str, guest_of: Optional[Identity] = None) -> None:
        self.asked = path
        self.gate = threading.Lock()
        self.patience = Patience()
        self.opened_times = 0
        self.on_moved: Callable[[], None] = lambda: None
        """Called after the path led to another file than before, and that file was opened."""
        self.on_fork_in_child: Callable[[], None] = lambda: None
        self._guest_of = guest_of
        self._database: Optional[Database] = None
        self._path = path
        self._closed = False
        self._forked = False
        fork.register(self)

    @property
    def path(self) -> str:
        """The path of the file itself, without links."""
        return self._path

    def all(self, name: str, *values: Any) -> list[sqlite3.Row]:
        return self._current.rows(STATEMENTS[name], *values)

    def get(self, name: str, *values: Any) -> Optional[sqlite3.Row]:
        """The first row, or None."""
        rows = self._current.rows(STATEMENTS[name], *values)
        return rows[0] if rows else None

    def run(self, name: str, *values: Any) -> int:
        """Returns how many rows were changed."""
        return self._current.run(STATEMENTS[name], *values)

    def write(self, work: Callable[[], T], busy_until: float, is_urgent: bool = False) -> T:
        """Runs one transaction that has the write lock from its beginning. While another process has that lock, it
        tries again until `busy_until`. `work` may run more than once; all runs but the last are rolled back."""
        return self._in_transaction("BEGIN IMMEDIATE", work, busy_until, is_urgent)

    def read(self, work: Callable[[], T], busy_until: float) -> T:
        """Runs one transaction, so that all reads see the same state."""
        return self._in_transaction("BEGIN", work, busy_until)

    def look(self, work: Callable[[], T]) -> T:
        """Runs `work`, which only reads, without a transaction. Raises if other processes no longer see this file."""
        with self.gate:
            # It was closed for a fork.
            database = self._database or self._open(time.monotonic())
            database.assert_current()
            return work()

    def data_version(self) -> tuple[int, int]:
        """Changes with every commit of another connection. Reading it takes a few microseconds."""
        row = self.get("data_version")
        return self.opened_times, row[0] if row else 0

    def close(self) -> None:
        """Safe in any thread, and to repeat."""
        with self.gate:
            self._closed = True
            database, self._database = self._database, None
            if database is not None:
                database.close()

    @property
    def _current(self) -> Database:
        if self._database is None:
            raise MovedError(self._path)
        return self._database

    def _in_transaction(self, begin: str, work: Callable[[], T], busy_until: float, is_urgent: bool = False) -> T:
        for tries in range(1, _MAX_REOPENINGS + 1):
            try:
                return self.patience.until_free(
                    self._path, lambda: self._attempt(begin, work, busy_until), busy_until, is_urgent
                )
            except MovedError:
                if self._guest_of is not None or tries == _MAX_REOPENINGS:
                    raise
                self._reopen(busy_until)
        raise AssertionError

    def _attempt(self, begin: str, work: Callable[[], T], busy_until: float) -> T:
        with self.gate:
            database = self._database or self._open(busy_until)
            try:
                return database.transaction(begin, work)
            finally:
                if database.connection.in_transaction:
                    # It could not be rolled back. Closing does that.
                    self._drop()

    def _reopen(self, busy_until: float) -> None:
        with self.gate:
            if self._database is not None and self._database.is_current():
                return
            # Before the new one is opened, because connections of one process share an open index, even a removed one.
            self._drop()
            self._open(busy_until)
        self.on_moved()

    def _open(self, busy_until: float) -> Database:
        if self._closed:
            raise ClosedError("the sqlite driver is closed")
        if self._guest_of is not None:
            if self._forked:
                raise StoreError(
                    f"the database {self._path} was passed in before this process was forked, and SQLite cannot use it "
                    "in both; open it again in this process, and pass in that connection",
                    retryable=False,
                )
            if identity_of(self.asked) != self._guest_of:
                raise MovedError(self.asked)
        database = open_and_prepare(self.asked, is_guest=self._guest_of is not None, busy_until=busy_until)
        self._database = database
        self._path = database.path
        self.opened_times += 1
        return database

    def _drop(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            database.close()

    def before_fork(self) -> None:
        if self._database is not None:
            try:
                self._database.close()
            except StoreError:
                # The child finds it, and refuses the file.
                return
            self._database = None

    def after_fork_in_child(self) -> Optional[Identity]:
        self._forked = True
        database, self._database = self._database, None
        self.on_fork_in_child()
        if database is None:
            return None
        fork.keep_for_ever(database)
        try:
            return database.files.identity if database.files else identity_of(self.asked)
        except StoreError:
            return None


def absolute(path: str) -> str:
    """So that the process may change its folder, and SQLite reads no part of it as a setting."""
    return os.path.abspath(path)
