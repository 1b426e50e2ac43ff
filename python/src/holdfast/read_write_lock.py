"""Many readers or one writer at a time."""

from __future__ import annotations

from typing import Optional, Unpack

from ._block import LeaseBlock
from ._claims import Claims
from ._instance import DEFAULT_STORE, Closable, Instance, Store
from ._options import EXCLUSIVE, InstanceOptions, LockOptions, SHARED
from ._result import LockResult
from .core.lease import Lease

__all__ = ["ReadWriteLock"]


class ReadWriteLock(Closable):
    """Many readers or one writer at a time. A writer makes the same claim as a `DistributedLock` on this name, so the
    two exclude each other.

    With a driver that has a queue, a writer waits only for the readers before it: later readers queue behind it.
    Without a queue, readers that keep coming can keep a writer waiting. Needs a driver with shared mode; others raise
    an `UnsupportedError` with the reason. Nothing waits unless you ask for it::

        prices = ReadWriteLock("redis://localhost:6379")
        async with prices.read("prices"):
            price = look_up("apple")
        async with prices.write("prices", blocking=True) as lease:
            await import_prices(fencing_token=lease.fencing_token)
    """

    def __init__(
        self,
        store: Store = DEFAULT_STORE,
        *,
        defaults: Optional[LockOptions] = None,
        **options: Unpack[InstanceOptions],
    ) -> None:
        """Opens nothing yet: the first call does. The arguments are those of `DistributedLock`."""
        self._instance = Instance("ReadWriteLock", store, options, ("defaults",))
        self._claims = Claims(self._instance, defaults)

    async def __aenter__(self) -> ReadWriteLock:
        return self

    async def acquire_read(self, lock_name: str, **options: Unpack[LockOptions]) -> LockResult:
        """Asks to read. Contention is a value: the result is false, with the holder if the store knows it. Unless it
        returns a lease, nothing is left behind in the store, also if the task is cancelled.

        The lease is not renewed unless `heartbeat` is true. The options are those of `DistributedLock.acquire`.

        Raises `UnsupportedError` for a driver without shared mode, and what `DistributedLock.acquire` raises.
        """
        return await self._claims.acquire(lock_name, SHARED, options)

    async def acquire_write(self, lock_name: str, **options: Unpack[LockOptions]) -> LockResult:
        """Asks to write. Otherwise as `acquire_read`."""
        return await self._claims.acquire(lock_name, EXCLUSIVE, options)

    async def hold_read(self, lock_name: str, **options: Unpack[LockOptions]) -> Lease:
        """Like `acquire_read`, with a heartbeat by default, and raises `NotAcquiredError` on contention."""
        return await self._claims.hold(lock_name, SHARED, options)

    async def hold_write(self, lock_name: str, **options: Unpack[LockOptions]) -> Lease:
        """Like `acquire_write`, with a heartbeat by default, and raises `NotAcquiredError` on contention."""
        return await self._claims.hold(lock_name, EXCLUSIVE, options)

    def read(self, lock_name: str, **options: Unpack[LockOptions]) -> LeaseBlock[Lease]:
        """`async with lock.read("name") as lease:` runs the block as a reader. A heartbeat renews the lease.

        If the lease is lost, a writer may begin: the block is cancelled and raises `LeaseLostError`. Inside the block,
        reading the same name is entered again without waiting. Waiting to write it raises a `DeadlockError` at once: a
        writer waits for every reader, including this one.

        Raises `NotAcquiredError` if the lock was not acquired in time, and what `acquire_read` raises.
        """
        return self._claims.block(lock_name, SHARED, options)

    def write(self, lock_name: str, **options: Unpack[LockOptions]) -> LeaseBlock[Lease]:
        """Runs the block as the writer. Otherwise as `read`. Inside the block, reading and writing the same name are
        entered again without waiting."""
        return self._claims.block(lock_name, EXCLUSIVE, options)
