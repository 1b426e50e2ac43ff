"""Permits, for code without an event loop."""

from __future__ import annotations

from typing import Optional, Unpack

from .._instance import DEFAULT_STORE, Store
from .._options import InstanceOptions, LockOptions
from ..core.lease import Lease
from ..semaphore import Semaphore
from .instance import SyncInstance
from .lease import SyncLease, SyncLeaseBlock, SyncLockResult, run_acquire, run_hold

__all__ = ["SyncSemaphore"]


class SyncSemaphore(SyncInstance):
    """Like `Semaphore`, for code without an event loop. The heartbeat runs in a daemon thread::

        exports = SyncSemaphore("redis://localhost:6379", limit=3)
        with exports.permits("exports", blocking=True):
            export_report()
    """

    _inner: Semaphore

    def __init__(
        self,
        store: Store = DEFAULT_STORE,
        *,
        limit: int,
        defaults: Optional[LockOptions] = None,
        **options: Unpack[InstanceOptions],
    ) -> None:
        """The arguments are those of `Semaphore`."""
        self._inner = Semaphore(
            store,
            limit=limit,
            defaults=defaults,
            **options,
        )

    def __enter__(self) -> SyncSemaphore:
        return self

    @property
    def limit(self) -> int:
        """How many permits of a name may be held at once, over all processes."""
        return self._inner.limit

    def acquire(
        self, lock_name: str, *, permits: int = 1, **options: Unpack[LockOptions]
    ) -> SyncLockResult:
        """Asks for permits, all or none. See `Semaphore.acquire`."""
        return run_acquire(lambda: self._inner.acquire(lock_name, permits=permits, **options))

    def hold(
        self, lock_name: str, *, permits: int = 1, **options: Unpack[LockOptions]
    ) -> SyncLease:
        """Like `acquire`, with a heartbeat by default, and raises `NotAcquiredError` on contention."""
        return run_hold(lambda: self._inner.hold(lock_name, permits=permits, **options))

    def permits(
        self, lock_name: str, *, permits: int = 1, **options: Unpack[LockOptions]
    ) -> SyncLeaseBlock[Lease, SyncLease]:
        """`with semaphore.permits("name"):` holds permits while the block runs. See `Semaphore.permits`."""
        block = self._inner.permits(lock_name, permits=permits, **options)
        return SyncLeaseBlock(block, SyncLease)
