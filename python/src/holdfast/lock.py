"""The lock."""

from __future__ import annotations

import asyncio
from typing import Any, List, Mapping, Optional, Sequence

from ._block import LeaseBlock
from ._claims import Claims
from ._inspect import LockInspection, force_release, inspect_lock, is_locked
from ._instance import DEFAULT_STORE, Closable, Instance, Store
from ._options import EXCLUSIVE, LockDefaults
from ._reacquire import ExtendingClaims
from ._result import LockResult
from ._several import SeveralBlock, check_names, in_order
from .core.arguments import check_lock_name, check_one_of, ttl_ms_from
from .core.clock import Clock, Random
from .core.lease import HeldLease, Lease
from .core.lock_info import LockInfo

__all__ = ["DistributedLock"]


class DistributedLock(Closable):
    """Makes sure that only one process, and only one task of it, does a job at a time.

    Share one instance in a process. Its tasks exclude each other as they exclude other processes. Nothing waits unless
    you ask for it with `blocking` or `blocking_timeout_seconds`::

        lock = DistributedLock("redis://localhost:6379")
        async with lock.lock("order:123") as lease:
            await ship(123, fencing_token=lease.fencing_token)
    """

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
        """Opens nothing yet: the first call does. Raises `InvalidArgumentError`.

        `store`: the URL of a store, a client or database handle that you have, or a driver. Without it, `HOLDFAST_URL`
        names the store; without that, it is a SQLite file, which excludes only the processes of this machine. None and
        an empty string, as from a variable that is not set, are errors and never select the default.

        `holder_id`: identifies this instance to others. By default host name, process id and a random part.

        `reacquire`: what happens when this instance asks for a lock that it already holds. `"refuse"`: it is refused,
        or waits, like any other claim. `"extend"`: its lease is extended, and the call gets it.

        `call_timeout_seconds`: how long a call to the store may take. After that its outcome is unknown, a
        `StoreError`. `waiter_ttl_seconds`: how long a waiter that died can delay the waiters behind it.

        `clock` and `random` are for tests.
        """
        self._instance = Instance(
            "DistributedLock",
            store,
            holder_id=holder_id,
            call_timeout_seconds=call_timeout_seconds,
            waiter_ttl_seconds=waiter_ttl_seconds,
            clock=clock,
            random=random,
        )
        extends = check_one_of("reacquire", reacquire, ("refuse", "extend")) == "extend"
        self._claims = ExtendingClaims(self._instance, defaults) if extends else Claims(self._instance, defaults)

    async def __aenter__(self) -> DistributedLock:
        return self

    async def acquire(
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
    ) -> LockResult:
        """Asks for the lock. Contention is a value: the result is false, with the holder if the store knows it. Unless
        it returns a lease, nothing is left behind in the store, also if the task is cancelled.

        The lease is not renewed unless `heartbeat` is true. Release or extend it yourself.

        `timeout_seconds`: the lease's time to live, 30 by default. `blocking`: whether to wait for a lock that is held,
        false by default. `blocking_timeout_seconds`: how long, 10 by default; it implies `blocking`. `metadata`: a JSON
        object that is shown to everyone who asks who holds the lock. `heartbeat`: renews the lease until it is
        released. `min_hold_seconds`: a release before this time keeps the lock until then. `max_hold_seconds`: the
        heartbeat stops renewing after this time.

        Raises `StoreError` if it is unknown whether the lock is held, `InvalidArgumentError`, `OverloadError`,
        `ClosedError`, and what `connect` raises if this call opens the store.
        """
        return await self._claims.acquire(
            lock_name,
            EXCLUSIVE,
            timeout_seconds=timeout_seconds,
            blocking=blocking,
            blocking_timeout_seconds=blocking_timeout_seconds,
            metadata=metadata,
            heartbeat=heartbeat,
            min_hold_seconds=min_hold_seconds,
            max_hold_seconds=max_hold_seconds,
        )

    async def hold(
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
    ) -> Lease:
        """As `acquire`, with a heartbeat by default, and raises `NotAcquiredError` on contention. For a lease that
        outlives a block; `lock` is safer for all others."""
        return await self._claims.hold(
            lock_name,
            EXCLUSIVE,
            timeout_seconds=timeout_seconds,
            blocking=blocking,
            blocking_timeout_seconds=blocking_timeout_seconds,
            metadata=metadata,
            heartbeat=heartbeat,
            min_hold_seconds=min_hold_seconds,
            max_hold_seconds=max_hold_seconds,
        )

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
    ) -> LeaseBlock[Lease]:
        """`async with lock.lock("name") as lease:` holds the lock while the block runs. A heartbeat renews the lease.

        If the lease is lost, the block is cancelled and raises `LeaseLostError`. A cancellation from outside releases
        the lock and goes on. Inside the block, and in tasks that it starts, the same name is entered again without
        waiting. The options are those of `acquire`.

        Raises `NotAcquiredError` if the lock was not acquired in time, and what `acquire` raises.
        """
        return self._claims.block(
            lock_name,
            EXCLUSIVE,
            timeout_seconds=timeout_seconds,
            blocking=blocking,
            blocking_timeout_seconds=blocking_timeout_seconds,
            metadata=metadata,
            heartbeat=heartbeat,
            min_hold_seconds=min_hold_seconds,
            max_hold_seconds=max_hold_seconds,
        )

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
    ) -> LeaseBlock[List[Lease]]:
        """`async with lock.locks(["a", "b"]) as leases:` holds all of the names or none. At most 100.

        All names are claimed in one round trip; with a driver that has `groups`, in one step, so that no other client
        sees some of them taken. If one of them is held, nothing is kept. With `blocking`, the names are then taken one
        after the other in the order of their UTF-8 bytes, within one `blocking_timeout_seconds` for all, while those
        already held are renewed. So two calls never wait for each other. `reacquire` does not apply.

        Raises what `lock` raises.
        """
        names = check_names(lock_names)
        options = {
            "timeout_seconds": timeout_seconds,
            "blocking": blocking,
            "blocking_timeout_seconds": blocking_timeout_seconds,
            "metadata": metadata,
            "heartbeat": heartbeat,
            "min_hold_seconds": min_hold_seconds,
            "max_hold_seconds": max_hold_seconds,
        }
        requests = [self._claims.request(name, EXCLUSIVE, True, options) for name in in_order(names)]
        return SeveralBlock(self._claims, names, requests)

    async def release(self, lock_name: str) -> bool:
        """Releases this instance's lease on the name. True if it was still held.

        Inside `lock` it ends the innermost entry. When that block's own lease has ended, it is false, and never touches
        the lease of another task. From outside, the block that runs there loses its lock: it is cancelled and raises
        `LeaseLostError`. A cancellation ends the wait for the answer, never the release itself.

        Raises `StoreError` if the store did not answer. The release is then sent again in the background.
        """
        lock_name = check_lock_name(lock_name)
        self._instance.assert_not_ended()
        lease = self._claims.named(lock_name)
        if lease is None:
            return False
        if isinstance(lease, HeldLease):
            return await lease.answer_to(self._claims.begin_end(lease, "it was released by another task"))
        return await lease.release()

    async def extend(self, lock_name: str, additional_seconds: float) -> bool:
        """Sets this instance's lease on the name to end `additional_seconds` from now. False if it does not hold it.

        Raises `StoreError` if it is unknown whether the lease was extended.
        """
        lock_name = check_lock_name(lock_name)
        ttl_ms_from("additional_seconds", additional_seconds)
        self._instance.assert_not_ended()
        lease = self._claims.named(lock_name)
        return lease is not None and await lease.extend(additional_seconds)

    async def release_all(self) -> None:
        """Releases everything that this instance holds. Blocks that run under a lease lose it, as with `release`.

        Raises `StoreError` if the store did not answer one of the releases.
        """
        holder = self._instance.holder
        leases = [] if holder is None else list(holder.leases)
        ends = [self._claims.begin_end(lease, "all locks were released") for lease in leases]
        try:
            answers = await asyncio.gather(*ends, return_exceptions=True)
        except asyncio.CancelledError:
            # As `Lease.answer_to`.
            await asyncio.gather(*(lease.wait_released() for lease in leases))
            raise
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer

    async def force_release(self, lock_name: str, *, by: str) -> List[LockInfo]:
        """Ends the leases on the name of any holder, and returns those that it ended. A newer holder keeps the lock.

        Use it for a holder that is known to be dead, or for a lease that a wrong clock has made absurdly long. `by`
        says who does it: it is in the metadata (`forcedBy`) of the lease that replaces the others for a moment. A
        holder in this process learns of the loss at once, any other at its next renewal at the latest. Until then only
        a fencing token can reject its writes.

        Raises `UnsupportedError` for a driver that cannot take a lock from its holder, and `StoreError`.
        """
        lock_name = check_lock_name(lock_name)
        by = check_lock_name(by, "by")
        self._instance.assert_open()
        return await force_release(await self._instance.open(), lock_name, by)

    async def inspect(self, lock_name: str) -> LockInspection:
        """Shows the holders of the lock and its waiters, of every process and primitive. It writes nothing. The answer
        may be out of date when you read it: to decide whether to do something, acquire the lock."""
        lock_name = check_lock_name(lock_name)
        self._instance.assert_not_ended()
        return await inspect_lock(await self._instance.open(), lock_name)

    async def is_locked(self, lock_name: str) -> bool:
        """Whether the store has a lease on the name, of any holder. Raises `StoreError` if the store could not be
        asked: it never returns false for that."""
        lock_name = check_lock_name(lock_name)
        self._instance.assert_not_ended()
        return await is_locked(await self._instance.open(), lock_name)
