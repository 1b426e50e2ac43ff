"""Keeps leases in one kind of store: the only interface between what a lock means and where it is stored.

Every method of a driver takes a list and returns a list of the same length and order, so that all requests that a
process makes in one turn of its event loop cost one round trip. Waiting, batching, deadlines, the heartbeat, and the
retries after contention or an outage exist once, in `holdfast.core`.

A driver must guarantee:

- The store's clock decides expiry. Only durations are sent to the store, never a client's time.
- A grant, its fencing token and its record in the store are one atomic step.
- An exception as an entry of an answer means that the outcome of that entry is unknown. A call that raises means the
  same for all of its entries. An unknown outcome must never be reported as a refusal or a loss.
- An error of a client library is wrapped in a `StoreError` whose message and cause hold no password.

A driver never waits for a lock to become free, and never retries a claim because it was refused. It may repeat a
request, a bounded number of times or for a bounded time, if it failed for a transient reason other than contention.

The core never cancels a call of a driver: many clients return a connection in the middle of a reply if they are
cancelled. It only stops waiting for the answer. So a driver sets timeouts of its own where its client has them.
All calls of one driver come from one event loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Awaitable, Callable, Literal, Mapping, Optional, Protocol, Sequence, Union

Mode = Literal["exclusive", "shared"]
Metadata = Mapping[str, Any]
"""A JSON object, which the store returns unchanged."""


@dataclass(frozen=True)
class Capabilities:
    """What a driver supports. A constant: it is the same before and after the driver has connected."""

    expiry: Literal["ttl", "session"]
    """What ends a lease in the store: the end of its TTL, or the end of the connection."""
    scope: Literal["process", "machine", "network"]
    """Who excludes each other: the tasks of one process, the processes of one machine, or machines in a network."""
    fencing: bool
    shared: bool
    limit: bool
    queue: bool
    """Serves waiters first come, first served, across all processes."""
    wake: bool
    """Has `listen`."""
    metadata: bool
    rate: bool
    """Has `consume`."""
    force: Literal["claim", "call", False]
    """How a client can end leases that it does not hold: with a claim that has `force_up_to`, with `force_release` of
    `ForcingDriver`, or not at all."""
    groups: bool
    """Grants claims with the same `group` in one step, or none of them."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why something is not supported. It becomes the end of the `UnsupportedError`'s message, after a colon."""


ANY_TOKEN = 2**53 - 1
"""Like `force_up_to`: ends any lease."""


@dataclass(frozen=True)
class Claim:
    """A request for a lock."""

    lock_name: str
    claim_id: str
    """Unique to this acquisition, across all processes. A repeated acquire, a renewal and a release refer to it."""
    holder_id: str
    ttl_ms: float
    mode: Mode = "exclusive"
    limit: Optional[int] = None
    """Shared only: how many permits may be held at once, including those of this claim. None: any number."""
    permits: int = 1
    metadata: Optional[Metadata] = None
    waiter_ttl_ms: float = 0
    """How long the store keeps the claim in its queue without another request. 0: the claim is not queued."""
    force_up_to: Optional[int] = None
    """In one step, ends every lease on the name and grants this exclusive claim with a higher token, before waiters.
    The number is the largest fencing token of a lease that it may end. If there is a larger one, it is refused."""
    group: Optional[str] = None
    """Adjacent claims of one list with the same group are granted in one step, or none of them is. At most 100,
    exclusive, with different lock names, neither waiting nor with `force_up_to`. A member that already has its lease,
    because an earlier answer was lost, counts as free. If its group is refused nevertheless, its answer is an
    exception: its lease still exists and has to be withdrawn."""


@dataclass(frozen=True)
class Grant:
    fencing_token: int
    ttl_ms: float
    """The TTL of the lease, counted from the grant."""
    acquired_at_ms: float
    """The store's clock at the first grant of this claim."""


@dataclass(frozen=True)
class LeaseRecord:
    """A lease in the store. Times are on the store's clock, in milliseconds since 1970."""

    lock_name: str
    claim_id: str
    holder_id: str
    mode: Mode
    permits: int
    fencing_token: int
    acquired_at_ms: float
    expires_at_ms: Optional[float] = None
    """None if the lease lasts as long as its session."""
    limit: Optional[int] = None
    metadata: Optional[Metadata] = None
    session: Optional[str] = None
    """For `session` expiry: the session that holds it, as its server names it."""


@dataclass(frozen=True)
class WaiterRecord:
    """A queued claim in the store."""

    lock_name: str
    claim_id: str
    holder_id: str
    mode: Mode
    permits: int
    waiting_since_ms: float
    limit: Optional[int] = None


@dataclass(frozen=True)
class Refusal:
    holder: Optional[LeaseRecord] = None
    """One of the leases that conflict with the claim. None if the store does not show it."""
    free: bool = False
    """The claim has no conflict of its own: it was refused because another member of its group was."""
    ahead: Optional[int] = None
    """The number of waiters before this claim: exact up to 32, at least 32 beyond that. None if it is not queued."""
    ask_again_ms: Optional[float] = None
    """After how long a repeated request may succeed without a wake-up, for example because a lease has expired."""
    answered_at_ms: Optional[float] = None
    """The store's clock at this answer. Needed by drivers that report grants: a grant that is older than a refusal has
    ended, although its message may still arrive. Without it, a reported grant is only a hint to ask again."""


@dataclass(frozen=True)
class LeaseRef:
    """Identifies a lease. Without a `fencing_token`: all that the claim has in the store, its place included."""

    lock_name: str
    claim_id: str
    fencing_token: Optional[int] = None


