"""Leases as session-level advisory locks of PostgreSQL: no table, and a lease lasts as long as its connection."""

from __future__ import annotations

import asyncio
import os
from typing import Any, Awaitable, Callable, Dict, List, Optional, Sequence, Set, Tuple, TypeVar, Union

from ..core.arguments import check_inspect_query
from ..core.driver import (
    Capabilities,
    Claim,
    DriverListener,
    Grant,
    InspectPage,
    InspectQuery,
    LeaseRecord,
    LeaseRef,
    RateAnswer,
    RateRequest,
    Refusal,
    Renewal,
    RenewAnswer,
    StopListening,
)
from ..core.tasks import settles_within
from ..errors import ClosedError, HoldfastError, InvalidArgumentError, StoreError, UnsupportedError
from ._postgres.clients import connections_of, open_connections
from ._postgres.connections import Opener, Row
from ._postgres.errors import store_error_from
from ._postgres.url import postgres_url
from ._postgres_advisory.acquire import Acquire, grant_of
from ._postgres_advisory.callers_connection import callers_connection
from ._postgres_advisory.force_release import force_release
from ._postgres_advisory.held_locks import SessionLease, advisory_key, release_request_key
from ._postgres_advisory.inspect_locks import inspect_locks
from ._postgres_advisory.lock_in_transaction import (
    lock_in_transaction,
    sync_lock_in_transaction,
    sync_try_lock_in_transaction,
    try_lock_in_transaction,
)
from ._postgres_advisory.main_session import MainSession
from ._postgres_advisory.session import Session
from ._postgres_advisory.waiting_sessions import WaitingSessions
from ._shared.url import url_parts

__all__ = [
    "CAPABILITIES",
    "PostgresAdvisoryDriver",
    "advisory_key",
    "lock_in_transaction",
    "open_postgres_advisory",
    "postgres_advisory_driver",
    "sync_lock_in_transaction",
    "sync_try_lock_in_transaction",
    "try_lock_in_transaction",
]

T = TypeVar("T")

CAPABILITIES = Capabilities(
    expiry="session",
    scope="network",
    fencing=True,
    shared=True,
    limit=False,
    queue=False,
    wake=True,
    metadata=False,
    rate=False,
    force="call",
    groups=False,
    reasons={
        "limit": "an advisory lock is free, shared or exclusive, and the server does not count. The postgres driver "
        "has limits",
        "rate": "it stores nothing that could be counted. The postgres driver has them",
        "force": "the server gives a session lock to no other session before its own has ended. `force_release` asks "
        "the holder to let go",
    },
)

_MAX_WAITING_CONNECTIONS = 8
_SETTLE_SECONDS = 1.0
"""How long closing waits for the calls in flight."""


async def open_postgres_advisory(
    url: str, *, max_waiting_connections: int = _MAX_WAITING_CONNECTIONS
) -> PostgresAdvisoryDriver:
    """Opens a driver for a `postgres+advisory://…` URL, with the same parameters as a `postgres://` URL.

    Sends nothing before the first call. Raises `InvalidArgumentError` if some part of the URL is not understood, and
    `MissingClientError` if neither asyncpg nor psycopg is installed.
    """
    target, _ = postgres_url(url)
    for parameter in url_parts(url, "").parameters:
        if parameter.name.startswith("holdfast_"):
            raise InvalidArgumentError("url parameter", parameter.name, "left out: advisory locks have no tables")
    connections = open_connections(target, "the postgres-advisory driver")
    return PostgresAdvisoryDriver(connections, max_waiting_connections=max_waiting_connections)


def postgres_advisory_driver(
    client: Any, *, max_waiting_connections: int = _MAX_WAITING_CONNECTIONS
) -> PostgresAdvisoryDriver:
    """A driver on a client that you already have.

    Beside a pool of asyncpg or psycopg_pool, or an Engine of SQLAlchemy, the driver opens connections of its own with
    the same settings.

    A connection of asyncpg, or one of psycopg in autocommit mode, is itself the one connection of the driver. Then
    waiters poll. A connection can have one driver at a time, and `lock_in_transaction` refuses it until that driver is
    closed.

    `max_waiting_connections`: for how many lock names the driver can wait at once in the server's own queue, with one
    connection each, from 0 to 100. Beyond that, waiters poll.
    """
    _check_max(max_waiting_connections)
    own = callers_connection(client)
    if own is None:
        return PostgresAdvisoryDriver(connections_of(client), max_waiting_connections=max_waiting_connections)
    return PostgresAdvisoryDriver(own, max_waiting_connections=0, is_callers=True)


