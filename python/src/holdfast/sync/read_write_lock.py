"""Readers and writers, for code without an event loop."""

from __future__ import annotations

from typing import Optional, Unpack

from .._instance import DEFAULT_STORE, Store
from .._options import InstanceOptions, LockOptions
from ..core.lease import Lease
from ..read_write_lock import ReadWriteLock
from .instance import SyncInstance
from .lease import SyncLease, SyncLeaseBlock, SyncLockResult, run_acquire, run_hold

__all__ = ["SyncReadWriteLock"]


class SyncReadWriteLock(SyncInstance):
    """Like `ReadWriteLock`, for code without an event loop. The heartbeat runs in a daemon thread::

        prices = SyncReadWriteLock("redis://localhost:6379")
        with prices.read("prices"):
            price = look_up("apple")
    """

    _inner: ReadWriteLock

    def __init__(
        self,
        store: Store = DEFAULT_STORE,
        *,
        defaults: Optional[LockOptions] = None,
        **options: Unpack[InstanceOptions],
    ) -> None:
        """The arguments are those of `ReadWriteLock`."""
        self._inner = ReadWriteLock(
            store,
            defaults=defaults,
            **options,
        )

    def __enter__(self) -> SyncReadWriteLock:
        return self

    def acquire_read(self, lock_name: str, **options: Unpack[LockOptions]) -> SyncLockResult:
        """Asks for the lock as a reader. See `ReadWriteLock.acquire_read`."""
        return run_acquire(lambda: self._inner.acquire_read(lock_name, **options))

    def acquire_write(self, lock_name: str, **options: Unpack[LockOptions]) -> SyncLockResult:
        """Asks for the lock as a writer. See `ReadWriteLock.acquire_write`."""
        return run_acquire(lambda: self._inner.acquire_write(lock_name, **options))

    def hold_read(self, lock_name: str, **options: Unpack[LockOptions]) -> SyncLease:
        """Like `acquire_read`, with a heartbeat by default, and raises `NotAcquiredError` on contention."""
        return run_hold(lambda: self._inner.hold_read(lock_name, **options))

    def hold_write(self, lock_name: str, **options: Unpack[LockOptions]) -> SyncLease:
        """Like `acquire_write`, with a heartbeat by default, and raises `NotAcquiredError` on contention."""
        return run_hold(lambda: self._inner.hold_write(lock_name, **options))

    def read(self, lock_name: str, **options: Unpack[LockOptions]) -> SyncLeaseBlock[Lease, SyncLease]:
        """`with lock.read("name") as lease:` holds it as a reader while the block runs. See `ReadWriteLock.read`."""
        block = self._inner.read(lock_name, **options)
        return SyncLeaseBlock(block, SyncLease)

    def write(self, lock_name: str, **options: Unpack[LockOptions]) -> SyncLeaseBlock[Lease, SyncLease]:
        """`with lock.write("name") as lease:` holds it as a writer while the block runs. See `ReadWriteLock.write`."""
        block = self._inner.write(lock_name, **options)
        return SyncLeaseBlock(block, SyncLease)
