"""A lease in the synchronous API, and the block that runs under it."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Callable, Coroutine, Generic, Literal, Mapping, Optional, Type, TypeVar, Union

from .._block import LeaseBlock
from .._inner_lease import beneath
from .._reentry import is_in_generator, leave_ended_frames
from .._result import LockResult, NotAcquired
from ..core.arguments import Seconds, wait_ms_from
from ..core.emitter import current_frame
from ..core.lease import HeldLease, Lease
from ..core.lock_info import LockInfo
from ..errors import HoldfastError, LeaseLostError
from .portal import portal, run_surely

T = TypeVar("T")
U = TypeVar("U")


class SyncLostEvent:
    """Is set when a lease was lost. A lease that was released was not lost."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    def is_set(self) -> bool:
        return self.error is not None

    @property
    def error(self) -> Optional[LeaseLostError]:
        """Why the lease was lost, or None."""
        return self._lease.loss_error

    def wait(self, seconds: Optional[Seconds] = None) -> bool:
        """Waits until the lease is lost, at most this long. Like waiting for any event, it goes on if the lease is
        released. True if it was lost."""
        timeout = None if seconds is None else wait_ms_from("seconds", seconds) / 1_000
        lost = threading.Event()

        def notify(_: LeaseLostError) -> None:
            lost.set()

        def watch() -> None:
            # An instance that is being closed asks its blocks to stop while their leases are still held.
            if self._lease.lost.is_set():
                lost.set()
            else:
                self._lease.add_loss_callback(notify)

        portal().call(watch)
        try:
            return lost.wait(timeout)
        finally:
            portal().call(lambda: self._lease.remove_loss_callback(notify))

    def __repr__(self) -> str:
        return f"<SyncLostEvent {'set' if self.is_set() else 'not set'}>"


