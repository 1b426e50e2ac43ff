"""Once-only jobs: a job runs at most once per key and period over all processes, and its result is kept."""

from __future__ import annotations

from typing import Any, Callable, Coroutine, Optional, TypeVar, Unpack

from ._instance import DEFAULT_STORE, Closable, Instance, Store
from ._once.results import FoundResult, assert_keeps_results, metadata_from, names_of, result_from
from ._once.runs import Job, Runs, Turn, record_of
from ._once.schedule import Missed, Schedule, ScheduleOptions, TickResult
from ._once.tick import Tick, check_tick_name, tick_of
from ._once.waiting_calls import WaitingCalls
from ._options import InstanceOptions
from ._result import not_acquired_error
from .core.arguments import Seconds, check_bool, check_callable, check_one_of, ttl_ms_from, wait_ms_from
from .core.driver import LeaseRef
from .core.holder import ClaimRequest, Holder
from .core.lease import HeldLease
from .core.limits import MAX_WAIT_MS
from .errors import StoreError

__all__ = ["OnceOnly", "Tick", "TickResult"]

T = TypeVar("T")


class OnceOnly(Closable):
    """Runs a job once per key and period over all instances, and keeps its result for later callers.

    It works with every driver that keeps metadata and whose leases expire by time. Node and Python processes on one
    store share their keys and results.

        jobs = OnceOnly("redis://localhost:6379")
        # Also pass the key to the payment provider: after the period, the job would run again.
        receipt = await jobs.once("payment:7", charge, for_seconds=86_400)

    Exactly once needs the help of the effect itself. If a process dies after the effect but before the result is kept,
    the job looks undone and runs again, with a higher fencing token. Record the effect under the key, in the same step
    that checks the token, and it happens once.

    Closing lets a run that ends in time keep its result. A run that does not end loses its lease. Results stay.
    """

    def __init__(
        self,
        store: Store = DEFAULT_STORE,
        **options: Unpack[InstanceOptions],
    ) -> None:
        self._instance = Instance("OnceOnly", store, options)
        self._runs = Runs(self._instance)
        self._waiting = WaitingCalls()

    async def __aenter__(self) -> OnceOnly:
        return self

    async def once(
        self,
        key: str,
        job: Job[T],
        *,
        for_seconds: Seconds,
        timeout_seconds: Seconds = 30,
        blocking_timeout_seconds: Optional[Seconds] = None,
    ) -> T:
        """Runs the job, unless it has run for this key within its period: then returns the kept result.

        `job(run)` gets the lease of its run. It is a coroutine function, or a function that does not block: a blocked
        event loop renews no lease (use `asyncio.to_thread`, or `SyncOnceOnly`).

        If the job runs elsewhere now, this call waits for that run and returns its result. If the job fails, its error
        is raised and nothing is kept, and a call that waits runs the job. If its lease is lost, the job is cancelled,
        `LeaseLostError` is raised and nothing is kept. If this call is cancelled, so is the job, and nothing is kept; a
        job that has already ended keeps its result first.

        - `for_seconds`: how long a run counts, from its end. The store keeps the result for this time. From 0.05 to one
          year. With `redlock` at most the driver's longest TTL.
        - `timeout_seconds`: the time to live of the run's lease. A heartbeat renews it. After a crash, another process
          takes over when this time has passed.
        - `blocking_timeout_seconds`: how long to wait for a run in another process or task. 0 does not wait. The
          default is no limit.

        The result must be JSON of at most 16,368 bytes. Otherwise the job counts as done, and this call and all others
        in the period raise `ResultNotKeptError`.

        Raises `NotAcquiredError` if `blocking_timeout_seconds` is over; `StoreError` if it is unknown whether the job
        has run or its result is kept; `UnsupportedError` for a driver that cannot keep results; `LeaseLostError`,
        `InvalidArgumentError`, `OverloadError`, `ClosedError`, and what the job raises.
        """
        names = names_of(key)
        check_callable("job", job)
        for_ms = ttl_ms_from("for_seconds", for_seconds)
        endless = blocking_timeout_seconds is None
        request = ClaimRequest(
            names.run,
            ttl_ms_from("timeout_seconds", timeout_seconds),
            MAX_WAIT_MS if endless else wait_ms_from("blocking_timeout_seconds", blocking_timeout_seconds),
            heartbeat=True,
        )
        self._runs.claims.prepared(request)
        self._runs.claims.reentry.assert_outside(request, "a run has no result before it has ended")
        began_ms = self._runs.now_ms
        holder = await self._instance.open()
        assert_keeps_results(holder.driver_name, holder.capabilities, holder.longest_ttl_ms, for_ms)
        # It only saves the lease. What counts is the look under the lease, below.
        early = await self._find_early(holder, names.done)
        if early is not None:
            result: T = self._tell(key, early)
            return result
        turn = await self._waiting.wait(key, began_ms, holder.acquire(request))
        if isinstance(turn, FoundResult):
            result = result_from(key, turn.metadata)
            return result
        if not isinstance(turn, HeldLease):
            raise not_acquired_error(names.run, turn)
        lease = turn

        async def run() -> T:
            found = await self._runs.insist(lease, lambda: self._runs.find(holder, names.done))
            if found is not None:
                kept: T = self._tell(key, found)
                return kept
            # The lease may have ended meanwhile, by closing, by force or by time. Then another run may have begun.
            lease.assert_held()

            def keep(result: FoundResult) -> None:
                self._waiting.found(key, result)

            done = await self._runs.run(Turn(holder, lease, key, names.done, for_ms, metadata_from, keep), job)
            # All others have the result of the run that was faster.
            stored: T = result_from(key, (done.theirs or done.kept).metadata)
            return done.own if done.theirs is None else stored

        return await self._runs.under(holder, lease, run)

    def every_tick(
        self,
        name: str,
        job: Job[T],
        *,
        every_seconds: Optional[Seconds] = None,
        missed: Missed = "last",
        overlap: bool = False,
        for_seconds: Seconds = 600,
        timeout_seconds: Seconds = 30,
        blocking_timeout_seconds: Optional[Seconds] = None,
    ) -> Callable[..., Coroutine[Any, Any, TickResult[T]]]:
        """Wraps a scheduled job so that each tick runs once over all instances with the same schedule, and one tick at
        a time.

        Pass the returned function to the scheduler. It takes the tick, if the scheduler passes one: the scheduled time,
        with a time zone, or the scheduler's own id of the tick. Without it, the tick is the current time rounded down
        to `every_seconds`. It returns a `TickResult`: `ran` and `result`, or the `reason` why it did not run here:

        - `elsewhere`: another instance runs this tick, or has run it
        - `overlap`: the job of another tick still runs, here or elsewhere, or the lock `cron:NAME` is held by other
          means
        - `missed`: a later tick came before this one could run
        - `closed`: this instance was closed before the job began

        While the job runs, its instance holds the lock `cron:NAME`. An instance that comes while the tick runs
        elsewhere waits, and takes over if that process dies or the job fails there.

        - `name`: at most 180 characters. The scheduler's id of a tick has at most 64.
        - `every_seconds`: the period of the schedule. Required when the scheduler passes no tick.
        - `missed`: what happens to ticks that could not run in time, because the store was away. `skip`: they do not
          run, and the tick that meets the outage raises `StoreError`. `last`: the last one runs late, and the others do
          not run. `all`: all run late, in order, one at a time.
        - `overlap`: whether a tick may run while the job of another tick still runs.
        - `for_seconds`: how long a tick that ran is remembered. The clocks of two instances may differ by this much.
        - `blocking_timeout_seconds`: how long to wait for a run of the same tick elsewhere, and for a store that is
          away. 0 does not wait. The default is no limit.

        The returned function raises what the job raises; `StoreError` if the store does not answer, after
        `blocking_timeout_seconds`; and `LeaseLostError` if the run lost its lease.
        """
        check_callable("job", job)
        ticks = self._ticks(
            name,
            every_seconds=every_seconds,
            missed=missed,
            overlap=overlap,
            for_seconds=for_seconds,
            timeout_seconds=timeout_seconds,
            blocking_timeout_seconds=blocking_timeout_seconds,
        )

        async def tick(at: Optional[Tick] = None) -> TickResult[T]:
            return await ticks(at, job)

        return tick

    def _ticks(
        self,
        name: str,
        *,
        every_seconds: Optional[Seconds],
        missed: Missed,
        overlap: bool,
        for_seconds: Seconds,
        timeout_seconds: Seconds,
        blocking_timeout_seconds: Optional[Seconds],
    ) -> Callable[[Optional[Tick], Job[Any]], Coroutine[Any, Any, TickResult[Any]]]:
        """Like `every_tick`, with a job for each tick: a call from another thread brings its own."""
        name = check_tick_name(name)
        every_ms = None if every_seconds is None else ttl_ms_from("every_seconds", every_seconds)
        check_one_of("missed", missed, ("skip", "last", "all"))
        endless = blocking_timeout_seconds is None
        options = ScheduleOptions(
            name,
            ttl_ms=ttl_ms_from("timeout_seconds", timeout_seconds),
            patience_ms=MAX_WAIT_MS if endless else wait_ms_from("blocking_timeout_seconds", blocking_timeout_seconds),
            for_ms=ttl_ms_from("for_seconds", for_seconds),
            missed=missed,
            overlap=check_bool("overlap", overlap),
        )
        schedule = Schedule(self._instance, self._runs, options)

        async def tick(at: Optional[Tick], job: Job[Any]) -> TickResult[Any]:
            return await schedule.call(tick_of(at, self._instance.clock.wall() * 1_000, every_ms), job)

        return tick

    async def forget(self, key: str) -> bool:
        """Lets a key run again before its period is over. True if a result was kept. It does not stop a run."""
        names = names_of(key)
        holder = await self._instance.open()
        record = await record_of(holder, names.done)
        if record is None:
            return False
        return await holder.release(LeaseRef(record.lock_name, record.claim_id, record.fencing_token))

    def _tell(self, key: str, found: FoundResult) -> Any:
        """Returns the result, and passes it to the calls that wait for this key."""
        self._waiting.found(key, found)
        return result_from(key, found.metadata)

    async def _find_early(self, holder: Holder, done: str) -> Optional[FoundResult]:
        try:
            return await self._runs.find(holder, done)
        except StoreError as error:
            if not error.retryable:
                raise
            return None
