"""The lock, for code without an event loop."""

from __future__ import annotations

from typing import Callable, List, Optional, ParamSpec, Sequence, TypeVar, Union, Unpack

from .._instance import DEFAULT_STORE, Store
from .._locked import lock_name_of, plain_function, sync_runs_under
from .._options import EXCLUSIVE, InstanceOptions, LockOptions
from .._inspect import LockInspection
from ..core.arguments import Seconds
from ..core.lease import Lease
from ..core.lock_info import LockInfo
from ..lock import DistributedLock
from .instance import SyncInstance
from .lease import SyncLease, SyncLeaseBlock, SyncLockResult, run_acquire, run_hold
from .named import SyncNamedLock
from .portal import portal

__all__ = ["SyncDistributedLock"]

P = ParamSpec("P")
R = TypeVar("R")


class SyncDistributedLock(SyncInstance):
    """Like `DistributedLock`, for code without an event loop. The heartbeat runs in a daemon thread::

        lock = SyncDistributedLock("redis://localhost:6379")
        with lock.lock("order:123") as lease:
            ship(123, fencing_token=lease.fencing_token)

    Share one instance in a process. Its threads exclude each other as they exclude other processes.
    """

    _inner: DistributedLock

    def __init__(
        self,
        store: Store = DEFAULT_STORE,
        *,
        reacquire: str = "refuse",
        defaults: Optional[LockOptions] = None,
        **options: Unpack[InstanceOptions],
    ) -> None:
        """The arguments are those of `DistributedLock`."""
        self._inner = DistributedLock(
            store,
            reacquire=reacquire,
            defaults=defaults,
            **options,
        )

    def __enter__(self) -> SyncDistributedLock:
        return self

    def acquire(self, lock_name: str, **options: Unpack[LockOptions]) -> SyncLockResult:
        """Asks for the lock. Contention is a value: the result is false. See `DistributedLock.acquire`."""
        return run_acquire(lambda: self._inner.acquire(lock_name, **options))

    def hold(self, lock_name: str, **options: Unpack[LockOptions]) -> SyncLease:
        """Like `acquire`, with a heartbeat by default, and raises `NotAcquiredError` on contention."""
        return run_hold(lambda: self._inner.hold(lock_name, **options))

    def lock(self, lock_name: str, **options: Unpack[LockOptions]) -> SyncLeaseBlock[Lease, SyncLease]:
        """`with lock.lock("name") as lease:` holds the lock while the block runs. A heartbeat renews the lease.

        If the lease is lost, the block goes on, because a thread cannot be cancelled, and raises `LeaseLostError` when
        it ends. Check `lease.held` before each step that relies on the lock. Inside the block, the same name is entered
        again without waiting.

        Raises `NotAcquiredError` if the lock was not acquired in time, and what `acquire` raises.
        """
        block = self._inner.lock(lock_name, **options)
        return SyncLeaseBlock(block, SyncLease)

    def locks(
        self, lock_names: Sequence[str], **options: Unpack[LockOptions]
    ) -> SyncLeaseBlock[List[Lease], List[SyncLease]]:
        """`with lock.locks(["a", "b"]) as leases:` holds all of the names or none. See `DistributedLock.locks`."""
        block = self._inner.locks(lock_names, **options)
        return SyncLeaseBlock(block, lambda leases: [SyncLease(lease) for lease in leases])

    def named(self, lock_name: str, **options: Unpack[LockOptions]) -> SyncNamedLock:
        """A lock with its name and its options: `payment = lock.named("order:123", timeout_seconds=30)`. It opens and
        sends nothing. See `SyncNamedLock`. Raises `InvalidArgumentError`."""
        return SyncNamedLock(self, lock_name, options)

    def locked(self, template: Union[str, Callable[..., str]], **options: Unpack[LockOptions]) -> SyncLockedDecorator:
        """Decorates a function or method: each call runs under the lock that its arguments name::

            @lock.locked("order:{order_id}", timeout_seconds=30)
            def ship(order_id: int, carrier: str = "post") -> None: ...

        A thread cannot be cancelled: a call whose lease is lost goes on, and raises `LeaseLostError` when it ends. The
        rest is as with `DistributedLock.locked`.
        """
        self._inner._claims.request("checks the options", EXCLUSIVE, True, options)
        return SyncLockedDecorator(self, template, options)

    def current_lease(self) -> SyncLease:
        """The lease of the innermost block of this instance that runs here. See `DistributedLock.current_lease`."""
        return SyncLease(self._inner.current_lease())
    def restore(self, text: str, *, heartbeat: bool = False, timeout_seconds: Optional[Seconds] = None) -> SyncLease:
        """Continues a lease that another process handed over with `lease.serialize()`. See `DistributedLock.restore`.
        """
        return run_hold(lambda: self._inner.restore(text, heartbeat=heartbeat, timeout_seconds=timeout_seconds))

    def release(self, lock_name: str) -> bool:
        """Releases this instance's lease on the name. True if it was still held. See `DistributedLock.release`."""
        return portal().run(self._inner.release(lock_name), is_end=True)

    def extend(self, lock_name: str, seconds: Seconds) -> bool:
        """Sets this instance's lease on the name to end `seconds` from now: they are not added to what is
        left. See `DistributedLock.extend`."""
        return portal().run(self._inner.extend(lock_name, seconds))

    def release_all(self) -> None:
        """Releases everything that this instance holds. Blocks that run under a lease lose it."""
        portal().run(self._inner.release_all(), is_end=True)

    def force_release(self, lock_name: str, *, by: str, end_session: bool = False) -> List[LockInfo]:
        """Ends the leases on the name of any holder, and returns those that it ended. See
        `DistributedLock.force_release`."""
        return portal().run(self._inner.force_release(lock_name, by=by, end_session=end_session))

    def inspect(self, lock_name: str) -> LockInspection:
        """Shows the holders of the lock and its waiters. See `DistributedLock.inspect`."""
        return portal().run(self._inner.inspect(lock_name))

    def is_locked(self, lock_name: str) -> bool:
        """Whether the store has a lease on the name, of any holder."""
        return portal().run(self._inner.is_locked(lock_name))


class SyncLockedDecorator:
    """What `SyncDistributedLock.locked` returns."""

    def __init__(
        self, lock: SyncDistributedLock, template: Union[str, Callable[..., str]], options: LockOptions
    ) -> None:
        self._lock = lock
        self._template = template
        self._options = options

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        plain_function(function)
        name_of = lock_name_of(self._template, function)
        return sync_runs_under(function, lambda call: self._lock.lock(name_of(call), **self._options))
