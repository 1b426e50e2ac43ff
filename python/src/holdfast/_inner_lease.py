"""One of several uses of a lease."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING, Any, Callable, Mapping, Optional

from .core.arguments import Seconds, ttl_ms_from
from .core.lease import HeldLease, Lease
from .errors import LeaseLostError, NotHeldError

if TYPE_CHECKING:
    from ._reentry import Frame


class InnerLease(Lease):
    """Its release ends only itself, and it never shortens the lease for the others."""

    __slots__ = ("_outer", "_on_end", "_ended", "_lost", "_watches", "_was_last", "_confirming", "frame")

    def __init__(self, outer: Lease, on_end: Callable[[InnerLease], Optional[asyncio.Future[bool]]]) -> None:
        """`on_end` is called once. If this was the last use, it releases the lease and returns that answer."""
        super().__init__()
        self._outer = outer
        self._on_end = on_end
        self._ended = False
        self._lost: Optional[LeaseLostError] = None
        self._watches = False
        self._was_last = False
        """Its end has released the lease."""
        self._confirming: Optional[asyncio.Future[bool]] = None
        """The answer to its end, if others keep the lease."""
        self.frame: Optional[Frame] = None
        """The block whose lease it entered."""

    @property
    def beneath(self) -> Lease:
        """The lease that all its uses share."""
        return beneath(self._outer)

    @property
    def lock_name(self) -> str:
        return self._outer.lock_name

    @property
    def holder_id(self) -> str:
        return self._outer.holder_id

    @property
    def fencing_token(self) -> int:
        return self._outer.fencing_token

    @property
    def acquired_at(self) -> datetime:
        return self._outer.acquired_at

    @property
    def expires_at(self) -> datetime:
        return self._outer.expires_at

    @property
    def metadata(self) -> Optional[Mapping[str, Any]]:
        return self._outer.metadata

    @property
    def held(self) -> bool:
        return not self._ended and self._outer.held

    def peek_held(self) -> bool:
        return not self._ended and self._outer.peek_held()

    @property
    def remaining_seconds(self) -> float:
        return 0.0 if self._ended else self._outer.remaining_seconds

    @property
    def loss_error(self) -> Optional[LeaseLostError]:
        # What happens to the lease after this use has ended is no loss to it.
        return self._lost or (None if self._ended and not self._was_last else self._outer.loss_error)

    def assert_held(self) -> None:
        if self._lost is not None:
            raise self._lost.with_traceback(None)
        self._outer.assert_held()
        if self._ended:
            raise NotHeldError(self.lock_name)

    async def extend(self, seconds: Seconds) -> bool:
        ttl_ms = ttl_ms_from("seconds", seconds)
        if self._ended:
            return False
        if isinstance(self._outer, HeldLease):
            return await self._outer.lengthen(ttl_ms)
        return await self._outer.extend(seconds)

    async def serialize(self) -> str:
        self.assert_held()
        lease = self.beneath
        assert isinstance(lease, HeldLease)
        return await lease.hand_over(is_entered=self.frame is not None or self._outer is not lease)

    def begin_release(self) -> asyncio.Future[bool]:
        held = self.held
        if not self._ended:
            self._ended = True
            releasing = self._on_end(self)
            if releasing is not None:
                self._was_last = True
                # Not earlier: the release of the last use may find out that the lease was lost.
                releasing.add_done_callback(lambda _: self._stop_watching())
                return releasing
            lease = self.beneath
            if held and isinstance(lease, HeldLease):
                # A lease that was ended by force would otherwise go unnoticed until the next heartbeat.
                self._confirming = lease.begin_confirm()
                self._confirming.add_done_callback(self._confirmed)
                return self._confirming
            self._stop_watching()
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        future.set_result(held)
        return future

    async def wait_released(self) -> None:
        if self._was_last:
            await self._outer.wait_released()

    def _confirmed(self, confirming: asyncio.Future[bool]) -> None:
        # A caller that does not wait for the answer reads no error either.
        is_lost = not confirming.cancelled() and confirming.exception() is None and not confirming.result()
        lease = self.beneath
        if is_lost and isinstance(lease, HeldLease) and not lease.has_expired and self._lost is None:
            self._lost = lease.loss_error
        self._stop_watching()

    def pending_release(self) -> Optional[asyncio.Future[bool]]:
        if self._was_last:
            return self._outer.pending_release()
        confirming = self._confirming
        if confirming is None or confirming.done():
            return None
        # Whose cancellation ends no other wait.
        return asyncio.ensure_future(_answer_of(confirming))

    def lose(self, reason: str) -> None:
        """Ends it without a release: the lease itself is about to be released."""
        if self._ended:
            return
        self._ended = True
        self._stop_watching()
        self._lost = LeaseLostError(self.lock_name, self.fencing_token, reason)
        self._report_loss(self._lost)

    def add_loss_callback(self, callback: Callable[[LeaseLostError], None]) -> None:
        super().add_loss_callback(callback)
        if self._loss_callbacks and not self._watches and not self._ended:
            self._watches = True
            self._outer.add_loss_callback(self._report_loss)

    def _stop_watching(self) -> None:
        if self._watches:
            self._watches = False
            self._outer.remove_loss_callback(self._report_loss)


async def _answer_of(confirming: asyncio.Future[bool]) -> bool:
    return await asyncio.shield(confirming)


def beneath(lease: Lease) -> Lease:
    """The lease itself, if this is one of several uses of it."""
    return lease.beneath if isinstance(lease, InnerLease) else lease
