"""A lease in the synchronous API, and the block that runs under it."""

from __future__ import annotations

import threading
from contextvars import Token
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Callable, Generic, Literal, Mapping, Optional, Type, TypeVar, Union

from .._block import LeaseBlock
from .._reentry import Frame, current_frame
from .._result import LockResult, NotAcquired
from ..core.lease import Lease
from ..core.lock_info import LockInfo
from ..errors import HoldfastError, LeaseLostError
from .portal import portal

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
        if self._lease.peek_held():
            return None
        # Not in this thread: noticing a loss calls what waits for it.
        return portal().call(lambda: self._lease.lost.error)

    def wait(self, timeout_seconds: Optional[float] = None) -> bool:
        """Waits until the lease is lost, at most this long. Like waiting for any event, it goes on if the lease is
        released. True if it was lost."""
        lost = threading.Event()

        def notify(_: LeaseLostError) -> None:
            lost.set()

        portal().call(lambda: self._lease.add_loss_callback(notify))
        try:
            return lost.wait(timeout_seconds)
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
        """Is set when the lease is lost: `lease.lost.is_set()`, `lease.lost.wait(timeout_seconds)`."""
        return SyncLostEvent(self._lease)

    @property
    def info(self) -> LockInfo:
        """What a log or a response shows of the lease."""
        return self._lease.info

    def assert_held(self) -> None:
        """Raises `LeaseLostError` if the lease was lost, and `NotHeldError` if it was released."""
        if not self._lease.peek_held():
            portal().call(self._lease.assert_held)

    def extend(self, seconds: float) -> bool:
        """Sets the lease to end `seconds` from now. False if it is no longer held.

        Raises `StoreError` if it is unknown whether it was extended.
        """
        return portal().run(self._lease.extend(seconds))

    def release(self) -> bool:
        """True if the lease was still held.

        Raises `StoreError` if the store did not answer. The release is then sent again in the background.
        """
        return portal().run(self._lease.release())

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
        return f"<SyncLease {self.lock_name!r} token {self.fencing_token}, {state}>"


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


def sync_result(result: LockResult) -> SyncLockResult:
    return result if isinstance(result, NotAcquired) else SyncAcquired(SyncLease(result.lease))


async def discard_result(result: LockResult) -> None:
    """For a caller that was interrupted and does not get its lease."""
    if result.lease is not None:
        await discard_lease(result.lease)


async def discard_lease(lease: Lease) -> None:
    try:
        await lease.release()
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
        self._token: Optional[Token[Optional[Frame]]] = None

    def __enter__(self) -> U:
        block = self._block

        async def leave(_: T) -> None:
            await block.__aexit__(None, None, None)

        value = portal().run(block.__aenter__(), leave)
        # The same name inside the block is entered again. The event loop's own context knows nothing of this thread.
        self._token = current_frame.set(block.frame)
        return self._shown(value)

    def __exit__(
        self,
        exc_type: Optional[Type[BaseException]],
        exc: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        if self._token is not None:
            try:
                current_frame.reset(self._token)
            except ValueError:
                pass  # The block ends in another context than it began in.
            self._token = None
        portal().run(self._block.__aexit__(exc_type, exc, traceback))