class SyncLease:
    """A granted claim. It ends by release, expiry or loss.

    A thread cannot be cancelled. So check `held`, or call `assert_held()`, before each step that relies on the lock,
    and pass `fencing_token` to the resource that the lock protects.
    """

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    @property
    def lock_name(self) -> str:
        return self._lease.lock_name

    @property
    def holder_id(self) -> str:
        return self._lease.holder_id

    @property
    def fencing_token(self) -> int:
        """Rises with every grant of the lock name. A protected resource rejects a smaller one."""
        return self._lease.fencing_token

    @property
    def metadata(self) -> Optional[Mapping[str, Any]]:
        return self._lease.metadata

    @property
    def acquired_at(self) -> datetime:
        """On the store's clock, in UTC."""
        return self._lease.acquired_at

    @property
    def expires_at(self) -> datetime:
        """On the store's clock as far as this process knows it; never too late. To decide whether to go on, use
        `held`."""
        return self._lease.expires_at

    @property
    def held(self) -> bool:
        """Whether the lease can be relied on now. It reads the clocks, and asks no other thread."""
        return self._lease.peek_held()

    @property
    def remaining_seconds(self) -> float:
        """How long the lease can be relied on unless it is renewed. 0 if it is not held."""
        return portal().call(lambda: self._lease.remaining_seconds)

    @property
    def lost(self) -> SyncLostEvent:
        """Is set when the lease is lost: `lease.lost.is_set()`, `lease.lost.wait(seconds)`."""
        return SyncLostEvent(self._lease)

    @property
    def info(self) -> LockInfo:
        """What a log or a response shows of the lease."""
        return self._lease.info

    def assert_held(self) -> None:
        """Raises `LeaseLostError` if the lease was lost, and `NotHeldError` if it was released."""
        if not self._lease.peek_held():
            portal().call(self._lease.assert_held)

    def extend(self, seconds: Seconds) -> bool:
        """Sets the lease to end `seconds` from now: they are not added to what is left. False if it is no longer held.

        Raises `StoreError` if it is unknown whether it was extended.
        """
        return portal().run(self._lease.extend(seconds))

    def release(self) -> bool:
        """True if the lease was still held.

        Raises `StoreError` if the store did not answer. The release is then sent again in the background.
        """
        return run_surely(self._lease.release)

    def serialize(self) -> str:
        """Hands the lease over to another process. See `Lease.serialize`. The text is a secret."""
        held = beneath(self._lease)

        async def withdraw(_: str) -> None:
            if isinstance(held, HeldLease):
                await held.withdraw()

        return portal().run(self._lease.serialize(), withdraw)

    def __enter__(self) -> SyncLease:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Releases the lease. An error of the release would hide an error of the block that ends."""
        try:
            self.release()
        except HoldfastError:
            pass

    def __repr__(self) -> str:
        state = "held" if self.held else "not held"
        return f"<SyncLease {self.lock_name!r} of {self.holder_id}, token {self.fencing_token}, {state}>"


@dataclass(frozen=True)
class SyncAcquired:
    """The lock is held. True in a condition."""

    lease: SyncLease
    acquired: Literal[True] = True
    holder: None = None
    error: None = None

    def __bool__(self) -> Literal[True]:
        return True


SyncLockResult = Union[SyncAcquired, NotAcquired]


def run_acquire(acquiring: Callable[[], Coroutine[Any, Any, LockResult]]) -> SyncLockResult:
    """The result is wrapped in the event loop: here, an interrupt could come between the lease and its wrapper."""

    async def acquire() -> SyncLockResult:
        result = await acquiring()
        return result if isinstance(result, NotAcquired) else SyncAcquired(SyncLease(result.lease))

    async def discard(result: SyncLockResult) -> None:
        if result.lease is not None:
            await _discard(result.lease)

    return portal().run(acquire(), discard)


def run_hold(holding: Callable[[], Coroutine[Any, Any, Lease]]) -> SyncLease:
    async def hold() -> SyncLease:
        return SyncLease(await holding())

    return portal().run(hold(), _discard)


async def _discard(lease: SyncLease) -> None:
    """For a caller that was interrupted and does not get its lease."""
    try:
        await lease._lease.release()
    except HoldfastError:
        pass


class SyncLeaseBlock(Generic[T, U]):
    """`with lock.lock(name) as lease:` – a block that runs under leases. A heartbeat in a daemon thread renews them.

    A thread cannot be cancelled, so a block whose lease is lost goes on. It raises the `LeaseLostError` when it ends,
    unless it raises an error of its own.
    """

    def __init__(self, block: LeaseBlock[T], shown: Callable[[T], U]) -> None:
        self._block = block
        self._shown = shown
        self._entered = False

    def __repr__(self) -> str:
        return f"<SyncLeaseBlock around {self._block!r}>"

    def __enter__(self) -> U:
        return self.enter(is_in_generator(sys._getframe().f_back))

    def enter(self, in_generator: bool) -> U:
        """`in_generator`: other code of this thread runs while the block is suspended."""
        block, thread_id = self._block, threading.get_ident()

        async def enter() -> U:
            value = await block.enter(in_generator, thread_id)
            self._entered = True
            return self._shown(value)

        async def discard(_: U) -> None:
            await self._leave(None, thread_id)

        try:
            shown = portal().run(enter(), discard)
            # The same name inside the block is entered again. The event loop knows nothing of this thread's context.
            if block.frame is not None:
                current_frame.set(block.frame)
            block.begin_running()
            return shown
        except BaseException:
            # Interrupted in the last step, by Ctrl-C or by any error that a signal handler raises. `with` does not
            # leave a block that it has not entered.
            if self._entered:
                portal().start(self._leave(None, thread_id))
            raise

    def __exit__(
        self,
        exc_type: Optional[Type[BaseException]],
        exc: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        # Like `run_surely`, but without another function, at whose beginning an interrupt could come.
        try:
            self._block.end_running(exc_type, exc, traceback)
            portal().run(self._leave(exc, threading.get_ident()), is_end=True)
        except BaseException:
            portal().start(self._leave(exc, threading.get_ident()))
            raise
        finally:
            leave_ended_frames()

    def __del__(self) -> None:
        """An interrupt at the very beginning of `__exit__` leaves nothing else that could release the lease."""
        # It is missing if the interrupt came in the constructor.
        if getattr(self, "_entered", False):
            portal().start(self._leave(None, 0))

    async def _leave(self, exc: Optional[BaseException], thread_id: int) -> None:
        if self._entered:
            self._entered = False
            await self._block.leave(exc, thread_id)
