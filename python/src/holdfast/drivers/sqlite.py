"""Keeps leases in a SQLite file, which every process of the machine can open: Python and Node, without a server.

It needs nothing but Python's own `sqlite3`. protocol/sqlite/README.md describes the file.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from functools import partial
from typing import Any, Callable, Optional, Sequence, TypeVar, Union

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
from ..errors import ClosedError, InvalidArgumentError, StoreError
from ._sqlite.acquire import acquire_all, whole_ms
from ._sqlite.busy import MAX_BUSY_SECONDS
from ._sqlite.connection import Connection, absolute
from ._sqlite.files import Identity, identity_of
from ._sqlite.inspect import inspect
from ._sqlite.list_parts import in_parts
from ._sqlite.rates import consume_one, is_look
from ._sqlite.rows import read_now, waiters_of
from ._sqlite.sweep import Sweeper
from ._sqlite.thread import DriverThread
from ._sqlite.url import IN_MEMORY, default_path, sqlite_path, sqlite_url
from ._sqlite.wake_ups import WakeUps
from ._sqlite.watch import How, Watch

__all__ = ["CAPABILITIES", "SqliteDriver", "default_url", "open_sqlite", "sqlite_driver"]

Request = TypeVar("Request")
Answer = TypeVar("Answer")
T = TypeVar("T")

CAPABILITIES = Capabilities(
    expiry="ttl",
    scope="machine",
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


def default_url() -> str:
    """The URL of the embedded default: one file for each user of this machine, the same as in the TypeScript client."""
    return sqlite_url(absolute(default_path()))


async def open_sqlite(url: str) -> SqliteDriver:
    """Opens `sqlite:<path>`, or `sqlite:` for the file in the user's state folder.

    Raises `InvalidArgumentError` for a URL with a part that is not understood, and `StoreError`, which says what is
    wrong with the file.
    """
    path = sqlite_path(url)
    driver = SqliteDriver(absolute(default_path() if path is None else path))
    try:
        await driver.open()
    except BaseException:
        await driver.close()
        raise
    return driver


def sqlite_driver(path_or_connection: Union[str, os.PathLike[str], sqlite3.Connection]) -> SqliteDriver:
    """A driver on a lock file, or beside your own tables in the database of a connection that you have.

    The file is opened with the first call. Of a connection, only the path is used: the driver opens a connection of its
    own, so that its transactions and yours do not mix. While you have a write transaction open, it waits for up to two
    seconds, and then raises `StoreError`. It puts the database into WAL mode.
    """
    if isinstance(path_or_connection, sqlite3.Connection):
        return beside_tables_of(path_or_connection)()
    if not isinstance(path_or_connection, (str, os.PathLike)):
        raise InvalidArgumentError("path_or_connection", path_or_connection, "a path or an open sqlite3.Connection")
    path = os.fspath(path_or_connection)
    if path == ":memory:":
        raise StoreError(IN_MEMORY, retryable=False)
    is_url = path[:7].lower() == "sqlite:" or path[:5].lower() == "file:"
    if not isinstance(path, str) or path == "" or is_url or "\0" in path or path.endswith("/"):
        raise InvalidArgumentError("path_or_connection", path, "the path of a file, and no URL")
    return SqliteDriver(absolute(path))


def beside_tables_of(connection: sqlite3.Connection) -> Callable[[], SqliteDriver]:
    """Makes drivers in the database of a connection, in any thread. Call this in the thread of the connection."""
    path = _path_of(connection)
    return partial(SqliteDriver, path, guest_of=identity_of(path))


def _path_of(connection: sqlite3.Connection) -> str:
    try:
        cursor = connection.cursor()
        # Not the caller's, which may make anything of a row.
        cursor.row_factory = None
        rows = cursor.execute("PRAGMA database_list").fetchall()
    except sqlite3.Error as error:
        raise InvalidArgumentError("path_or_connection", str(error), "an open sqlite3.Connection") from None
    path = next((row[2] for row in rows if row[1] in ("main", b"main")), "")
    path = os.fsdecode(path or "")
    if path == "":
        raise StoreError(IN_MEMORY, retryable=False)
    return path


class SqliteDriver:
    """Make it with `open_sqlite` or `sqlite_driver`. Everything that it does with SQLite happens in a thread of its
    own, so that the event loop never waits for a disk or for another process."""

    name = "sqlite"
    capabilities = CAPABILITIES
    longest_ttl_ms: Optional[float] = None

    def __init__(self, path: str, *, guest_of: Optional[Identity] = None) -> None:
        self._connection = Connection(path, guest_of)
        self._connection.on_fork_in_child = self._forked_in_child
        self._thread = DriverThread()
        # A claim that waits for the write lock must not keep heartbeats of this process waiting.
        self._connection.patience.pause = self._thread.pause
        self._wake_ups = WakeUps(self._connection, self._thread.notify, self._stop_watching)
        self._sweeper = Sweeper(self._connection)
        self._watch: Optional[Watch] = None
        self._closed = False

    @property
    def place(self) -> str:
        return sqlite_url(self._connection.path)

    async def open(self) -> None:
        """Opens the file now, and not with the first call. Raises `StoreError`, which says what is wrong with it."""
        busy_until = _busy_until()
        await self._submit(lambda: self._connection.read(lambda: None, busy_until))

    def __repr__(self) -> str:
        return f"<SqliteDriver on {self.place}>"

    async def acquire(self, claims: Sequence[Claim]) -> Sequence[Union[Grant, Refusal, Exception]]:
        def part(claims: Sequence[Claim], busy_until: float) -> list[Union[Grant, Refusal, Exception]]:
            return self._each_lease(
                claims,
                busy_until,
                lambda now_ms: acquire_all(self._connection, claims, now_ms),
                # There may be room beside a shared lease for the next waiter.
                lambda claim, answer: claim.mode == "shared" and isinstance(answer, Grant),
                self._note_waiters,
            )

        return await self._in_parts(claims, part)

    async def renew(self, renewals: Sequence[Renewal]) -> Sequence[Union[RenewAnswer, Exception]]:
        def one(renewal: Renewal, now_ms: int) -> RenewAnswer:
            ttl_ms = whole_ms(renewal.ttl_ms)
            terms = (renewal.lock_name, renewal.claim_id, renewal.fencing_token, now_ms)
            return "renewed" if self._connection.run("renew", now_ms + ttl_ms, ttl_ms, *terms) > 0 else "lost"

        def part(renewals: Sequence[Renewal], busy_until: float) -> list[RenewAnswer]:
            return self._each_lease(
                renewals,
                busy_until,
                lambda now_ms: [one(renewal, now_ms) for renewal in renewals],
                lambda renewal, answer: False,
                is_urgent=True,
            )

        return await self._in_parts(renewals, part, is_urgent=True)

    async def release(self, leases: Sequence[LeaseRef]) -> Sequence[Union[bool, Exception]]:
        def part(leases: Sequence[LeaseRef], busy_until: float) -> list[bool]:
            for lease in leases:
                self._wake_ups.remove(lease.lock_name, lease.claim_id)
            return self._each_lease(
                leases,
                busy_until,
                lambda now_ms: [self._release_one(lease, now_ms) for lease in leases],
                # A withdrawn claim may have been the first in the queue.
                lambda lease, answer: True,
            )

        return await self._in_parts(leases, part)

    async def inspect(self, query: InspectQuery) -> InspectPage:
        check_inspect_query(query)
        busy_until = _busy_until()
        return await self._submit(
            lambda: self._connection.read(lambda: inspect(self._connection, query), busy_until)
        )

    async def consume(self, requests: Sequence[RateRequest]) -> Sequence[Union[RateAnswer, Exception]]:
        def part(requests: Sequence[RateRequest], busy_until: float) -> list[RateAnswer]:
            only_looks = all(is_look(request) for request in requests)

            def work() -> list[RateAnswer]:
                now_ms = read_now(self._connection)
                if not only_looks:
                    self._sweeper.sweep(now_ms)
                return [consume_one(self._connection, request, now_ms) for request in requests]

            # A look does not wait for another process, and deletes nothing.
            if only_looks:
                return self._connection.read(work, busy_until)
            return self._connection.write(work, busy_until)

        return await self._in_parts(requests, part)

    async def listen(self, listener: DriverListener) -> StopListening:
        busy_until = _busy_until()
        await self._submit(lambda: self._connection.read(lambda: self._wake_ups.listen(listener), busy_until))
        if self._watch is not None and not self._watch.is_mine:
            # Its event loop has ended.
            self._stop_watching()
        # It may have been disconnected again before this task ran.
        if self._watch is None and self._wake_ups.has_listeners and not self._closed:
            self._watch = Watch(self._connection.path, self._check)

        async def stop() -> None:
            if not self._closed and await self._submit(lambda: self._wake_ups.stop(listener)):
                self._stop_watching()

        return stop

    async def close(self) -> None:
        if self._closed:
            return
        try:
            self._stop_watching()
            await self._submit(self._connection.close)
        finally:
            self._closed = True
            self._thread.stop()

    def _submit(self, work: Callable[[], T], is_urgent: bool = False) -> asyncio.Future[T]:
        if self._closed:
            raise ClosedError("the sqlite driver is closed")
        return self._thread.submit(work, is_urgent)

    async def _in_parts(
        self,
        requests: Sequence[Request],
        part: Callable[[Sequence[Request], float], Sequence[Answer]],
        is_urgent: bool = False,
    ) -> Sequence[Union[Answer, Exception]]:
        # Together, the parts try for the write lock as long as a short list may. Calls that wait for their turn in the
        # thread use the same time, so a busy file fails all of them after the same two seconds.
        busy_until = _busy_until()

        async def run(requests: Sequence[Request]) -> Sequence[Answer]:
            return await self._submit(lambda: part(requests, busy_until), is_urgent)

        return await in_parts(requests, run)

    def _each_lease(
        self,
        requests: Sequence[Request],
        busy_until: float,
        step: Callable[[int], list[Answer]],
        makes_room: Callable[[Request, Answer], bool],
        note: Callable[[Sequence[Request], list[Answer]], None] = lambda requests, answers: None,
        is_urgent: bool = False,
    ) -> list[Answer]:
        """One transaction, which wakes waiters after its commit. `note` runs before the wake-ups are decided: a claim
        that has just been queued must be known by then."""

        def work() -> tuple[list[Answer], bool]:
            now_ms = read_now(self._connection)
            self._sweeper.sweep(now_ms)
            answers = step(now_ms)
            room = {_name_of(request) for request, answer in zip(requests, answers) if makes_room(request, answer)}
            return answers, any(waiters_of(self._connection, name, now_ms, 1) for name in room)

        answers, turns = self._connection.write(work, busy_until, is_urgent)
        note(requests, answers)
        self._wake_ups.committed(map(_name_of, requests), turns)
        return answers

    def _note_waiters(self, claims: Sequence[Claim], answers: list[Union[Grant, Refusal, Exception]]) -> None:
        for claim, answer in zip(claims, answers):
            if claim.waiter_ttl_ms > 0 and not isinstance(answer, Grant):
                self._wake_ups.add(claim.lock_name, claim.claim_id)
            else:
                self._wake_ups.remove(claim.lock_name, claim.claim_id)

    def _release_one(self, lease: LeaseRef, now_ms: int) -> bool:
        claim = (lease.lock_name, lease.claim_id)
        if lease.fencing_token is None:
            ended = self._connection.run("withdraw", *claim, now_ms)
        else:
            ended = self._connection.run("release", *claim, lease.fencing_token, now_ms)
        if ended > 0:
            return True
        self._connection.run("delete_waiter", *claim)
        return False

    def _check(self, how: How) -> asyncio.Future[int]:
        return self._thread.submit(self._wake_ups.check_rung if how == "rung" else self._wake_ups.poll)

    def _stop_watching(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.stop()

    def _forked_in_child(self) -> None:
        self._thread.forget()
        self._wake_ups.forget_all()
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.abandon()


def _name_of(request: Any) -> str:
    name: str = request.lock_name
    return name


def _busy_until() -> float:
    return time.monotonic() + MAX_BUSY_SECONDS