class PostgresAdvisoryDriver:
    """Make one with `open_postgres_advisory` or `postgres_advisory_driver`."""

    name = "postgres-advisory"
    capabilities = CAPABILITIES
    longest_ttl_ms: Optional[float] = None

    def __init__(
        self,
        connections: Opener,
        *,
        max_waiting_connections: int,
        is_callers: bool = False,
    ) -> None:
        """`is_callers`: there is one connection, the caller's own."""
        _check_max(max_waiting_connections)
        self._connections = connections
        self._is_callers = is_callers
        self._listeners: Set[DriverListener] = set()
        self._turn: Optional[asyncio.Lock] = None
        self._closed = False
        self._process = os.getpid()
        self._has_opened = False
        # Locks on one connection were seen to exclude another one. A connection of the caller is the only one.
        self._is_proved = False
        self._main = MainSession(self._open_main)
        self._waiting = WaitingSessions(
            open_session=self._open_session,
            cancel=self._cancel_wait,
            max_sessions=max_waiting_connections,
            granted=self._report_grant,
        )
        self._acquire = Acquire(self._main, self._waiting, self._in_turn)

    @property
    def place(self) -> Optional[str]:
        return self._connections.place

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self.place or 'a client'}>"

    async def acquire(self, claims: Sequence[Claim]) -> Sequence[Union[Grant, Refusal, Exception]]:
        return await self._with_store_errors(lambda: self._acquire(claims))

    async def renew(self, renewals: Sequence[Renewal]) -> Sequence[Union[RenewAnswer, Exception]]:
        return await self._with_store_errors(lambda: self._in_turn(lambda: self._renew_all(renewals)))

    async def release(self, leases: Sequence[LeaseRef]) -> Sequence[Union[bool, Exception]]:
        return await self._with_store_errors(lambda: self._in_turn(lambda: self._release_all(leases)))

    async def inspect(self, query: InspectQuery) -> InspectPage:
        checked = check_inspect_query(query)
        keys = None if checked.lock_name is None else [advisory_key(checked.lock_name)]

        async def read() -> InspectPage:
            return inspect_locks(checked, await (await self._main.get()).locks(keys))

        return await self._with_store_errors(lambda: self._in_turn(read))

    async def listen(self, listener: DriverListener) -> StopListening:
        self._check_open()
        self._listeners.add(listener)

        async def stop() -> None:
            self._listeners.discard(listener)

        return stop

    async def consume(self, requests: Sequence[RateRequest]) -> Sequence[Union[RateAnswer, Exception]]:
        raise UnsupportedError(f"{self.name} has no rate limits: {CAPABILITIES.reasons['rate']}")

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._listeners.clear()
        if os.getpid() != self._process:
            # Closing the sockets in order here would end the sessions of the parent.
            return
        try:
            # Bounded, because a server that does not answer would keep the connections open until its calls time out.
            await settles_within(_SETTLE_SECONDS, self._last_turn())
            await self._waiting.close()
            await self._main.close()
        finally:
            await self._connections.close()

    async def _in_turn(self, work: Callable[[], Awaitable[T]]) -> T:
        """Runs calls one by one: what a call decides about a connection must not change while it is in flight."""
        self._check_open()
        async with self._own_turn():
            self._check_open()
            return await work()

    async def _last_turn(self) -> None:
        async with self._own_turn():
            pass

    def _own_turn(self) -> asyncio.Lock:
        # Made in the event loop of the calls. The driver may have been made before there is one.
        if self._turn is None:
            self._turn = asyncio.Lock()
        return self._turn

    async def _with_store_errors(self, call: Callable[[], Awaitable[T]]) -> T:
        try:
            return await call()
        except HoldfastError:
            raise
        except Exception as error:
            failure = store_error_from(error, place=self.place)
        # Outside the `except` block: Python would attach the original, which may refer to a password.
        raise failure

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the postgres-advisory driver is closed")
        if os.getpid() != self._process:
            # Both processes would write to the same sockets, and both would believe to hold the same locks.
            reason = "the postgres-advisory driver was opened before a fork: open it in each process"
            raise StoreError(reason, retryable=False)

    async def _open_session(self) -> Session:
        try:
            session = await Session.open(self._connections, self._report_loss)
            self._has_opened = True
            return session
        except HoldfastError:
            raise
        except Exception as error:
            # A server that was a primary before and is a standby now was demoted: the address may lead to the new one.
            failure = store_error_from(error, place=self.place, has_written=self._has_opened)
        raise failure

    async def _open_main(self) -> Session:
        """Opens a second session, too, for the first claim that has to wait.

        If that fails, that claim tries again and gets the error.
        """
        session = await self._open_session()
        # One after the other: while one is checked for a pooler, the other must not interfere.
        is_needed = not self._is_callers and (not self._is_proved or self._waiting.is_empty)
        try:
            second = await self._open_session() if is_needed else None
        except Exception:
            second = None
        if second is None:
            return session
        try:
            if not self._is_proved:
                await session.prove_exclusion(second)
            self._is_proved = True
        except BaseException:
            # The first error is the one to report.
            await asyncio.gather(session.end(), second.end(), return_exceptions=True)
            raise
        self._waiting.keep(second)
        return session

    async def _cancel_wait(self, session: Session) -> None:
        await (await self._main.get()).cancel_wait(session)

    def _report_loss(self, session: Session, cause: BaseException) -> None:
        error = store_error_from(cause, place=self.place)
        for claim_id in list(session.leases):
            self._report_lost(claim_id, error)

    def _report_lost(self, claim_id: str, cause: Exception) -> None:
        """Every holder of a lease listens, so it loses the lease at once."""
        for listener in list(self._listeners):
            listener.lost(claim_id, cause)

    def _report_grant(self, claim: Claim, lease: SessionLease, kept_ms: float) -> None:
        grant = grant_of(claim, lease)
        grant = Grant(grant.fencing_token, min(grant.ttl_ms, kept_ms), grant.acquired_at_ms)
        for listener in list(self._listeners):
            listener.granted(claim.claim_id, grant)
            # A claim whose call is in flight ignores the grant, and the answer to that call may be older than it.
            listener.wake(claim.lock_name, claim.claim_id)

    @property
    def _sessions(self) -> List[Session]:
        current = self._main.current
        return [*([] if current is None else [current]), *self._waiting.sessions]

    def _session_of(self, claim_id: str, fencing_token: Optional[int]) -> Optional[Session]:
        for session in self._sessions:
            lease = session.leases.get(claim_id) if session.lost is None else None
            if lease is not None and fencing_token in (None, lease.fencing_token):
                return session
        return None

    async def _renew_all(self, renewals: Sequence[Renewal]) -> List[Union[RenewAnswer, Exception]]:
        """A session that still exists has all of its leases. So each session is asked once, however many it has."""
        sessions = [self._session_of(each.claim_id, each.fencing_token) for each in renewals]
        for renewal in renewals:
            self._waiting.settled(renewal.claim_id)
        asked = list({id(session): session for session in sessions if session is not None}.values())
        raised = await asyncio.gather(*(session.prove() for session in asked), return_exceptions=True)
        failures: Dict[int, Exception] = {}
        for session, each in zip(asked, raised):
            # One that was lost is asked for nothing.
            if isinstance(each, BaseException) and session.lost is None:
                failures[id(session)] = store_error_from(each, place=self.place)
        flagged = next((session for session, each in zip(asked, raised) if each is True), None)
        if flagged is not None:
            await self._end_requested(flagged)
        answers: List[Union[RenewAnswer, Exception]] = []
        for renewal in renewals:
            held_by = self._session_of(renewal.claim_id, renewal.fencing_token)
            answers.append("lost" if held_by is None else failures.get(id(held_by), "held"))
        return answers

    async def _end_requested(self, session: Session) -> None:
        """Ends the leases that other clients ask this process to let go of. The server says who asks, and only a role
        that could end the session counts. So this is no message that could be forged."""
        try:
            requests = await session.release_requests()
        except Exception:
            return  # The next renewal looks again.
        ended: List[LeaseRef] = []
        for lease in [lease for each in self._sessions for lease in each.leases.values()]:
            of = lease.request
            role = requests.get(release_request_key(of.claim_id, lease.fencing_token))
            if role is not None:
                ended.append(LeaseRef(of.lock_name, of.claim_id, lease.fencing_token))
                self._report_lost(of.claim_id, StoreError(f"the role {role} ended it"))
        if ended:
            await self._release_all(ended)

    async def force_release(
        self, leases: Sequence[LeaseRecord], *, by: str, end_session: bool
    ) -> Sequence[Union[bool, Exception]]:
        """See `ForcingDriver`. A holder that does not renew its lease does not let go of it."""
        return await self._with_store_errors(lambda: self._force_release(leases, by, end_session))

    async def _force_release(
        self, leases: Sequence[LeaseRecord], by: str, end_session: bool
    ) -> Sequence[Union[bool, Exception]]:
        self._check_open()
        own = [self._session_of(each.claim_id, each.fencing_token) is not None for each in leases]
        others = [lease for lease, is_own in zip(leases, own) if not is_own]
        answers = iter(await self._force_others(others, by, end_session) if others else ())
        mine = [
            LeaseRef(each.lock_name, each.claim_id, each.fencing_token) for each, is_own in zip(leases, own) if is_own
        ]
        for lease in mine:
            # Core releases a lease that it has lost.
            self._report_lost(lease.claim_id, StoreError(f"it was ended by {by}"))
        if mine:
            await self._in_turn(lambda: self._release_all(mine))
        return [True if is_own else next(answers) for is_own in own]

    async def _force_others(
        self, leases: Sequence[LeaseRecord], by: str, end_session: bool
    ) -> Sequence[Union[bool, Exception]]:
        session = await self._main.get()

        async def look(keys: Sequence[int]) -> Sequence[Row]:
            async def read() -> Sequence[Row]:
                return await session.locks(keys)

            return await self._in_turn(read)

        connection = await self._connections.dedicate()
        try:
            return await force_release(connection, look, leases, by=by, end_session=end_session, lead=session.lead)
        finally:
            # An error while it closes leaves nothing behind: its locks end with it.
            await asyncio.gather(connection.close(), return_exceptions=True)

    async def _release_all(self, leases: Sequence[LeaseRef]) -> List[Union[bool, Exception]]:
        answers: List[Union[bool, Exception]] = [False for _ in leases]
        # For each session the leases to end, and the position in the answer for each of them.
        ends: Dict[int, Tuple[Session, Dict[str, Tuple[int, SessionLease]]]] = {}
        for index, ref in enumerate(leases):
            if ref.fencing_token is None:
                await self._waiting.stop(ref.claim_id)
            session = self._session_of(ref.claim_id, ref.fencing_token)
            if session is not None:
                _, ending = ends.setdefault(id(session), (session, {}))
                ending.setdefault(ref.claim_id, (index, session.leases[ref.claim_id]))

        async def unlock(session: Session, ending: Sequence[Tuple[int, SessionLease]]) -> None:
            try:
                released: Sequence[Union[bool, Exception]] = await session.unlock([lease for _, lease in ending])
            except Exception as error:
                released = [store_error_from(error, place=self.place) for _ in ending]
            for (index, _), answer in zip(ending, released):
                answers[index] = answer

        await asyncio.gather(*(unlock(session, list(ending.values())) for session, ending in ends.values()))
        self._waiting.reuse_released()
        return answers


def _check_max(max_waiting_connections: object) -> None:
    is_whole = isinstance(max_waiting_connections, int) and not isinstance(max_waiting_connections, bool)
    if not is_whole or not 0 <= max_waiting_connections <= 100:  # type: ignore[operator]
        raise InvalidArgumentError("max_waiting_connections", max_waiting_connections, "a whole number from 0 to 100")
