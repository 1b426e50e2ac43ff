"""Once-only jobs: a job runs at most once per key and period over all processes, and its result is kept."""

from __future__ import annotations

from typing import Any, Awaitable, Callable, Coroutine, Optional, TypeVar, Union, Unpack

from ._claims import Claims
from ._instance import DEFAULT_STORE, Closable, Instance, Store
from ._once.results import MAX_KEY_LENGTH, FoundResult, assert_keeps_results, metadata_from, names_of, result_from
from ._once.tick import MAX_TICK_LENGTH, Tick, tick_of
from ._once.waiting_calls import WaitingCalls
from ._options import EXCLUSIVE, InstanceOptions
from ._reentry import Frame
from ._result import not_acquired_error
from .core.arguments import Seconds, check_callable, check_text, ttl_ms_from, wait_ms_from
from .core.clock import backoff_ms
from .core.driver import Grant, InspectQuery, LeaseRecord, LeaseRef
from .core.emitter import current_frame
from .core.holder import ClaimRequest, Holder
from .core.lease import HeldLease, Lease
from .core.limits import MAX_WAIT_MS
from .core.store_client import is_outage
from .core.tasks import answered, finish, pause, supervise
from .errors import StoreError

__all__ = ["OnceOnly", "Tick"]

T = TypeVar("T")

