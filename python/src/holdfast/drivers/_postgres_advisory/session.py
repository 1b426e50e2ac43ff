"""A pinned connection, and the locks on it."""

from __future__ import annotations

import asyncio
from typing import Awaitable, Callable, List, Mapping, Optional, Sequence

from ...core.tasks import ignore_outcome, settles_within, start_call
from ...errors import HoldfastError, StoreError, UnsupportedError
from .._postgres.connections import NotSentError, Opener, Row
from .._postgres.errors import IN_TRANSACTION, sql_state, store_error_from
from .activity_comment import write_activity_comment
from .held_locks import HeldLocks, LockRequest, SessionLease
from .open_session import OpenedSession, end_connection, open_session
from .session_proof import POOLER_REASON, PROOF_ROUNDS, prove_exclusion
from .statements import STATEMENTS, boolean, execution, keys_of, modes_of, positions, unlocking, unpublishing, waiting

OnLost = Callable[["Session", BaseException], None]
_UNLOCK_ALL_SECONDS = 1.0

_UNLOCKED = (
    "the connection no longer has a lock that it was granted: other code has released it there, for example with "
    "pg_advisory_unlock_all() or DISCARD ALL. Give the driver a connection or a pool of its own"
)
_TOO_LATE = (
    "this connection is inside a transaction of yours that has written something, or taken a lock before: the "
    "fencing token of a lock taken there could be lower than one that was given before. End the transaction first, "
    "give the driver a pool, or use lock_in_transaction on another connection"
)


