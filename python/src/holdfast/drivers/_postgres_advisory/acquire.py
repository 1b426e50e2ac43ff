"""Takes the locks that are free on the main session, and queues other claims that wait on sessions of their own."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Awaitable, Callable, List, Optional, Sequence, Union

from ...core.driver import Claim, Grant, Refusal
from ...errors import StoreError
from .._postgres.connections import Row
from .held_locks import LockRequest, SessionLease, advisory_key
from .inspect_locks import holder_of
from .main_session import MainSession
from .waiting_sessions import WaitingSessions

_ASK_AGAIN_MS = {"no": 100.0, "again": 50.0, "first": None}
"""When a waiter asks again: one for which no connection was left, and one that has not been given the holder yet."""
_MAX_SENT_SECONDS = 0.05
_MAX_VISIBLE_SECONDS = 1.0
_POLL_SECONDS = 0.002
"""How long a refusal waits for a connection to wait with, and until others can see it in the server's queue."""


@dataclass
class _Attempt:
    """A claim, and how far it has come."""

    claim: Claim
    request: LockRequest
    lease: Optional[SessionLease]
    queued: str = "no"
    """Whether a connection waits for it: one that has waited for this lock before (`again`), or another (`first`)."""


@dataclass(frozen=True)
class Acquire:
    main: MainSession
    waiting: WaitingSessions
    in_turn: Callable[[Callable[[], Awaitable[List[_Attempt]]]], Awaitable[List[_Attempt]]]

    async def __call__(self, claims: Sequence[Claim]) -> List[Union[Grant, Refusal, Exception]]:
        if not claims:
            return []
        attempts = await self.in_turn(lambda: self._take_all(claims))
        refused = [each for each in attempts if each.lease is None]
        rows = await self._holders_of(refused) if refused else []
        return [self._answer(each, rows) for each in attempts]

    def _answer(self, attempt: _Attempt, rows: Sequence[Row]) -> Union[Grant, Refusal, Exception]:
        claim = attempt.claim
        # The connection of a lease may have ended while the other claims of the list were examined. Its loss was
        # reported then, when the core did not know of the lease yet.
        lease = self._lease_of(claim)
        if lease is not None:
            self.waiting.settled(claim.claim_id)
            return grant_of(claim, lease)
        if attempt.lease is not None:
            return StoreError(f'the connection that was granted "{claim.lock_name}" has ended')
        return Refusal(
            holder=holder_of(claim.lock_name, rows),
            ask_again_ms=_ASK_AGAIN_MS[attempt.queued] if claim.waiter_ttl_ms > 0 else None,
            # Grants are reported in order and as they happen. So every grant that is reported after this answer is
            # newer than it, which a time of 0 says.
            answered_at_ms=0,
        )

    async def _take_all(self, claims: Sequence[Claim]) -> List[_Attempt]:
        attempts = [self._attempt(claim) for claim in claims]
        untried = [each for each in attempts if each.lease is None and each.queued == "no"]
        leases = await self.main.try_locks([each.request for each in untried])
        for each, lease in zip(untried, leases):
            each.lease = lease
            if lease is not None:
                # Granted here, while a connection may still be waiting for it.
                await self.waiting.drop(each.claim.claim_id)
            # A queued claim is notified of its grant. One for which no connection is left has to poll.
            elif each.claim.waiter_ttl_ms > 0 and self.waiting.start(each.claim, each.request):
                each.queued = "first"
        return attempts

    def _attempt(self, claim: Claim) -> _Attempt:
        request = _request_of(claim)
        # A claim that already has its lease must not be queued: it would wait for its own lock, or get a second lease
        # that is never released.
        lease = self._lease_of(claim)
        if lease is not None:
            # It asks, so it is not dead. The other claims of the list may take longer than its place lasts.
            self.waiting.settled(claim.claim_id)
        is_queued = (
            lease is None
            and claim.waiter_ttl_ms > 0
            and self.waiting.has_waited_for(request)
            and self.waiting.start(claim, request)
        )
        return _Attempt(claim, request, lease, "again" if is_queued else "no")

    def _lease_of(self, claim: Claim) -> Optional[SessionLease]:
        lease = self.waiting.lease_of(claim.claim_id)
        if lease is not None or self.main.current is None:
            return lease
        return self.main.current.leases.get(claim.claim_id)

    async def _holders_of(self, refused: Sequence[_Attempt]) -> Sequence[Row]:
        """The locks that prevented these claims from being granted.

        Waits, for a bounded time, until the claims that are queued are visible in the server's queue: others must be
        able to see a waiter once its claim is answered.
        """
        queued = [each.claim.claim_id for each in refused if each.queued != "no"]
        loop = asyncio.get_running_loop()
        until = loop.time() + _MAX_VISIBLE_SECONDS
        await self.waiting.sent(queued, _MAX_SENT_SECONDS)
        poll_seconds = _POLL_SECONDS
        while True:
            # Each is on its way into the queue, or to a lock that has become free.
            await self.waiting.served(queued, poll_seconds)
            poll_seconds *= 2
            # A lock that was waited for before changes hands often. Mostly its turn comes before the answer is of use.
            shown = [
                each
                for each in refused
                if each.queued != "again" and self.waiting.lease_of(each.claim.claim_id) is None
            ]
            if not shown:
                return []
            rows = await (await self.main.get()).locks([each.request.key for each in shown])
            visible = {row["pid"] for row in rows}
            pids = self.waiting.pids_of([each.claim.claim_id for each in shown])
            if visible.issuperset(pids) or loop.time() > until:
                return rows


def _request_of(claim: Claim) -> LockRequest:
    shared = claim.mode == "shared"
    return LockRequest(claim.lock_name, claim.claim_id, claim.holder_id, shared, advisory_key(claim.lock_name))


def grant_of(claim: Claim, lease: SessionLease) -> Grant:
    return Grant(lease.fencing_token, claim.ttl_ms, lease.acquired_at_ms)
