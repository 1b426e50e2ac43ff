"""Leader election: one leader at a time among all processes that campaign for a name."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Any, AsyncIterator, Awaitable, Callable, Optional, Union, Unpack

from ._election.observe import Changes, observe_leader
from ._election.run import LeadParts, lead_repeatedly
from ._election.term import DemotionReason, Term
from ._instance import DEFAULT_STORE, Closable, Instance, Store
from ._options import InstanceOptions
from ._result import not_acquired_error
from .core.arguments import Seconds, check_callable, check_json, check_lock_name, ttl_ms_from, wait_ms_from
from .core.driver import InspectQuery, LeaseRecord
from .core.holder import ClaimRequest, Holder
from .core.lease import HeldLease
from .core.limits import MAX_WAIT_MS
from .core.lock_info import lock_info
from .errors import StoreError, UnsupportedError

__all__ = ["Leader", "LeaderElection", "Term"]


@dataclass(frozen=True)
class Leader:
    """The leader, as the store shows it."""

    name: str
    holder_id: str
    term: int
    """The number of the term, which is its fencing token."""
    value: Any
    """What the leader published. None if it published nothing."""
    since: datetime
    """By the store's clock."""
    expires_at: datetime
    """When the term ends if it is not renewed, by the store's clock."""


OnDemoted = Callable[[Term, DemotionReason], object]


