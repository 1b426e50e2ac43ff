"""The connections that wait in the server's own queue."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Awaitable, Callable, Dict, Iterable, List, Optional, Sequence

from ...core.driver import Claim
from ...core.tasks import Background, ignore_outcome, start_task
from .held_locks import LockRequest, SessionLease
from .session import Session

_MAX_IDLE = 2
_CANCEL_AGAIN_SECONDS = 0.02


@dataclass(eq=False)
class _Waiter:
    claim: Claim
    request: LockRequest
    session: Optional[Session] = None
    over: bool = False
    """The claim has been given up."""
    granted: bool = False
    timer: Optional[asyncio.TimerHandle] = None
    ends_at: float = 0
    sent: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when its request was sent, or has failed."""
    done: Optional["asyncio.Task[None]"] = None
    """Ends when it does not wait any more, granted or not."""


class WaitingSessions:
    """Each session waits for one lock, for the one claim of this process that is next for it.

    Then it keeps the lock that it was granted.
    """

    def __init__(
        self,
        *,
        open_session: Callable[[], Awaitable[Session]],
        cancel: Callable[[Session], Awaitable[None]],
        max_sessions: int,
        granted: Callable[[Claim, SessionLease, float], None],
    ) -> None:
        """`cancel` removes a session from the server's queue. `max_sessions`: that wait, or hold what they waited for.

        `granted` gets how many milliseconds the lease is kept if its claim does not ask for it.
        """
        self._open = open_session
        self._cancel = cancel
        self._max_sessions = max_sessions
        self._on_granted = granted
        self._waiters: Dict[str, _Waiter] = {}
        self._idle: List[Session] = []
        self._closed = False
        self._background = Background()

    @property
    def sessions(self) -> List[Session]:
        return [waiter.session for waiter in self._waiters.values() if waiter.session is not None]

    def lease_of(self, claim_id: str) -> Optional[SessionLease]:
        """The lease that a claim was granted while it waited."""
        waiter = self._waiters.get(claim_id)
        if waiter is None or waiter.session is None or waiter.session.lost is not None:
            return None
        return waiter.session.leases.get(claim_id)

    def has_waited_for(self, request: LockRequest) -> bool:
        """Whether an idle connection has waited for this lock before.

        Then a claim that may wait goes straight to the queue: such a lock is seldom free, and if it is, the queue
        grants it at once.
        """
        return any(idle.waited_for == request.key and idle.lost is None for idle in self._idle)

    def start(self, claim: Claim, request: LockRequest) -> bool:
        """Queues a claim, or keeps it queued for `waiter_ttl_ms` more. False: no connection is left to wait with."""
        before = self._waiters.get(claim.claim_id)
        if before is not None:
            self._keep(before)
            return True
        if len(self._waiters) >= self._max_sessions or self._closed:
            return False
        waiter = _Waiter(claim, request)
        self._waiters[claim.claim_id] = waiter
        self._keep(waiter)
        waiter.done = self._background.start(self._wait(waiter))
        return True

    async def sent(self, claim_ids: Iterable[str], max_seconds: float) -> None:
        """Returns when the requests of all these claims were sent, or after this time. Some connections open first."""
        opening = [each for each in self._waiters_of(claim_ids) if each.session is None]
        tasks = [asyncio.ensure_future(waiter.sent.wait()) for waiter in opening]
        if tasks:
            await asyncio.wait(tasks, timeout=max_seconds)
        for task in tasks:
            task.cancel()

    async def served(self, claim_ids: Iterable[str], max_seconds: float) -> None:
        """Returns when none of these claims waits any more, granted or not, or after this time."""
        tasks = [each.done for each in self._waiters_of(claim_ids) if each.done is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=max_seconds)

    def pids_of(self, claim_ids: Iterable[str]) -> List[str]:
        """The process ids of the connections that wait for these claims."""
        return [
            waiter.session.pid
            for waiter in self._waiters_of(claim_ids)
            if waiter.session is not None and not waiter.over and not waiter.granted
        ]

    def keep(self, session: Session) -> None:
        """A connection that was opened in advance, so that the first waiter does not have to wait for that."""
        if self.is_empty:
            self._keep_idle(session)
        else:
            self._background.start(_end_quietly(session))

    @property
    def is_empty(self) -> bool:
        """It may have connections, and has none."""
        return self._max_sessions > 0 and not self._idle and not self._waiters

    def settled(self, claim_id: str) -> None:
        """The claim knows of its lease. So it does not have to ask again to keep it."""
        waiter = self._waiters.get(claim_id)
        if waiter is not None and waiter.timer is not None:
            waiter.timer.cancel()

    async def stop(self, claim_id: str) -> None:
        """Removes the claim from the server's queue. A lease that it already has stays."""
        waiter = self._waiters.get(claim_id)
        if waiter is not None and not (waiter.session is not None and claim_id in waiter.session.leases):
            await self._leave(waiter)

    async def drop(self, claim_id: str) -> None:
        """For a claim that was granted its lease on another session: removes it from the queue.

        Also releases the lease that it was granted there. Readers do not exclude each other, so both can be granted at
        the same moment, and the second lease would never be released.
        """
        waiter = self._waiters.get(claim_id)
        if waiter is None:
            return
        lease = self.lease_of(claim_id)
        if not waiter.granted or waiter.session is None or lease is None:
            await self._leave(waiter)
            return
        self._forget(waiter)
        await waiter.session.unlock([lease])
        self._keep_idle(waiter.session)

    def reuse_released(self) -> None:
        """Keeps the connections whose lock was released, for the next waiter."""
        for waiter in list(self._waiters.values()):
            if waiter.granted and waiter.session is not None and waiter.claim.claim_id not in waiter.session.leases:
                self._forget(waiter)
                self._keep_idle(waiter.session)

    async def close(self) -> None:
        self._closed = True
        sessions = self.sessions
        waiters = list(self._waiters.values())
        await asyncio.gather(*(self._leave(each) for each in waiters if not each.granted), return_exceptions=True)
        for waiter in waiters:
            self._forget(waiter)
        # They are not used any more, even if closing fails.
        ends = [each.end() for each in [*sessions, *self._idle]]
        await asyncio.gather(*ends, return_exceptions=True)
        self._idle = []

    async def _wait(self, waiter: _Waiter) -> None:
        session: Optional[Session] = None
        try:
            session = self._take_idle(waiter.request) or await self._open()
            if waiter.over:
                return
            waiter.session = session
            turn = start_task(session.wait(waiter.request))
            turn.add_done_callback(ignore_outcome)
            waiter.sent.set()
            lease = await asyncio.shield(turn)
            waiter.granted = True
            if waiter.over:
                await session.unlock([lease])
            else:
                self._on_granted(waiter.claim, lease, max(0.0, waiter.ends_at - self._now()) * 1000)
        except Exception:
            pass  # Canceled, or the store is down. The claim asks again, gets the error then, and is queued again.
        finally:
            waiter.sent.set()
            if waiter.over or not waiter.granted:
                self._forget(waiter)
                # While it is being removed from the queue, another cancel may come. It must not hit the wait of
                # another claim.
                if session is not None and not (waiter.over and waiter.session is session):
                    self._keep_idle(session)

    async def _leave(self, waiter: _Waiter) -> None:
        waiter.over = True
        self._forget(waiter)
        session, done = waiter.session, waiter.done
        if done is None:
            return
        if session is not None:
            # Repeated, because a cancel that comes before the server has begun to wait has no effect. If the server
            # does not answer, ending the connection has to do.
            while not done.done():
                try:
                    await self._cancel(session)
                except Exception:
                    await _end_quietly(session)
                await asyncio.wait({done}, timeout=_CANCEL_AGAIN_SECONDS)
            self._keep_idle(session)
        await asyncio.wait({done})

    def _forget(self, waiter: _Waiter) -> None:
        if waiter.timer is not None:
            waiter.timer.cancel()
        if self._waiters.get(waiter.claim.claim_id) is waiter:
            del self._waiters[waiter.claim.claim_id]

    def _take_idle(self, request: LockRequest) -> Optional[Session]:
        self._idle = [idle for idle in self._idle if idle.lost is None]
        if not self._idle:
            return None
        known = [index for index, idle in enumerate(self._idle) if idle.waited_for == request.key]
        return self._idle.pop(known[0] if known else -1)

    def _keep_idle(self, session: Session) -> None:
        if session.lost is None and len(self._idle) < _MAX_IDLE and not self._closed:
            self._idle.append(session)
        else:
            self._background.start(_end_quietly(session))

    def _keep(self, waiter: _Waiter) -> None:
        """A claim that does not ask again within its `waiter_ttl_ms` is dead: its place or lease is given up."""
        if waiter.timer is not None:
            waiter.timer.cancel()
        seconds = waiter.claim.waiter_ttl_ms / 1000
        waiter.ends_at = self._now() + seconds
        waiter.timer = asyncio.get_running_loop().call_later(seconds, self._give_up, waiter)

    def _give_up(self, waiter: _Waiter) -> None:
        session = waiter.session
        if session is None or waiter.claim.claim_id not in session.leases:
            self._background.start(self._leave(waiter))
            return
        self._forget(waiter)
        self._background.start(_end_quietly(session))

    def _waiters_of(self, claim_ids: Iterable[str]) -> Sequence[_Waiter]:
        return [self._waiters[claim_id] for claim_id in claim_ids if claim_id in self._waiters]

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


async def _end_quietly(session: Session) -> None:
    """The session is not used any more, even if closing fails."""
    try:
        await session.end()
    except Exception:
        pass