@dataclass(frozen=True)
class Renewal:
    lock_name: str
    claim_id: str
    fencing_token: int
    ttl_ms: float


RenewAnswer = Literal["renewed", "held", "lost"]
"""`renewed`: the lease ends `ttl_ms` from now. `held`: the lease exists, and the store has no expiry to extend. `lost`:
the lease has ended."""


@dataclass(frozen=True)
class InspectQuery:
    lock_name: Optional[str] = None
    """Only this lock name."""
    prefix: Optional[str] = None
    """Only lock names that begin with this text."""
    after: Optional[str] = None
    """`next` of the previous page."""
    page_size: int = 100
    """The maximum number of lock names on a page, from 1 to 10,000."""


@dataclass(frozen=True)
class InspectPage:
    leases: Sequence[LeaseRecord]
    waiters: Sequence[WaiterRecord]
    """For each lock name, in the order in which they will be served."""
    next: Optional[str] = None
    """Pass it as `after` to get the next page. None on the last page."""


@dataclass(frozen=True)
class RateLimit:
    """The three fields together identify a limit: requests for one name with the same limit share its state."""

    limit: int
    period_ms: float
    burst: int


@dataclass(frozen=True)
class RateRequest:
    name: str
    cost: int
    """How many units to take: all of them or none. 0: nothing is taken or written, and the answer shows the state."""
    limits: Sequence[RateLimit]
    """One to four. Units are taken only if all of them allow it."""
    reset: bool = False
    """Removes all consumption and every block of these limits on this name instead of taking units."""
    block_ms: Optional[float] = None
    """Refuses every step under one of these limits for this long from now, instead of taking units. 0 ends a block."""


@dataclass(frozen=True)
class RateAnswer:
    allowed: bool
    remaining: int
    """The number of units that could be taken now under the strictest limit."""
    retry_after_ms: float
    """After how long the same request can be allowed. 0 when allowed."""
    reset_after_ms: float
    """After how long every limit has its full capacity again."""
    used_ms: Sequence[float]
    """For each limit: after how long it has its full capacity again. Blocks are not included."""
    blocked_ms: Optional[float] = None
    """How long one of the limits is still blocked. The other times are then at least this long, `remaining` is 0."""


class DriverListener(Protocol):
    """What a driver reports to the core. All methods are synchronous, and are called in the driver's event loop."""

    def wake(self, lock_name: str, claim_id: Optional[str] = None) -> None:
        """A hint that another request may succeed: for one claim, or for every claim on the lock name."""

    def granted(self, claim_id: str, grant: Grant) -> None:
        """The store has granted a waiting claim without a request. The driver has checked the proof."""

    def lost(self, claim_id: str, cause: Exception) -> None:
        """The store has ended a lease. With `session` expiry it is lost at once; with `ttl` expiry this is a hint."""

    def disconnected(self, cause: Exception) -> None:
        """The subscription has broken and reports nothing more. The core calls `listen` again."""


class ForcingDriver(Protocol):
    """What a driver has whose claims cannot have `force_up_to`, but that can end leases of other clients."""

    async def force_release(
        self, leases: Sequence[LeaseRecord], *, by: str, end_session: bool
    ) -> Sequence[Union[bool, Exception]]:
        """Ends leases as `inspect` returned them. Compares claim and fencing token, and touches no other lease. For
        each, True if this call ended it, False if it had ended before or has a newer token. An exception: it was not
        ended, or that is unknown. It may take up to 15 s: it may have to wait for the holders.

        `by`: who does it and why. `end_session`: for `session` expiry, if the holder does not let go, ends its session,
        and with it all leases of that session.
        """


StopListening = Callable[[], Awaitable[None]]


class Driver(Protocol):
    @property
    def name(self) -> str:
        """One word, the same as in the docs: `memory`, `sqlite`, … Used in error messages."""

    @property
    def place(self) -> Optional[str]:
        """Where the store is, for error messages: a URL without user name and password."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def longest_ttl_ms(self) -> Optional[float]:
        """The longest TTL that a claim may have, if that is shorter than the core's own limit of one year."""

    async def acquire(self, claims: Sequence[Claim]) -> Sequence[Union[Grant, Refusal, Exception]]:
        """Grants each claim or refuses it, in the order of the list.

        A claim whose `claim_id` already has a lease gets that lease again: the same fencing token, and its TTL starts
        again. A refused claim with `waiter_ttl_ms` above 0 is added to the queue, or keeps its place that long.
        """

    async def renew(self, renewals: Sequence[Renewal]) -> Sequence[Union[RenewAnswer, Exception]]:
        """Sets each lease to end `ttl_ms` from now. Compares claim and token; never re-creates a lease that ended."""

    async def release(self, leases: Sequence[LeaseRef]) -> Sequence[Union[bool, Exception]]:
        """Ends each lease or place in the queue. True if this call ended a lease that had not ended before."""

    async def inspect(self, query: InspectQuery) -> InspectPage:
        """Lists the leases and waiters that have not ended, in pages."""

    async def listen(self, listener: DriverListener) -> StopListening:
        """Starts to report wake-ups, grants and losses. Returns when the subscription is active. Only with `wake`."""

    async def consume(self, requests: Sequence[RateRequest]) -> Sequence[Union[RateAnswer, Exception]]:
        """Executes one rate-limiting step (GCRA) for each request, on the store's clock. Only with `rate`."""

    async def close(self) -> None:
        """Closes the connections that the driver has opened. Does not end any lease. Every later call raises."""
