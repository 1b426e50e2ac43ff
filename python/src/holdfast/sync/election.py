"""Leader election, for code without an event loop."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Callable, Iterator, Optional, Unpack

from .._election.term import DemotionReason, Term
from .._instance import DEFAULT_STORE, Store
from .._options import InstanceOptions
from ..core.arguments import Seconds, check_callable
from ..election import Leader, LeaderElection
from ..errors import HoldfastError, StoreError
from .instance import SyncInstance
from .lease import SyncLostEvent
from .portal import CallBack, portal, run_surely

__all__ = ["SyncLeaderElection", "SyncTerm"]


class SyncTerm:
    """One candidate's time as the leader: from its election to its resignation or the loss of its lease.

    It can be used in a block that ends it: `with election.campaign() as term: …`. A thread cannot be cancelled: check
    `held` before each step that only the leader may take.
    """

    def __init__(self, term: Term) -> None:
        self._term = term

    @property
    def name(self) -> str:
        """What is led."""
        return self._term.name

    @property
    def holder_id(self) -> str:
        return self._term.holder_id

    @property
    def value(self) -> Any:
        """What the leader published."""
        return self._term.value

    @property
    def term(self) -> int:
        """The number of the term: the fencing token of the lease. Larger than that of every earlier term."""
        return self._term.term

    @property
    def fencing_token(self) -> int:
        """The same number, under the name that guards expect. Pass it to what the leader writes to."""
        return self._term.fencing_token

    @property
    def since(self) -> datetime:
        """By the store's clock."""
        return self._term.since

    @property
    def held(self) -> bool:
        """Whether it leads now. It reads the clocks, and asks no other thread."""
        return self._term._lease.peek_held()

    @property
    def remaining_seconds(self) -> float:
        """How long it leads from now if no renewal succeeds."""
        return portal().call(lambda: self._term.remaining_seconds)

    @property
    def lost(self) -> SyncLostEvent:
        """Is set when the lease is lost. A resignation is no loss."""
        return SyncLostEvent(self._term._lease)

    def assert_held(self) -> None:
        """Raises `LeaseLostError` if the lease was lost, and `NotHeldError` after resigning."""
        if not self.held:
            portal().call(self._term.assert_held)

    def resign(self) -> bool:
        """Ends the term at once and wakes the next candidate. True if it still led. Raises `StoreError`."""
        return run_surely(self._term.resign)

    def __enter__(self) -> SyncTerm:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Resigns. An error of that would hide an error of the block."""
        try:
            self.resign()
        except HoldfastError:
            pass

    def __repr__(self) -> str:
        return f"<SyncTerm {self.term} of {self.name!r} by {self.holder_id}, {'held' if self.held else 'not held'}>"


async def _resign(term: SyncTerm) -> None:
    try:
        await term._term.resign()
    except HoldfastError:
        pass


class SyncLeaderElection(SyncInstance):
    """Like `LeaderElection`, for code without an event loop. The heartbeat runs in a daemon thread::

        election = SyncLeaderElection("redis://localhost:6379", name="scheduler")
        with election.campaign() as term:
            while term.held:
                run_due_jobs(term.fencing_token)
    """

    _inner: LeaderElection

    def __init__(
        self,
        store: Store = DEFAULT_STORE,
        *,
        name: str,
        timeout_seconds: Seconds = 15,
        **options: Unpack[InstanceOptions],
    ) -> None:
        """The arguments are those of `LeaderElection`."""
        self._inner = LeaderElection(
            store,
            name=name,
            timeout_seconds=timeout_seconds,
            **options,
        )

    def __enter__(self) -> SyncLeaderElection:
        return self

    @property
    def name(self) -> str:
        """What is led."""
        return self._inner.name

    @property
    def term(self) -> Optional[SyncTerm]:
        """This instance's term if it leads now."""
        term = self._inner._term
        return None if term is None or not term._lease.peek_held() else SyncTerm(term)

    def campaign(
        self,
        *,
        value: Any = None,
        blocking_timeout_seconds: Optional[Seconds] = None,
        max_term_seconds: Optional[Seconds] = None,
        on_demoted: Optional[Callable[[SyncTerm, DemotionReason], object]] = None,
    ) -> SyncTerm:
        """Returns when this candidate is elected, however long that takes. See `LeaderElection.campaign`.

        `on_demoted` is called in the thread of the heartbeat. It should only stop things, and return soon.
        """
        campaign = self._inner.campaign(
            value=value,
            blocking_timeout_seconds=blocking_timeout_seconds,
            max_term_seconds=max_term_seconds,
            on_demoted=_for_term(on_demoted),
        )

        async def elected() -> SyncTerm:
            # Wrapped in the event loop: here, an interrupt could come between the term and its wrapper.
            return SyncTerm(await campaign)

        return portal().run(elected(), _resign)

    def run(
        self,
        lead: Callable[[SyncTerm], Any],
        *,
        value: Any = None,
        max_term_seconds: Optional[Seconds] = None,
        on_demoted: Optional[Callable[[SyncTerm, DemotionReason], object]] = None,
        on_error: Optional[Callable[[BaseException, SyncTerm], object]] = None,
        rest_seconds: Seconds = 1,
    ) -> None:
        """Campaigns, calls `lead(term)` in this thread while it leads, and campaigns again. It returns when the
        election is closed, and raises what interrupts the thread.

        `lead` cannot be cancelled: it has to return when `term.held` is false, and the next campaign begins after that.
        The rest is as in `LeaderElection.run`.
        """
        check_callable("lead", lead)

        def work(call_back: CallBack) -> Any:
            return self._inner.run(
                lambda term: call_back(lead, SyncTerm(term)),
                value=value,
                max_term_seconds=max_term_seconds,
                on_demoted=_for_term(on_demoted),
                on_error=None if on_error is None else _with_sync_term(on_error),
                rest_seconds=rest_seconds,
            )

        portal().run_with(work)

    def resign(self) -> bool:
        """Ends this instance's term, if it leads, and wakes the next candidate. True if it led."""
        return portal().run(self._inner.resign())

    def leader(self) -> Optional[Leader]:
        """The current leader according to the store, or None if there is none."""
        return portal().run(self._inner.leader())

    def observe(
        self, *, every_seconds: Seconds = 1, on_error: Optional[Callable[[StoreError], object]] = None
    ) -> Iterator[Optional[Leader]]:
        """Yields the current leader, and then every change: `for leader in election.observe(): …`. It ends when the
        election is closed. `on_error` is called in the thread of the heartbeat."""
        leaders = self._inner.observe(every_seconds=every_seconds, on_error=on_error)

        async def following() -> Optional[Leader]:
            return await leaders.__anext__()

        return _Observed(following)


class _Observed(Iterator[Optional[Leader]]):
    def __init__(self, following: Callable[[], Any]) -> None:
        self._following = following

    def __next__(self) -> Optional[Leader]:
        try:
            leader: Optional[Leader] = portal().run(self._following())
            return leader
        except StopAsyncIteration:
            raise StopIteration from None


def _with_sync_term(
    on_error: Callable[[BaseException, SyncTerm], object],
) -> Callable[[BaseException, Term], object]:
    return lambda error, term: on_error(error, SyncTerm(term))


def _for_term(
    on_demoted: Optional[Callable[[SyncTerm, DemotionReason], object]],
) -> Optional[Callable[[Term, DemotionReason], object]]:
    if on_demoted is None:
        return None
    check_callable("on_demoted", on_demoted)
    demoted = on_demoted

    def call(term: Term, reason: DemotionReason) -> None:
        try:
            demoted(SyncTerm(term), reason)
        except SystemExit as error:
            # In this thread it would end neither the process nor the caller's thread, only all heartbeats. Raised as an
            # error, it is logged, and the term is resigned.
            raise RuntimeError("sys.exit() in on_demoted has no effect: it is called in another thread") from error

    return call
