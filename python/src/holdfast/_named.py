"""A lock with its name and its options: `payment = lock.named("order:123", timeout_seconds=30)`."""

from __future__ import annotations

import asyncio
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Coroutine, List, Optional, ParamSpec, Type, TypeVar, Unpack
from weakref import WeakKeyDictionary

from ._block import LeaseBlock
from ._entered import Entered
from ._locked import coroutine_function, runs_under
from ._options import EXCLUSIVE, LockOptions, overridden
from ._result import LockResult
from .core.arguments import Seconds, check_lock_name
from .core.lease import Lease

if TYPE_CHECKING:
    from .lock import DistributedLock

P = ParamSpec("P")
R = TypeVar("R")


class NamedLock:
    """One lock of a `DistributedLock`, with its name and its options::

        payment = lock.named("order:123", timeout_seconds=30)

        async with payment as lease:
            await charge(fencing_token=lease.fencing_token)

        @payment
        async def refund() -> None: ...

    It is cheap, and may be shared by all tasks of the event loop. It is only a name: what is held belongs to the task
    that took it, exactly as with the methods of `DistributedLock`, and tasks exclude each other. Inside `async with`
    the same name is entered again, with this object or another one.
    """

    def __init__(self, lock: DistributedLock, lock_name: str, options: LockOptions) -> None:
        """Made by `DistributedLock.named`."""
        self._lock = lock
        self._lock_name = check_lock_name(lock_name)
        self._options = options.copy()
        # Finds mistakes now.
        lock._claims.request(lock_name, EXCLUSIVE, True, options)
        self._entered: Entered[LeaseBlock[Lease]] = Entered()
        self._acquired: WeakKeyDictionary[asyncio.Task[Any], List[Lease]] = WeakKeyDictionary()
        """What each task has acquired through this object. None of it is another task's to release."""

    @property
    def lock_name(self) -> str:
        return self._lock_name

    async def acquire(self, **options: Unpack[LockOptions]) -> LockResult:
        """Like `DistributedLock.acquire`: contention is a value, and nothing renews the lease unless `heartbeat` is
        true. `options` override those of this object."""
        task = _this_task()
        own = self._acquired.setdefault(task, [])
        own[:] = (lease for lease in own if lease.held)
        result = await self._lock.acquire(self._lock_name, **overridden(self._options, options))
        if result.lease is not None:
            own.append(result.lease)
        return result

    async def release(self) -> bool:
        """Releases what this task has acquired last through this object, or the block that it runs in. True if it was
        still held. A task whose `acquire` was refused, or whose lease was lost, releases nothing. A task that has never
        asked for it releases it like `DistributedLock.release`."""
        own = self._acquired.get(_this_task())
        if own:
            return await own.pop().release()
        if own is None:
            return await self._lock.release(self._lock_name)
        return await self._lock._release(self._lock._claims.reentry.innermost(self._lock_name))

    async def extend(self, seconds: Seconds) -> bool:
        """Sets the lease to end `seconds` from now: they are not added to what is left. False if this task does not
        hold it. See `DistributedLock.extend`."""
        own = self._acquired.get(_this_task())
        if own:
            return await own[-1].extend(seconds)
        if own is None:
            return await self._lock.extend(self._lock_name, seconds)
        return await self._lock._extend(self._lock._claims.reentry.innermost(self._lock_name), seconds)

    async def locked(self) -> bool:
        """Whether the store has a lease on the name, of any holder. Like `DistributedLock.is_locked`."""
        return await self._lock.is_locked(self._lock_name)

    def owned(self) -> bool:
        """Whether `release` here would release a lease that is held: one of this task, or of a block around it. It asks
        no store, and is correct in the first statement after a stall."""
        own = self._acquired.get(_this_task())
        claims = self._lock._claims
        if own:
            lease: Optional[Lease] = own[-1]
        elif own is None:
            lease = claims.named(self._lock_name)
        else:
            lease = claims.reentry.innermost(self._lock_name)
        return lease is not None and lease.held

    async def __aenter__(self) -> Lease:
        frame, task = sys._getframe().f_back, asyncio.current_task()
        block = self._lock._claims.block(self._lock_name, EXCLUSIVE, self._options)
        lease = await block.enter_from(frame)
        self._entered.add(frame, task, block)
        return lease

    async def __aexit__(
        self,
        exc_type: Optional[Type[BaseException]],
        exc: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        block = self._entered.take(sys._getframe().f_back, asyncio.current_task())
        await block.__aexit__(exc_type, exc, traceback)

    def __call__(self, function: Callable[P, Awaitable[R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        """`@payment` runs each call of a coroutine function under the lock. A call whose lock is held raises
        `NotAcquiredError`, unless the options say that it waits."""
        coroutine_function(function)
        return runs_under(function, lambda _: self._lock._claims.block(self._lock_name, EXCLUSIVE, self._options))

    def __repr__(self) -> str:
        return f"<NamedLock {self._lock_name!r} of {self._lock!r}>"


def _this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("use a NamedLock in a task of an event loop; SyncNamedLock is for threads")
    return task
