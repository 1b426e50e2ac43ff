"""The runs of one instance, each under a lease, and the records of those that are done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Awaitable, Callable, Generic, Optional, TypeVar, Union

from .._claims import Claims
from .._instance import Instance
from .._options import EXCLUSIVE
from .._reentry import Frame
from ..core.clock import backoff_ms
from ..core.driver import Grant, InspectQuery, LeaseRecord, Metadata
from ..core.emitter import current_frame
from ..core.holder import ClaimRequest, Holder
from ..core.lease import HeldLease, Lease
from ..core.store_client import is_outage
from ..core.tasks import answered, finish, pause, supervise
from ..errors import StoreError
from .results import FoundResult

T = TypeVar("T")

Job = Callable[[Lease], Union[Awaitable[T], T]]
"""It gets the lease of its run: pass `fencing_token` to what it writes to, and check `held`."""


@dataclass(frozen=True)
class Turn:
    """A call whose turn it is to run the job."""

    holder: Holder
    lease: HeldLease
    key: str
    done: str
    for_ms: float
    metadata_of: Callable[[object], Metadata]
    """What the store keeps of a result."""
    found: Callable[[FoundResult], None]
    """Called with what is in the store when the job is done."""


@dataclass(frozen=True)
class Done(Generic[T]):
    own: T
    kept: FoundResult
    theirs: Optional[FoundResult]
    """A run that took over from this one was faster."""


class Runs:
    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self.claims = Claims(instance)

    @property
    def now_ms(self) -> float:
        """On the monotonic clock."""
        return self._instance.clock.monotonic() * 1_000

    async def find(self, holder: Holder, done: str) -> Optional[FoundResult]:
        asked_ms = self.now_ms
        record = await record_of(holder, done)
        return None if record is None else FoundResult(record.metadata, asked_ms)

    async def under(self, holder: Holder, lease: HeldLease, work: Callable[[], Awaitable[T]]) -> T:
        """Runs `work`, then releases the lease."""
        holder.running.begin()
        lease.users += 1
        try:
            return await work()
        finally:
            lease.users -= 1
            holder.running.end()
            # Sent in this step: a program that cancels all tasks would also cancel a task that has not begun.
            await finish(answered(lease.begin_release()))

    async def run(self, turn: Turn, job: Job[T]) -> Done[T]:
        """Runs the job and records that it is done."""
        own = await self._result_of(turn.lease, job)
        # The job is done. If only its result were missing, it would run again, so no cancellation stops this.
        return await finish(self._keep(turn, own))

    async def insist(self, lease: HeldLease, ask: Callable[[], Awaitable[T]], *, ran: Optional[str] = None) -> T:
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

    async def _result_of(self, lease: HeldLease, job: Job[T]) -> T:
        frame = Frame(self.claims.reentry, lease, EXCLUSIVE, current_frame.get())

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

    async def _keep(self, turn: Turn, own: T) -> Done[T]:
        holder, lease, key = turn.holder, turn.lease, turn.key
        # The store decides. Otherwise a lease that was ended by force would go unnoticed until the next heartbeat, and
        # the result would be kept while another run is going on.
        if not await self.insist(lease, lambda: holder.confirm(lease), ran=key):
            lease.assert_held()
        metadata = turn.metadata_of(own)
        # One claim for all tries: if an answer is lost, the next try gets the same lease.
        claim = holder.create_claim(ClaimRequest(turn.done, turn.for_ms, metadata=metadata))
        asked_ms = self.now_ms
        answer = await self.insist(lease, lambda: holder.ask(claim), ran=key)
        theirs = None
        if not isinstance(answer, Grant):
            theirs = await self.insist(lease, lambda: self.find(holder, turn.done), ran=key)
        done = Done(own, FoundResult(metadata, asked_ms), theirs)
        turn.found(theirs or done.kept)
        return done


def _loss_of(lease: HeldLease) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """A reason to stop: the lease was lost."""

    def watch(stop: Callable[[], None]) -> Callable[[], None]:
        def lost(_: object) -> None:
            stop()

        lease.add_loss_callback(lost)
        return lambda: lease.remove_loss_callback(lost)

    return watch


async def record_of(holder: Holder, done: str) -> Optional[LeaseRecord]:
    page = await holder.inspect(InspectQuery(lock_name=done))
    return page.leases[0] if page.leases else None
