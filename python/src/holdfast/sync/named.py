"""A lock with its name and its options, for code without an event loop."""

from __future__ import annotations

import sys
import threading
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, List, Optional, ParamSpec, Type, TypeVar, Unpack

from .._entered import Entered
from .._locked import plain_function, sync_runs_under
from .._options import EXCLUSIVE, LockOptions, overridden
from .._reentry import is_in_generator
from ..core.arguments import Seconds, check_lock_name
from ..core.lease import Lease
from .lease import SyncLease, SyncLeaseBlock, SyncLockResult
from .portal import portal

if TYPE_CHECKING:
    from .lock import SyncDistributedLock

P = ParamSpec("P")
R = TypeVar("R")


class _Leaving:
    """What leaves the block of one `with`. Only that `with` refers to it, and it alone to the block: an interrupt at
    the very beginning of the end drops both, and the block then releases its lock."""

    __slots__ = ("block", "_lock", "__weakref__")

    def __init__(self, lock: SyncNamedLock) -> None:
        self._lock = lock
        self.block: Optional[SyncLeaseBlock[Lease, SyncLease]] = None

    def __call__(self, *exc_info: Any) -> None:
        block, self.block = self.block, None
        if block is None:
            # Not a `with`, but a call of `__exit__`.
            block = self._lock._entered.take(sys._getframe().f_back, threading.get_ident())
        block.__exit__(*exc_info)


class _LeavingOfWith:
    """`with` looks `__exit__` up before it calls `__enter__`, each time."""

    def __get__(self, lock: Optional[SyncNamedLock], owner: object) -> Callable[..., None]:
        if lock is None:
            # An ExitStack looks it up in the class.
            return lambda of, *exc_info: _Leaving(of)(*exc_info)
        leaving = _Leaving(lock)
        lock._local.leaving = weakref.ref(leaving)
        return leaving


class SyncNamedLock:
    """One lock of a `SyncDistributedLock`, with its name and its options::

        payment = lock.named("order:123", timeout_seconds=30)

        with payment as lease:
            charge(fencing_token=lease.fencing_token)

        @payment
        def refund() -> None: ...

    It is cheap, and may be shared by all threads. It is only a name: what is held belongs to the thread that took it,
    and threads exclude each other. Inside `with` the same name is entered again, with this object or another one.
    """

    def __init__(self, lock: SyncDistributedLock, lock_name: str, options: LockOptions) -> None:
        """Made by `SyncDistributedLock.named`."""
        self._lock = lock
        self._lock_name = check_lock_name(lock_name)
        self._options = options.copy()
        # Finds mistakes now.
        lock._inner._claims.request(lock_name, EXCLUSIVE, True, options)
        self._entered: Entered[SyncLeaseBlock[Lease, SyncLease]] = Entered()
        self._local = _OfThread()

    @property
    def lock_name(self) -> str:
        return self._lock_name

    def acquire(self, **options: Unpack[LockOptions]) -> SyncLockResult:
        """Like `SyncDistributedLock.acquire`: contention is a value, and nothing renews the lease unless `heartbeat` is
        true. `options` override those of this object."""
        own = self._local.acquired = [lease for lease in self._local.acquired or () if lease.held]
        result = self._lock.acquire(self._lock_name, **overridden(self._options, options))
        if result.lease is not None:
            own.append(result.lease)
        return result

    def release(self) -> bool:
        """Releases what this thread has acquired last through this object, or the block that it runs in. True if it was
        still held. See `NamedLock.release`."""
        own = self._local.acquired
        if own:
            return own.pop().release()
        if own is None:
            return self._lock.release(self._lock_name)
        inner = self._lock._inner
        return portal().run(inner._release(inner._claims.reentry.innermost(self._lock_name)), is_end=True)

    def extend(self, seconds: Seconds) -> bool:
        """Sets the lease to end `seconds` from now: they are not added to what is left. False if this thread does not
        hold it. See `DistributedLock.extend`."""
        own = self._local.acquired
        if own:
            return own[-1].extend(seconds)
        if own is None:
            return self._lock.extend(self._lock_name, seconds)
        inner = self._lock._inner
        return portal().run(inner._extend(inner._claims.reentry.innermost(self._lock_name), seconds))

    def locked(self) -> bool:
        """Whether the store has a lease on the name, of any holder. Like `SyncDistributedLock.is_locked`."""
        return self._lock.is_locked(self._lock_name)

    def owned(self) -> bool:
        """Whether `release` here would release a lease that is held: one of this thread, or of a block around it. It
        asks no store."""
        own = self._local.acquired
        if own:
            return own[-1].held
        claims = self._lock._inner._claims
        find = claims.named if own is None else claims.reentry.innermost
        # The newest lease of the instance is looked up in the event loop, in the context of this thread.
        lease = portal().call(lambda: find(self._lock_name))
        return lease is not None and lease.peek_held()

    def __enter__(self) -> SyncLease:
        frame, begun, self._local.leaving = sys._getframe().f_back, self._local.leaving, None
        leaving = None if begun is None else begun()
        block = self._lock.lock(self._lock_name, **self._options)
        # An interrupt before the block is kept drops it, and it then releases its lock.
        lease = block.enter(is_in_generator(frame))
        if leaving is not None:
            leaving.block = block
        else:
            self._entered.add(frame, threading.get_ident(), block)
        return lease

    if TYPE_CHECKING:

        def __exit__(
            self,
            exc_type: Optional[Type[BaseException]],
            exc: Optional[BaseException],
            traceback: Optional[TracebackType],
        ) -> None: ...

    else:
        __exit__ = _LeavingOfWith()

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """`@payment` runs each call of a function under the lock. A call whose lock is held raises `NotAcquiredError`,
        unless the options say that it waits."""
        plain_function(function)
        return sync_runs_under(function, lambda _: self._lock.lock(self._lock_name, **self._options))

    def __repr__(self) -> str:
        return f"<SyncNamedLock {self._lock_name!r} of {self._lock!r}>"


class _OfThread(threading.local):
    """What a thread has acquired through one object. None: it has never asked for it."""

    acquired: Optional[List[SyncLease]] = None
    leaving: Optional[weakref.ref[_Leaving]] = None
    """Of the `with` that begins."""