_MAX_TICK_NAME_LENGTH = MAX_KEY_LENGTH - 1 - MAX_TICK_LENGTH
"""The key is the name, "@" and the tick."""
Job = Callable[[Lease], Union[Awaitable[T], T]]
"""It gets the lease of its run: pass `fencing_token` to what it writes to, and check `held`."""


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
        self._claims = Claims(self._instance)
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
        self._claims.prepared(request)
        self._claims.reentry.assert_outside(request, "a run has no result before it has ended")
        began_ms = self._now_ms
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
        return await self._run(_Turn(holder, turn, key, names.done, for_ms), job)

    def every_tick(
        self,
        name: str,
        job: Job[T],
        *,
        every_seconds: Optional[Seconds] = None,
        for_seconds: Seconds = 600,
        timeout_seconds: Seconds = 30,
        blocking_timeout_seconds: Optional[Seconds] = None,
    ) -> Callable[..., Coroutine[Any, Any, T]]:
        """Wraps a scheduled job so that each tick runs once over all instances with the same schedule.

        Pass the returned function to the scheduler. It takes the tick, if the scheduler passes one: the scheduled time,
        with a time zone, or the scheduler's own id of the tick. Without it, the tick is the current time rounded down
        to `every_seconds`. The key is the name and the tick. An instance that comes while the tick runs elsewhere
        waits, and takes over if that process dies.

        - `name`: at most 180 characters. The scheduler's id of a tick has at most 64.
        - `every_seconds`: the period of the schedule. Required when the scheduler passes no tick.
        - `for_seconds`: how long a tick is remembered. The clocks of two instances may differ by this much.

        The returned function raises what `once` raises.
        """
        name = check_text("name", name, _MAX_TICK_NAME_LENGTH)
        check_callable("job", job)
        every_ms = None if every_seconds is None else ttl_ms_from("every_seconds", every_seconds)
        ttl_ms_from("for_seconds", for_seconds)
        ttl_ms_from("timeout_seconds", timeout_seconds)
        if blocking_timeout_seconds is not None:
            wait_ms_from("blocking_timeout_seconds", blocking_timeout_seconds)

        async def tick(at: Optional[Tick] = None) -> T:
            text = tick_of(at, self._instance.clock.wall() * 1_000, every_ms)
            return await self.once(
                f"{name}@{text}",
                job,
                for_seconds=for_seconds,
                timeout_seconds=timeout_seconds,
                blocking_timeout_seconds=blocking_timeout_seconds,
            )

        return tick

    async def forget(self, key: str) -> bool:
        """Lets a key run again before its period is over. True if a result was kept. It does not stop a run."""
        names = names_of(key)
        holder = await self._instance.open()
        record = await _record_of(holder, names.done)
        if record is None:
            return False
        return await holder.release(LeaseRef(record.lock_name, record.claim_id, record.fencing_token))

    async def _run(self, turn: _Turn, job: Job[T]) -> T:
        holder, lease = turn.holder, turn.lease
        holder.running.begin()
        lease.users += 1
        try:
            found = await self._insist(lease, lambda: self._find(holder, turn.done))
            if found is not None:
                result: T = self._tell(turn.key, found)
                return result
            # The lease may have ended meanwhile, by closing, by force or by time. Then another run may have begun.
            lease.assert_held()
            own = await self._result_of(lease, job)
            # The job is done. If only its result were missing, it would run again, so no cancellation stops this.
            return await finish(self._keep(turn, own))
        finally:
            lease.users -= 1
            holder.running.end()
            # Sent in this step: a program that cancels all tasks would also cancel a task that has not begun.
            await finish(answered(lease.begin_release()))

    async def _result_of(self, lease: HeldLease, job: Job[T]) -> T:
        frame = Frame(self._claims.reentry, lease, EXCLUSIVE, current_frame.get())

        def call() -> Union[Awaitable[T], T]:
            # In the context of the job's own task. There, the job cannot wait for its own result.
            current_frame.set(frame)
            return job(lease)

        run = await supervise(call, _loss_of(lease))
        frame.end()
        # A cancellation does not hide what the job raises while it stops. It is not lost if the job had ended before.
        if run.error is not None and (run.stopped or run.cancelled is None):
            raise run.error
        if run.cancelled is not None:
            raise run.cancelled from run.error
        if run.task.cancelled() and lease.loss_error is not None:
            raise lease.loss_error
        lease.assert_held()
        own: T = run.task.result()
        return own

    async def _keep(self, turn: _Turn, own: T) -> T:
        holder, lease, key = turn.holder, turn.lease, turn.key
        # The store decides. Otherwise a lease that was ended by force would go unnoticed until the next heartbeat, and
        # the result would be kept while another run is going on.
        if not await self._insist(lease, lambda: holder.confirm(lease), ran=key):
            lease.assert_held()
        metadata = metadata_from(own)
        # One claim for all tries: if an answer is lost, the next try gets the same lease.
        claim = holder.create_claim(ClaimRequest(turn.done, turn.for_ms, metadata=metadata))
        asked_ms = self._now_ms
        answer = await self._insist(lease, lambda: holder.ask(claim), ran=key)
        if not isinstance(answer, Grant):
            # A run that took over from this one was faster, and all others have its result.
            theirs = await self._insist(lease, lambda: self._find(holder, turn.done), ran=key)
            if theirs is not None:
                result: T = self._tell(key, theirs)
                return result
        self._tell(key, FoundResult(metadata, asked_ms))
        return own

    def _tell(self, key: str, found: FoundResult) -> Any:
        """Returns the result, and passes it to the calls that wait for this key."""
        self._waiting.found(key, found)
        return result_from(key, found.metadata)

    async def _find_early(self, holder: Holder, done: str) -> Optional[FoundResult]:
        try:
            return await self._find(holder, done)
        except StoreError as error:
            if not error.retryable:
                raise
            return None

    async def _find(self, holder: Holder, done: str) -> Optional[FoundResult]:
        asked_ms = self._now_ms
        record = await _record_of(holder, done)
        return None if record is None else FoundResult(record.metadata, asked_ms)

    async def _insist(self, lease: HeldLease, ask: Callable[[], Awaitable[T]], *, ran: Optional[str] = None) -> T:
        """Asks until the store answers, as long as the run's lease lasts. `ran`: the key of a job that has ended."""
        tries = 0
        while True:
            tries += 1
            try:
                return await ask()
            except StoreError as error:
                if is_outage(error):
                    rest_ms = backoff_ms(50, 1_000, tries, self._instance.random)
                    await pause(self._instance.clock, rest_ms, _loss_of(lease))
                    if lease.held:
                        continue
                if ran is None:
                    raise
                message = f'the job "{ran}" ran, but whether its result is kept is not known'
                raise StoreError(message, retryable=error.retryable) from error

    @property
    def _now_ms(self) -> float:
        return self._instance.clock.monotonic() * 1_000


class _Turn:
    """A call whose turn it is to run the job."""

    __slots__ = ("holder", "lease", "key", "done", "for_ms")

    def __init__(self, holder: Holder, lease: HeldLease, key: str, done: str, for_ms: float) -> None:
        self.holder = holder
        self.lease = lease
        self.key = key
        self.done = done
        self.for_ms = for_ms


def _loss_of(lease: HeldLease) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """A reason to stop: the lease was lost."""

    def watch(stop: Callable[[], None]) -> Callable[[], None]:
        def lost(_: object) -> None:
            stop()

        lease.add_loss_callback(lost)
        return lambda: lease.remove_loss_callback(lost)

    return watch


async def _record_of(holder: Holder, done: str) -> Optional[LeaseRecord]:
    page = await holder.inspect(InspectQuery(lock_name=done))
    return page.leases[0] if page.leases else None
