"""Permits, for code without an event loop."""

from __future__ import annotations

from typing import Any, Mapping, Optional

from .._instance import DEFAULT_STORE, Store
from .._options import LockDefaults
from ..core.clock import Clock, Random
from ..core.lease import Lease
from ..semaphore import Semaphore
from .instance import SyncInstance
from .lease import SyncLease, SyncLeaseBlock, SyncLockResult, run_acquire, run_hold

__all__ = ["SyncSemaphore"]


class SyncSemaphore(SyncInstance):
    """As `Semaphore`, for code without an event loop. The heartbeat runs in a daemon thread::

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
        holder_id: Optional[str] = None,
        defaults: Optional[LockDefaults] = None,
        call_timeout_seconds: float = 5,
        waiter_ttl_seconds: float = 10,
        clock: Optional[Clock] = None,
        random: Optional[Random] = None,
    ) -> None:
        """The arguments are those of `Semaphore`."""
        self._inner = Semaphore(
            store,
            limit=limit,
            holder_id=holder_id,
            defaults=defaults,
            call_timeout_seconds=call_timeout_seconds,
            waiter_ttl_seconds=waiter_ttl_seconds,
            clock=clock,
            random=random,
        )

    def __enter__(self) -> SyncSemaphore:
        return self

    @property
    def limit(self) -> int:
        """How many permits of a name may be held at once, over all processes."""
        return self._inner.limit

    def acquire(
        self,
        lock_name: str,
        *,
        permits: int = 1,
        timeout_seconds: Optional[float] = None,
        blocking: Optional[bool] = None,
        blocking_timeout_seconds: Optional[float] = None,
        metadata: Optional[Mapping[str, Any]] = None,
        heartbeat: Optional[bool] = None,
        min_hold_seconds: Optional[float] = None,
        max_hold_seconds: Optional[float] = None,
    ) -> SyncLockResult:
        """Asks for permits, all or none. See `Semaphore.acquire`."""
        asking = self._inner.acquire(
            lock_name,
            permits=permits,
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
        permits: int = 1,
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
            permits=permits,
            timeout_seconds=timeout_seconds,
            blocking=blocking,
            blocking_timeout_seconds=blocking_timeout_seconds,
            metadata=metadata,
            heartbeat=heartbeat,
            min_hold_seconds=min_hold_seconds,
            max_hold_seconds=max_hold_seconds,
        )
        return run_hold(asking)

    def permits(
        self,
        lock_name: str,
        *,
        permits: int = 1,
        timeout_seconds: Optional[float] = None,
        blocking: Optional[bool] = None,
        blocking_timeout_seconds: Optional[float] = None,
        metadata: Optional[Mapping[str, Any]] = None,
        heartbeat: Optional[bool] = None,
        min_hold_seconds: Optional[float] = None,
        max_hold_seconds: Optional[float] = None,
    ) -> SyncLeaseBlock[Lease, SyncLease]:
        """`with semaphore.permits("name"):` holds permits while the block runs. See `Semaphore.permits`."""
        block = self._inner.permits(
            lock_name,
            permits=permits,
            timeout_seconds=timeout_seconds,
            blocking=blocking,
            blocking_timeout_seconds=blocking_timeout_seconds,
            metadata=metadata,
            heartbeat=heartbeat,
            min_hold_seconds=min_hold_seconds,
            max_hold_seconds=max_hold_seconds,
        )
        return SyncLeaseBlock(block, SyncLease)
