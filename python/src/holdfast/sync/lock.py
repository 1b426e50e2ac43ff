"""The lock, for code without an event loop."""

from __future__ import annotations

from typing import Any, List, Mapping, Optional, Sequence

from .._instance import DEFAULT_STORE, Store
from .._options import LockDefaults
from .._inspect import LockInspection
from ..core.clock import Clock, Random
from ..core.lease import Lease
from ..core.lock_info import LockInfo
from ..lock import DistributedLock
from .instance import SyncInstance
from .lease import SyncLease, SyncLeaseBlock, SyncLockResult, run_acquire, run_hold
from .portal import portal

__all__ = ["SyncDistributedLock"]


class SyncDistributedLock(SyncInstance):
    """As `DistributedLock`, for code without an event loop. The heartbeat runs in a daemon thread::

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
        holder_id: Optional[str] = None,
        reacquire: str = "refuse",
        defaults: Optional[LockDefaults] = None,
        call_timeout_seconds: float = 5,
        waiter_ttl_seconds: float = 10,
        clock: Optional[Clock] = None,
        random: Optional[Random] = None,
    ) -> None:
        """The arguments are those of `DistributedLock`."""
        self._inner = DistributedLock(
            store,
            holder_id=holder_id,
            reacquire=reacquire,
            defaults=defaults,
            call_timeout_seconds=call_timeout_seconds,
            waiter_ttl_seconds=waiter_ttl_seconds,
            clock=clock,
            random=random,
        )

    def __enter__(self) -> SyncDistributedLock:
        return self

    def acquire(
        self,
        lock_name: str,
        *,
        timeout_seconds: Optional[float] = None,
        blocking: Optional[bool] = None,
        blocking_timeout_seconds: Optional[float] = None,
        metadata: Optional[Mapping[str, Any]] = None,
        heartbeat: Optional[bool] = None,
        min_hold_seconds: Optional[float] = None,
        max_hold_seconds: Optional[float] = None,
    ) -> SyncLockResult:
        """Asks for the lock. Contention is a value: the result is false. See `DistributedLock.acquire`."""
        asking = self._inner.acquire(
            lock_name,
            timeout_seconds=timeout_seconds,
            blocking=blocking,
            blocking_timeout_seconds=blocking_timeout_seconds,
            metadata=metadata,
            heartbeat=heartbeat,
            min_hold_seconds=min_hold_seconds,
            max_hold_seconds=max_hold_seconds,
        )
        return run_acquire(asking)

    def hold(
        self,
        lock_name: str,
        *,
        timeout_seconds: Optional[float] = None,
        blocking: Optional[bool] = None,
        blocking_timeout_seconds: Optional[float] = None,
        metadata: Optional[Mapping[str, Any]] = None,
        heartbeat: Optional[bool] = None,
        min_hold_seconds: Optional[float] = None,
        max_hold_seconds: Optional[float] = None,
    ) -> SyncLease:
        """As `acquire`, with a heartbeat by default, and raises `NotAcquiredError` on contention."""
        asking = self._inner.hold(
            lock_name,
            timeout_seconds=timeout_seconds,
            blocking=blocking,
            blocking_timeout_seconds=blocking_timeout_seconds,
            metadata=metadata,
            heartbeat=heartbeat,
            min_hold_seconds=min_hold_seconds,
            max_hold_seconds=max_hold_seconds,
        )
        return run_hold(asking)

    def lock(
        self,
        lock_name: str,
        *,
        timeout_seconds: Optional[float] = None,
        blocking: Optional[bool] = None,
        blocking_timeout_seconds: Optional[float] = None,
        metadata: Optional[Mapping[str, Any]] = None,
        heartbeat: Optional[bool] = None,
        min_hold_seconds: Optional[float] = None,
        max_hold_seconds: Optional[float] = None,
    ) -> SyncLeaseBlock[Lease, SyncLease]:
        """`with lock.lock("name") as lease:` holds the lock while the block runs. A heartbeat renews the lease.

        If the lease is lost, the block goes on, because a thread cannot be cancelled, and raises `LeaseLostError` when
        it ends. Check `lease.held` before each step that relies on the lock. Inside the block, the same name is entered
        again without waiting.

        Raises `NotAcquiredError` if the lock was not acquired in time, and what `acquire` raises.
        """
        block = self._inner.lock(
            lock_name,
            timeout_seconds=timeout_seconds,
            blocking=blocking,
            blocking_timeout_seconds=blocking_timeout_seconds,
            metadata=metadata,
            heartbeat=heartbeat,
            min_hold_seconds=min_hold_seconds,
            max_hold_seconds=max_hold_seconds,
        )
        return SyncLeaseBlock(block, SyncLease)

    def locks(
        self,
        lock_names: Sequence[str],
        *,
        timeout_seconds: Optional[float] = None,
        blocking: Optional[bool] = None,
        blocking_timeout_seconds: Optional[float] = None,
        metadata: Optional[Mapping[str, Any]] = None,
        heartbeat: Optional[bool] = None,
        min_hold_seconds: Optional[float] = None,
        max_hold_seconds: Optional[float] = None,
    ) -> SyncLeaseBlock[List[Lease], List[SyncLease]]:
        """`with lock.locks(["a", "b"]) as leases:` holds all of the names or none. See `DistributedLock.locks`."""
        block = self._inner.locks(
            lock_names,
            timeout_seconds=timeout_seconds,
            blocking=blocking,
            blocking_timeout_seconds=blocking_timeout_seconds,
            metadata=metadata,
            heartbeat=heartbeat,
            min_hold_seconds=min_hold_seconds,
            max_hold_seconds=max_hold_seconds,
        )
        return SyncLeaseBlock(block, lambda leases: [SyncLease(lease) for lease in leases])

    def release(self, lock_name: str) -> bool:
        """Releases this instance's lease on the name. True if it was still held. See `DistributedLock.release`."""
        return portal().run(self._inner.release(lock_name))

    def extend(self, lock_name: str, additional_seconds: float) -> bool:
        """Sets this instance's lease on the name to end `additional_seconds` from now. False if it does not hold it."""
        return portal().run(self._inner.extend(lock_name, additional_seconds))

    def release_all(self) -> None:
        """Releases everything that this instance holds. Blocks that run under a lease lose it."""
        portal().run(self._inner.release_all())

    def force_release(self, lock_name: str, *, by: str) -> List[LockInfo]:
        """Ends the leases on the name of any holder, and returns those that it ended. See
        `DistributedLock.force_release`."""
        return portal().run(self._inner.force_release(lock_name, by=by))

    def inspect(self, lock_name: str) -> LockInspection:
        """Shows the holders of the lock and its waiters. See `DistributedLock.inspect`."""
        return portal().run(self._inner.inspect(lock_name))

    def is_locked(self, lock_name: str) -> bool:
        """Whether the store has a lease on the name, of any holder."""
        return portal().run(self._inner.is_locked(lock_name))