class LeaderElection(Closable):
    """Elects one leader at a time among all processes that campaign for a name. It works with every driver.

    It is a lock with a published value: a term is a lease with a heartbeat, and its number is the fencing token. Node
    and Python processes with the same name on one store are candidates of one election. With a driver that has a queue,
    candidates are elected first come, first served. Two campaigns of one instance exclude each other like any others.

        election = LeaderElection("redis://localhost:6379", name="scheduler")

        async def lead(term: Term) -> None:
            while True:
                await run_due_jobs(term.fencing_token)

        await election.run(lead)

    Closing ends campaigns and resigns. The function of `run` is cancelled at once, and leads until it has ended: at
    most for `drain_seconds` and then for three fifths of `deadline_seconds`.
    """

    def __init__(
        self,
        store: Store = DEFAULT_STORE,
        *,
        name: str,
        timeout_seconds: Seconds = 15,
        **options: Unpack[InstanceOptions],
    ) -> None:
        """`name`: what is led. It is a lock name: the holder of that lock leads.

        `timeout_seconds`: the time to live of a term. A heartbeat renews it. When a leader crashes, its successor waits
        this long. From 0.05 to one year.
        """
        self._instance = Instance("LeaderElection", store, options, ("name", "timeout_seconds"))
        self.name = check_lock_name(name, "name")
        self._ttl_ms = ttl_ms_from("timeout_seconds", timeout_seconds)
        self._term: Optional[Term] = None
        self._changes = Changes()

    async def __aenter__(self) -> LeaderElection:
        return self

    @property
    def term(self) -> Optional[Term]:
        """This instance's term if it leads now."""
        term = self._term
        return term if term is not None and term.held else None

    async def campaign(
        self,
        *,
        value: Any = None,
        blocking_timeout_seconds: Optional[Seconds] = None,
        max_term_seconds: Optional[Seconds] = None,
        on_demoted: Optional[OnDemoted] = None,
    ) -> Term:
        """Returns when this candidate is elected, however long that takes. If the store is down, it tries again until
        the store is up. Unless it returns a term, nothing is left behind in the store: a cancelled campaign withdraws.

        - `value`: what others see of the leader, such as an address or a version. JSON of at most 16,368 bytes. Needs a
          driver that keeps metadata.
        - `blocking_timeout_seconds`: how long to campaign. 0 asks once. The default is no limit.
        - `max_term_seconds`: the heartbeat stops renewing after this time, so that a leader that hangs does not lead
          forever. The default is no limit.
        - `on_demoted(term, reason)`: called exactly once per term, in the step in which it ends: before the resignation
          is sent, or no later than the deadline of the lease. So it runs before another candidate can be elected. (A
          blocked event loop delays it; `held` is correct even then.) It should only stop things. If it raises, that is
          logged.

        Raises `NotAcquiredError` only if `blocking_timeout_seconds` was passed and is over; `StoreError` if the store
        did not answer within that time, or if asking again cannot help; `UnsupportedError` for a `value` that the
        driver cannot keep; `InvalidArgumentError`, `OverloadError`, `ClosedError`.
        """
        return await self._campaign(value, blocking_timeout_seconds, max_term_seconds, on_demoted)

    async def run(
        self,
        lead: Callable[[Term], Union[Awaitable[Any], Any]],
        *,
        value: Any = None,
        max_term_seconds: Optional[Seconds] = None,
        on_demoted: Optional[OnDemoted] = None,
        on_error: Optional[Callable[[BaseException, Term], object]] = None,
        rest_seconds: Seconds = 1,
    ) -> None:
        """Campaigns, runs `lead` while it leads, and campaigns again. Cancel it to stop; it returns when the election
        is closed.

        - When the term is lost, or resigned elsewhere, `lead` is cancelled. The next campaign begins when it has ended.
        - When `lead` returns or raises, the term is resigned. The next campaign begins after a random time from half of
          `rest_seconds` to all of it, so that other candidates come first. The rest doubles with each further failure
          in a row, up to 30 seconds.
        - Errors of `lead` go to `on_error(error, term)`, and `run` goes on. Without `on_error`, `run` raises them. A
          cancellation or a loss that `lead` raises after its term has ended is not an error: that is how it stops.
        - When `run` is cancelled, `lead` is cancelled too. The term is kept until it has ended, so that it can hand
          over.
        - If the store is down, it waits, as `campaign` does.
        """
        check_callable("lead", lead)
        if on_error is not None:
            check_callable("on_error", on_error)
        rest_ms = wait_ms_from("rest_seconds", rest_seconds)

        async def campaign() -> Term:
            return await self._campaign(value, None, max_term_seconds, on_demoted)

        self._instance.assert_open()
        await lead_repeatedly(LeadParts(self._instance, campaign), lead, on_error, rest_ms)

    async def resign(self) -> bool:
        """Ends this instance's term, if it leads, and wakes the next candidate. True if it led. Campaigns of this
        instance go on; cancel them to end them.

        Raises `StoreError` if the store did not answer. The release is then sent again in the background.
        """
        # Allowed during `drain_seconds`: draining waits for the term to end.
        self._instance.assert_not_ended()
        term = self._term
        return False if term is None else await term.resign()

    async def leader(self) -> Optional[Leader]:
        """The current leader according to the store, or None if there is none.

        Raises `StoreError` if the store did not answer. It never returns None for that.
        """
        holder = await self._instance.open()
        page = await holder.inspect(InspectQuery(lock_name=self.name))
        return _leader_from(page.leases[0]) if page.leases else None

    def observe(
        self, *, every_seconds: Seconds = 1, on_error: Optional[Callable[[StoreError], object]] = None
    ) -> AsyncIterator[Optional[Leader]]:
        """Yields the current leader, and then every change: `async for leader in election.observe(): …`.

        None means that there is no leader. It looks every `every_seconds` (at least 0.05), and at once when this
        instance is elected or demoted. It does not notice a term that began and ended between two looks. While the
        store does not answer, it yields nothing and calls `on_error`. The loop ends when the election is closed. It
        raises a `StoreError` if asking again cannot help.
        """
        every_ms = ttl_ms_from("every_seconds", every_seconds)
        if on_error is not None:
            check_callable("on_error", on_error)
        return observe_leader(self._instance, self.leader, every_ms, on_error, self._changes)

    async def _campaign(
        self,
        value: Any,
        blocking_timeout_seconds: Optional[Seconds],
        max_term_seconds: Optional[Seconds],
        on_demoted: Optional[OnDemoted],
    ) -> Term:
        endless = blocking_timeout_seconds is None
        if on_demoted is not None:
            check_callable("on_demoted", on_demoted)
        request = ClaimRequest(
            self.name,
            self._ttl_ms,
            MAX_WAIT_MS if endless else wait_ms_from("blocking_timeout_seconds", blocking_timeout_seconds),
            metadata=None if value is None else {"value": check_json("value", value)},
            heartbeat=True,
            max_hold_ms=math.inf if max_term_seconds is None else ttl_ms_from("max_term_seconds", max_term_seconds),
        )
        holder = await self._instance.open_with_retry(request.wait_ms)
        if request.metadata is not None:
            _assert_publishes(holder)
        while True:
            term: Optional[Term] = None

            def ended(_: HeldLease) -> None:
                self._demote(term)

            result = await holder.acquire(request, ended)
            if isinstance(result, HeldLease):
                term = self._term = Term(result, value, on_demoted, self._changes.notify, holder.running)
                # It may have ended before this step.
                if not term.held:
                    self._demote(term)
                self._changes.notify()
                return term
            if not endless:
                raise not_acquired_error(self.name, result)

    def _demote(self, term: Optional[Term]) -> None:
        if term is None:
            return
        if self._term is term:
            self._term = None
        term._demote()


def _leader_from(record: LeaseRecord) -> Leader:
    info = lock_info(record)
    value = None if info.metadata is None else info.metadata.get("value")
    return Leader(info.lock_name, info.holder_id, info.fencing_token, value, info.acquired_at, info.expires_at)


def _assert_publishes(holder: Holder) -> None:
    if not holder.capabilities.metadata:
        raise UnsupportedError(
            f"the {holder.driver_name} driver keeps no metadata with a lock, so a leader cannot publish a value. "
            "Others can see its holder_id"
        )
