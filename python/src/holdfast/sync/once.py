"""Once-only jobs, for code without an event loop."""

from __future__ import annotations

from typing import Any, Callable, Optional, TypeVar, Unpack

from .._instance import DEFAULT_STORE, Store
from .._once.schedule import Missed
from .._options import InstanceOptions
from ..core.arguments import Seconds, check_callable
from ..once import OnceOnly, Tick, TickResult
from .instance import SyncInstance
from .lease import SyncLease
from .portal import CallBack, portal

__all__ = ["SyncOnceOnly"]

T = TypeVar("T")


class SyncOnceOnly(SyncInstance):
    """Like `OnceOnly`, for code without an event loop. The heartbeat runs in a daemon thread::

        jobs = SyncOnceOnly("redis://localhost:6379")
        receipt = jobs.once("payment:7", charge, for_seconds=86_400)
    """

    _inner: OnceOnly

    def __init__(
        self,
        store: Store = DEFAULT_STORE,
        **options: Unpack[InstanceOptions],
    ) -> None:
        """The arguments are those of `OnceOnly`."""
        self._inner = OnceOnly(
            store,
            **options,
        )

    def __enter__(self) -> SyncOnceOnly:
        return self

    def once(
        self,
        key: str,
        job: Callable[[SyncLease], T],
        *,
        for_seconds: Seconds,
        timeout_seconds: Seconds = 30,
        blocking_timeout_seconds: Optional[Seconds] = None,
    ) -> T:
        """Runs the job in this thread, unless it has run for this key within its period: then returns the kept result.

        `job(run)` gets the lease of its run. It cannot be cancelled: if the lease is lost, the call raises
        `LeaseLostError` when the job has ended, and keeps nothing. The rest is as in `OnceOnly.once`.
        """
        check_callable("job", job)

        def work(call_back: CallBack) -> Any:
            return self._inner.once(
                key,
                lambda run: call_back(job, SyncLease(run)),
                for_seconds=for_seconds,
                timeout_seconds=timeout_seconds,
                blocking_timeout_seconds=blocking_timeout_seconds,
            )

        result: T = portal().run_with(work)
        return result

    def every_tick(
        self,
        name: str,
        job: Callable[[SyncLease], T],
        *,
        every_seconds: Optional[Seconds] = None,
        missed: Missed = "last",
        overlap: bool = False,
        for_seconds: Seconds = 600,
        timeout_seconds: Seconds = 30,
        blocking_timeout_seconds: Optional[Seconds] = None,
    ) -> Callable[..., TickResult[T]]:
        """Wraps a scheduled job so that each tick runs once over all instances. See `OnceOnly.every_tick`."""
        check_callable("job", job)
        ticks = self._inner._ticks(
            name,
            every_seconds=every_seconds,
            missed=missed,
            overlap=overlap,
            for_seconds=for_seconds,
            timeout_seconds=timeout_seconds,
            blocking_timeout_seconds=blocking_timeout_seconds,
        )

        def tick(at: Optional[Tick] = None) -> TickResult[T]:
            def work(call_back: CallBack) -> Any:
                return ticks(at, lambda lease: call_back(job, SyncLease(lease)))

            result: TickResult[T] = portal().run_with(work)
            return result

        return tick

    def forget(self, key: str) -> bool:
        """Lets a key run again before its period is over. True if a result was kept. It does not stop a run."""
        return portal().run(self._inner.forget(key))
