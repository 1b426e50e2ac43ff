"""The connection for locks that are free."""

from __future__ import annotations

import asyncio
from typing import Any, Callable, Coroutine, Dict, List, Optional, Sequence, Tuple

from ...core.tasks import ignore_outcome, start_task
from ...errors import ClosedError
from .held_locks import LockRequest, SessionLease
from .session import Session


class MainSession:
    """The connection that has the locks that were free when they were requested.

    It is opened when it is first needed, and again after it was lost.
    """

    def __init__(self, open_session: Callable[[], Coroutine[Any, Any, Session]]) -> None:
        self._open = open_session
        self._opening: Optional["asyncio.Future[Session]"] = None
        self._session: Optional[Session] = None
        self._closed = False

    @property
    def current(self) -> Optional[Session]:
        """The session, if it is open."""
        return self._session if self._session is not None and self._session.lost is None else None

    async def get(self) -> Session:
        while True:
            if self._closed:
                raise ClosedError("the postgres-advisory driver is closed")
            if self.current is not None:
                return self.current
            if self._opening is None:
                self._opening = start_task(self._open())
                self._opening.add_done_callback(ignore_outcome)
            opening = self._opening
            try:
                # Several calls wait for one opening, and none of them may cancel it.
                self._session = await asyncio.shield(opening)
            finally:
                if opening.done() and self._opening is opening:
                    self._opening = None

    async def try_locks(self, requests: Sequence[LockRequest]) -> List[Optional[SessionLease]]:
        """Requests locks without waiting. Returns one answer each, in order.

        A statement can have a key only once, so requests for the same key go into several rounds.
        """
        answers: List[Optional[SessionLease]] = [None for _ in requests]
        left: List[Tuple[int, LockRequest]] = list(enumerate(requests))
        while left:
            session = await self.get()
            tried: Dict[int, Tuple[int, LockRequest]] = {}
            later: List[Tuple[int, LockRequest]] = []
            for index, request in left:
                own = session.leases.get(request.claim_id)
                if own is not None:
                    answers[index] = own
                elif request.key in tried:
                    later.append((index, request))
                # The server grants a session the same lock any number of times. So exclusion within it is decided here.
                elif not session.excludes(request):
                    tried[request.key] = (index, request)
            leases = await session.try_locks([request for _, request in tried.values()])
            for (index, _), lease in zip(tried.values(), leases):
                answers[index] = lease
            left = later
        return answers

    async def close(self) -> None:
        self._closed = True
        session = self._session
        if self._opening is not None:
            try:
                session = await self._opening
            except Exception:
                pass  # One that failed to open needs no closing.
        if session is not None:
            try:
                await session.end()
            except Exception:
                pass  # It is not used any more, even if closing fails.