class Session:
    """A pinned connection and the locks on it. When it ends, all of them are lost at once."""

    def __init__(self, opened: OpenedSession, on_lost: OnLost) -> None:
        self._opened = opened
        self._on_lost = on_lost
        self._held = HeldLocks()
        # Locks that the session may or may not have, because a statement about them failed.
        self._possible_locks: List[LockRequest] = []
        # Locks of statements in flight.
        self._locks_in_flight: List[LockRequest] = []
        # The transaction id of the last grant, which is published for `inspect`.
        self._xid = 0
        self._lost: Optional[BaseException] = None
        # The key that it waited for last, if it was granted.
        self.waited_for: Optional[int] = None
        self._closing: Optional["asyncio.Task[None]"] = None

    @staticmethod
    async def open(connections: Opener, on_lost: OnLost) -> "Session":
        """Raises `UnsupportedError` if the connection is not one session of the server."""
        opened = await open_session(connections)
        session = Session(opened, on_lost)
        opened.connection.watch(session.lose)
        return session

    async def prove_exclusion(self, other: "Session") -> None:
        """Raises `UnsupportedError` if locks of this session do not exclude the other one."""
        await prove_exclusion(self._opened.connection, other._opened.connection)

    @property
    def pid(self) -> str:
        return self._opened.pid

    @property
    def leases(self) -> Mapping[str, SessionLease]:
        """By claim id."""
        return self._held.leases

    @property
    def lost(self) -> Optional[BaseException]:
        return self._lost

    def excludes(self, request: LockRequest) -> bool:
        """Whether a lease of this session excludes the lock. The server would grant it nevertheless."""
        return self._held.excludes(request)

    async def try_locks(self, requests: Sequence[LockRequest]) -> Sequence[Optional[SessionLease]]:
        """Requests locks without waiting. Returns one answer each, in order.

        No two requests may have the same key, and the session must not exclude any of them.
        """
        if not requests:
            return []
        if len(requests) == 1:
            return [await self._take(requests[0], waits=False)]
        values = [keys_of(requests), modes_of(requests), str(self._xid)]
        row = await self._request(requests, lambda: self._send("take_list", values))
        got = set(positions(row["got"]))
        return [self._granted(each, row) if index in got else None for index, each in enumerate(requests, 1)]

    async def wait(self, request: LockRequest) -> SessionLease:
        """Waits in the server's own queue. Ends only with the grant, or when another session calls `cancel_wait`."""
        # A lock that this session has waited for changes hands often: one statement is faster. The server logs it as an
        # error if that takes seconds.
        is_busy, self.waited_for = self.waited_for == request.key, None
        loop = asyncio.get_running_loop()
        began, lease = loop.time(), None
        if is_busy:
            try:
                lease = await self._take(request, waits=True)
            except Exception as error:
                # Another slice of the wait is due: nothing has failed.
                if sql_state(error) != "55P03":
                    raise
        if lease is None:
            lease = await self._wait_in_slices(request, (loop.time() - began) * 1000)
        self.waited_for = request.key
        return lease

    async def _wait_in_slices(self, request: LockRequest, waited_ms: float) -> SessionLease:
        async def statements() -> Row:
            await self._answer(waiting(request, waited_ms), waits=True)
            return await self._send("take", [str(request.key), boolean(request.shared), None, str(self._xid)])

        return self._granted(request, await self._request([request], statements))

    async def cancel_wait(self, of: "Session") -> None:
        """Removes another session from the queue. Closing its connection would leave it there for a while."""
        await self._send("cancel", [str(of.pid)])

    async def unlock(self, leases: Sequence[SessionLease]) -> List[bool]:
        """Returns for each lease whether the server had the lock.

        If it did not, the connection is ended: the other locks that it is believed to hold are in doubt, too.
        """
        for lease in leases:
            self._held.remove(lease)
        try:
            released = await self._unlock([lease.request for lease in leases])
        except Exception as error:
            # Nothing was done, and they are still held.
            if self._lost is None and (isinstance(error, NotSentError) or _is_in_failed_transaction(error)):
                for lease in leases:
                    self._held.add(lease)
                raise
            # The server may still hold some of them, although this process does not count them any more.
            self._possible_locks.extend(lease.request for lease in leases)
            # The session has ended, and the leases with it. Without an answer, it may live on at the server.
            if self._lost is not None and not isinstance(error, asyncio.TimeoutError):
                return [False for _ in leases]
            self._destroy(error)
            raise
        except asyncio.CancelledError:
            self._possible_locks.extend(lease.request for lease in leases)
            self._destroy(ConnectionError("a release was cancelled from outside"))
            raise
        if not all(released):
            self._destroy(StoreError(_UNLOCKED))
        return released

    @property
    def lead(self) -> int:
        """By how much its tokens are ahead."""
        return self._opened.lead

    async def prove(self) -> bool:
        """Returns if the connection, and with it every lock on it, still exists. True: some client wants a lease ended,
        so look with `release_requests`.

        A connection of the caller may be inside a transaction, and never says so. There the application can have
        released the locks. Then they are lost.
        """
        if not self._opened.connection.is_callers:
            return (await self._send("prove", []))["raised"] is True
        locks = [lease.request for lease in self.leases.values()]
        if (await self._send("lacks", [keys_of(locks), modes_of(locks)]))["lacks"]:
            self._destroy(StoreError(_UNLOCKED))
            raise StoreError(_UNLOCKED)
        return False

    async def release_requests(self) -> Mapping[int, str]:
        """Which leases other clients want ended, and the role that asks. An error does not end the session."""
        rows = await self._opened.connection.fetch(self._comment() + STATEMENTS["release_requests"])
        return {int(row["key"]): str(row["role"]) for row in rows}

    async def locks(self, keys: Optional[Sequence[int]]) -> Sequence[Row]:
        listed = None if keys is None else "{" + ",".join(map(str, keys)) + "}"
        text = execution("locks", self._opened.session_id, [listed])
        return await self._opened.connection.fetch(self._comment() + text)

    async def end(self) -> None:
        """Releases every lock by ending the connection, without a call of `on_lost`."""
        if self._lost is None:
            self._lost = StoreError("the connection was closed")
            self._forget_leases()
        await asyncio.shield(self._closing_task())

    def undo(self) -> str:
        """SQL that undoes exactly what this session did, for a connection that stays open."""
        locks = [*(lease.request for lease in self.leases.values()), *self._possible_locks]
        published = "" if self._xid == 0 else unpublishing(self._xid)
        return f"{unlocking(locks)}{published}{self._opened.undo_opening}"

    def lose(self, cause: BaseException) -> None:
        if self._lost is not None:
            return
        self._lost = cause
        self._on_lost(self, cause)
        self._forget_leases()

    async def _take(self, request: LockRequest, *, waits: bool) -> Optional[SessionLease]:
        values = [str(request.key), boolean(request.shared), boolean(waits), str(self._xid)]
        row = await self._request([request], lambda: self._send("take", values, waits=waits))
        return None if row["xid"] is None else self._granted(request, row)

    async def _unlock(self, locks: Sequence[LockRequest]) -> List[bool]:
        if len(locks) == 1:
            [lock] = locks
            return [(await self._send("unlock", [str(lock.key), boolean(lock.shared)]))["released"] is True]
        released = set(positions((await self._send("unlock_list", [keys_of(locks), modes_of(locks)]))["released"]))
        return [index in released for index in range(1, len(locks) + 1)]

    def _granted(self, request: LockRequest, row: Row) -> SessionLease:
        self._xid = int(row["xid"])
        lease = SessionLease(request, int(row["token"]), float(row["acquired_at"]))
        self._held.add(lease)
        return lease

    async def _request(
        self,
        requests: Sequence[LockRequest],
        statement: Callable[[], Awaitable[Row]],
    ) -> Row:
        """Requests locks. If that fails, the locks that the statement has taken are released, or the session ends."""
        connection = self._opened.connection
        if connection.is_callers and connection.in_transaction:
            raise StoreError(IN_TRANSACTION, retryable=False)
        self._locks_in_flight.extend(requests)
        try:
            row = await statement()
        except Exception as error:
            if isinstance(error, NotSentError) or _is_in_failed_transaction(error):
                raise
            if self._lost is not None:
                # The statement may have been executed nevertheless, and a connection of the caller lives on.
                self._possible_locks.extend(requests)
            else:
                # A cancel that arrives just after a lock was taken ends the statement, but not the lock.
                await self._release_taken(requests)
            raise
        except asyncio.CancelledError:
            # The program cancels all tasks that it finds, and goes on. The server may have taken the locks before.
            self._possible_locks.extend(requests)
            self._destroy(ConnectionError("a request for a lock was cancelled from outside"))
            raise
        finally:
            for each in requests:
                self._locks_in_flight.remove(each)
        # Only on a connection of the caller: a transaction id that was drawn before the lock was taken may be lower
        # than that of another holder in between.
        if row["too_late"]:
            raise StoreError(_TOO_LATE, retryable=False)
        return row

    async def _send(
        self,
        name: str,
        values: Sequence[Optional[str]],
        *,
        waits: bool = False,
    ) -> Row:
        rows = await self._answer(execution(name, self._opened.session_id, values), waits=waits)
        if rows and rows[0]["pid"] == self._opened.pid:
            return rows[0]
        raise self._lost_elsewhere()

    async def _answer(self, text: str, *, waits: bool = False) -> Sequence[Row]:
        """Sends a statement behind the activity comment. An error that leaves the connection in doubt ends it.

        Every statement needs the comment: the server shows only the last one, and without it others see no lease.
        """
        if self._lost is not None:
            raise store_error_from(self._lost)
        try:
            return await self._opened.connection.fetch(self._comment() + text, waits=waits)
        except NotSentError:
            raise
        except Exception as error:
            state = sql_state(error)
            # 57P..: the server is ending the session. 08...: the client has lost it.
            if state is None or state.startswith(("57P", "08")):
                self._destroy(error)
            # Not prepared: this session has prepared it, so another one was reached.
            if state != "26000":
                raise
        raise self._lost_elsewhere()

    def _lost_elsewhere(self) -> HoldfastError:
        # Where there is no pooler, other code has discarded the statement, and the locks with it.
        is_callers = self._opened.connection.is_callers
        gone = StoreError(_UNLOCKED) if is_callers else UnsupportedError(POOLER_REASON)
        self._destroy(gone)
        return gone

    def _comment(self) -> str:
        """Lists the locks of statements in flight, too.

        This statement may be shown after one of them has taken its locks. Others are shown only those that the server
        knows of.
        """
        entries = [each.activity() for each in self.leases.values()]
        entries += [each.activity() for each in self._locks_in_flight]
        return write_activity_comment(entries[::-1], self._opened.max_comment_bytes)

    async def _release_taken(self, requests: Sequence[LockRequest]) -> None:
        """A statement that fails halfway has taken some of its locks. They are the session's: no rollback ends them."""
        connection, session_id = self._opened.connection, self._opened.session_id
        try:
            rows = await connection.fetch(self._comment() + STATEMENTS["own_locks"])
            own = {int(row["key"]) for row in rows}
            extra = [each for each in requests if each.key in own]
            # A second lock on a key that is held in shared mode cannot be told from none.
            if any(self._held.has(each) for each in extra):
                raise StoreError("it is not known which locks were taken")
            if extra:
                values = [keys_of(extra), modes_of(extra)]
                await connection.fetch(self._comment() + execution("unlock_list", session_id, values))
        except Exception as error:
            self._possible_locks.extend(each for each in requests if not self._held.has(each))
            self._destroy(error)

    def _destroy(self, cause: BaseException) -> None:
        # The loss counts from now. If closing fails, the end of the socket still ends the session.
        self._closing_task()
        self.lose(cause)

    def _forget_leases(self) -> None:
        # A connection of the caller stays open, and they have to be undone on it.
        self._possible_locks.extend(lease.request for lease in self.leases.values())
        self._held.clear()

    def _closing_task(self) -> "asyncio.Task[None]":
        if self._closing is None:
            self._closing = start_call(self._close())
            self._closing.add_done_callback(ignore_outcome)
        return self._closing

    async def _close(self) -> None:
        """Behind a pooler the server's side stays open, and the pooler may not reset it: its locks are released."""
        if self._opened.is_pooled:
            await settles_within(_UNLOCK_ALL_SECONDS, self._unlock_all())
        await end_connection(self._opened.connection, self.undo())

    async def _unlock_all(self) -> None:
        for _ in range(PROOF_ROUNDS):
            if await self._opened.connection.fetch(STATEMENTS["unlock_all"], [self.pid]):
                return


def _is_in_failed_transaction(error: BaseException) -> bool:
    """The caller's transaction has failed. The server does nothing until it is ended."""
    return sql_state(error) == "25P02"
