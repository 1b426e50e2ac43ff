"""The lock."""

from __future__ import annotations

import asyncio
from typing import (
    Any,
    Awaitable,
    Callable,
    Coroutine,
    List,
    Optional,
    ParamSpec,
    Sequence,
    TypeVar,
    Union,
    Unpack,
)

from ._block import LeaseBlock
from ._claims import Claims
from ._inspect import LockInspection, force_release, inspect_lock, is_locked
from ._instance import DEFAULT_STORE, Closable, Instance, Store
from ._locked import coroutine_function, lock_name_of, runs_under
from ._named import NamedLock
from ._options import EXCLUSIVE, InstanceOptions, LockOptions
from ._reacquire import ExtendingClaims
from ._result import LockResult
from ._several import SeveralBlock, check_names, in_order
from .core.arguments import Seconds, check_bool, check_lock_name, check_one_of, ttl_ms_from
from .core.hand_over import read_hand_over
from .core.lease import HeldLease, Lease
from .core.lock_info import LockInfo

__all__ = ["DistributedLock"]

P = ParamSpec("P")
R = TypeVar("R")


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
        reacquire: str = "refuse",
        defaults: Optional[LockOptions] = None,
        **options: Unpack[InstanceOptions],
    ) -> None:
        """Opens nothing yet: the first call does. Raises `InvalidArgumentError`.

        `store`: the URL of a store, a client or database handle that you have, or a driver. Without it, `HOLDFAST_URL`
        names the store; without that, it is a SQLite file, which excludes only the processes of this machine. None and
        an empty string, as from a variable that is not set, are errors and never select the default.

        `reacquire`: what happens when this instance asks for a lock that it already holds. `"refuse"`: it is refused,
        or waits, like any other claim. `"extend"`: its lease is extended, and the call gets it.

        `defaults`: options for all calls that do not set them. `options`: see `InstanceOptions`.
        """
        self._instance = Instance("DistributedLock", store, options, ("reacquire", "defaults"))
        extends = check_one_of("reacquire", reacquire, ("refuse", "extend")) == "extend"
        self._claims = ExtendingClaims(self._instance, defaults) if extends else Claims(self._instance, defaults)

    async def __aenter__(self) -> DistributedLock:
        return self

    async def acquire(self, lock_name: str, **options: Unpack[LockOptions]) -> LockResult:
        """Asks for the lock. Contention is a value: the result is false, with the holder if the store knows it. Unless
        it returns a lease, nothing is left behind in the store, also if the task is cancelled.

        The lease is not renewed unless `heartbeat` is true. Release or extend it yourself.

        The options are described at `LockOptions`.

        Raises `StoreError` if it is unknown whether the lock is held, `InvalidArgumentError`, `OverloadError`,
        `ClosedError`, and what `connect` raises if this call opens the store.
        """
        return await self._claims.acquire(lock_name, EXCLUSIVE, options)

    async def hold(self, lock_name: str, **options: Unpack[LockOptions]) -> Lease:
        """Like `acquire`, with a heartbeat by default, and raises `NotAcquiredError` on contention. For a lease that
        outlives a block; `lock` is safer for all others."""
        return await self._claims.hold(lock_name, EXCLUSIVE, options)

    def lock(self, lock_name: str, **options: Unpack[LockOptions]) -> LeaseBlock[Lease]:
        """`async with lock.lock("name") as lease:` holds the lock while the block runs. A heartbeat renews the lease.

        If the lease is lost, the block is cancelled and raises `LeaseLostError`. A cancellation from outside releases
        the lock and goes on. Inside the block, and in tasks that it starts, the same name is entered again without
        waiting. The options are those of `acquire`.

        Raises `NotAcquiredError` if the lock was not acquired in time, and what `acquire` raises.
        """
        return self._claims.block(lock_name, EXCLUSIVE, options)

    def locks(self, lock_names: Sequence[str], **options: Unpack[LockOptions]) -> LeaseBlock[List[Lease]]:
        """`async with lock.locks(["a", "b"]) as leases:` holds all of the names or none. At most 100.

        All names are claimed in one round trip; with a driver that has `groups`, in one step, so that no other client
        sees some of them taken. If one of them is held, nothing is kept. With `blocking`, the names are then taken one
        after the other in the order of their UTF-8 bytes, within one `blocking_timeout_seconds` for all, while those
        already held are renewed. So two calls never wait for each other. `reacquire` does not apply.

        Raises what `lock` raises.
        """
        names = check_names(lock_names)
        requests = [self._claims.request(name, EXCLUSIVE, True, options) for name in in_order(names)]
        return SeveralBlock(self._claims, names, requests)

    def named(self, lock_name: str, **options: Unpack[LockOptions]) -> NamedLock:
        """A lock with its name and its options: `payment = lock.named("order:123", timeout_seconds=30)`. It opens and
        sends nothing. See `NamedLock`. Raises `InvalidArgumentError`."""
        return NamedLock(self, lock_name, options)

    def locked(self, template: Union[str, Callable[..., str]], **options: Unpack[LockOptions]) -> LockedDecorator:
        """Decorates a coroutine function or method: each call runs under the lock that its arguments name::

            @lock.locked("order:{order_id}", timeout_seconds=30)
            async def ship(order_id: int, carrier: str = "post") -> None: ...

        A placeholder is a parameter of the function, with its default, or an attribute of it: `{order.id}`. Of a
        mapping, it is an item. Strings without control characters, whole numbers and UUIDs can be part of a name. They
        are used as they are: with `a:{x}:{y}`, the arguments `"1:2"` and `"3"` make the same name as `"1"` and `"2:3"`.
        A function instead of a template gets the arguments of the call and returns the name.

        A call whose lock is held raises `NotAcquiredError`, unless the options say that it waits. If the lease is lost,
        the call is cancelled and raises `LeaseLostError`. `current_lease` returns the lease inside of it.

        Raises `InvalidArgumentError` when the function is decorated, for a template or options that are not valid. The
        call raises it for arguments that make no good name.
        """
        self._claims.request("checks the options", EXCLUSIVE, True, options)
        return LockedDecorator(self._claims, template, options)

    def current_lease(self) -> Lease:
        """The lease of the innermost block of this instance that runs here: for `fencing_token`, `held` and `lost` in a
        decorated function. Raises `InvalidArgumentError` outside of such a block."""
        return self._claims.reentry.current_lease()

    async def restore(
        self, text: str, *, heartbeat: bool = False, timeout_seconds: Optional[Seconds] = None
    ) -> Lease:
        """Continues a lease that another process handed over with `lease.serialize()`: renews it, and returns a lease
        that has the same fencing token and the `holder_id` of the first holder. It is not renewed again unless
        `heartbeat` is true. `timeout_seconds`: its time to live from now on, by default the one that it had. What is
        left of `min_hold_seconds` and `max_hold_seconds` still applies.

        Restore a text only once. Two processes that restore the same text both hold the lock, with the same token.

        Raises `LeaseLostError` if the store no longer has the lease; `StoreError` if that is unknown: this instance can
        then restore the text again, as after a cancellation; `InvalidArgumentError` for any other text, which it does
        not contain; `UnsupportedError` for a driver whose leases last as long as a connection; `ClosedError`.
        """
        check_bool("heartbeat", heartbeat)
        ttl_ms = None if timeout_seconds is None else ttl_ms_from("timeout_seconds", timeout_seconds)
        handed_over = read_hand_over(text)
        self._instance.assert_open()
        return await self._claims.restore(handed_over, heartbeat=heartbeat, ttl_ms=ttl_ms)

    async def release(self, lock_name: str) -> bool:
        """Releases this instance's lease on the name. True if it was still held.

        Inside `lock` it ends the innermost entry. When that block's own lease has ended, it is false, and never touches
        the lease of another task. From outside, the block that runs there loses its lock: it is cancelled and raises
        `LeaseLostError`. A cancellation ends the wait for the answer, never the release itself.

        Raises `StoreError` if the store did not answer. The release is then sent again in the background.
        """
        lock_name = check_lock_name(lock_name)
        return await self._release(self._claims.named(lock_name))

    async def _release(self, lease: Optional[Lease]) -> bool:
        self._instance.assert_not_ended()
        if lease is None:
            return False
        if isinstance(lease, HeldLease):
            return await lease.answer_to(self._claims.begin_end(lease, "it was released by another task"))
        return await lease.release()

    async def extend(self, lock_name: str, seconds: Seconds) -> bool:
        """Sets this instance's lease on the name to end `seconds` from now: they are not added to what is left. False
        if it does not hold it. A lease that others use, too, is never shortened.

        Raises `StoreError` if it is unknown whether the lease was extended.
        """
        lock_name = check_lock_name(lock_name)
        return await self._extend(self._claims.named(lock_name), seconds)

    async def _extend(self, lease: Optional[Lease], seconds: Seconds) -> bool:
        ttl_ms_from("seconds", seconds)
        self._instance.assert_not_ended()
        return lease is not None and await lease.extend(seconds)

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
            # Like `Lease.answer_to`.
            await asyncio.gather(*(lease.wait_released() for lease in leases))
            raise
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer

    async def force_release(self, lock_name: str, *, by: str, end_session: bool = False) -> List[LockInfo]:
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
        check_bool("end_session", end_session)
        return await force_release(await self._instance.open(), lock_name, by, end_session)

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


class LockedDecorator:
    """What `DistributedLock.locked` returns."""

    def __init__(self, claims: Claims, template: Union[str, Callable[..., str]], options: LockOptions) -> None:
        self._claims = claims
        self._template = template
        self._options = options

    def __call__(self, function: Callable[P, Awaitable[R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        coroutine_function(function)
        name_of = lock_name_of(self._template, function)
        return runs_under(function, lambda call: self._claims.block(name_of(call), EXCLUSIVE, self._options))
