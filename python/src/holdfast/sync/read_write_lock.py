"""Readers and writers, for code without an event loop."""

from __future__ import annotations

from typing import Any, Mapping, Optional

from .._instance import DEFAULT_STORE, Store
from .._options import LockDefaults
from ..core.clock import Clock, Random
from ..core.lease import Lease
from ..read_write_lock import ReadWriteLock
from .instance import SyncInstance
from .lease import SyncLease, SyncLeaseBlock, SyncLockResult, run_acquire, run_hold

__all__ = ["SyncReadWriteLock"]


class SyncReadWriteLock(SyncInstance):
    """As `ReadWriteLock`, for code without an event loop. The heartbeat runs in a daemon thread::

        prices = SyncReadWriteLock("redis://localhost:6379")
        with prices.read("prices"):
            price = look_up("apple")
    """

    _inner: ReadWriteLock

    def __init__(
        self,
        store: Store = DEFAULT_STORE,
        *,
        holder_id: Optional[str] = None,
        defaults: Optional[LockDefaults] = None,
        call_timeout_seconds: float = 5,
        waiter_ttl_seconds: float = 10,
        clock: Optional[Clock] = None,
        random: Optional[Random] = None,
    ) -> None:
        """The arguments are those of `ReadWriteLock`."""
        self._inner = ReadWriteLock(
            store,
            holder_id=holder_id,
            defaults=defaults,
            call_timeout_seconds=call_timeout_seconds,
            waiter_ttl_seconds=waiter_ttl_seconds,
            clock=clock,
            random=random,
        )

    def __enter__(self) -> SyncReadWriteLock:
        return self

    def acquire_read(
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
        """Asks for the lock as a reader. See `ReadWriteLock.acquire_read`."""
        asking = self._inner.acquire_read(
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

    def acquire_write(
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
        """Asks for the lock as a writer. See `ReadWriteLock.acquire_write`."""
        asking = self._inner.acquire_write(
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

    def hold_read(
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
        """As `acquire_read`, with a heartbeat by default, and raises `NotAcquiredError` on contention."""
        asking = self._inner.hold_read(
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

    def hold_write(
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
        """As `acquire_write`, with a heartbeat by default, and raises `NotAcquiredError` on contention."""
        asking = self._inner.hold_write(
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

    def read(
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
        """`with lock.read("name") as lease:` holds it as a reader while the block runs. See `ReadWriteLock.read`."""
        block = self._inner.read(
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

    def write(
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
        """`with lock.write("name") as lease:` holds it as a writer while the block runs. See `ReadWriteLock.write`."""
        block = self._inner.write(
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
