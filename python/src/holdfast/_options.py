"""The options of a claim, from the arguments of a call and the defaults of an instance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Mapping, Optional, Sequence, Type, TypedDict, Union

from .core.arguments import (
    Seconds,
    blocking_ms_from,
    check_bool,
    check_lock_name,
    check_metadata,
    check_options,
    ttl_ms_from,
    wait_ms_from,
)
from .core.clock import Clock, Random
from .core.driver import Mode
from .core.holder import ClaimRequest
from .core.lease import Lease
from .errors import InvalidArgumentError

if TYPE_CHECKING:
    from .sync.lease import SyncLease


class LockOptions(TypedDict, total=False):
    """The options of every call that takes a lock, and of `defaults`, which sets them for all calls of an instance.

    They are keyword arguments: `lock.acquire("order:123", timeout_seconds=60, blocking=True)`. A number of seconds can
    also be a `timedelta`. None means that the call does not set the option.
    """

    timeout_seconds: Optional[Seconds]
    """The lease's time to live. 30 by default, from 0.05 to one year. A heartbeat renews the lease until it ends."""
    blocking: Optional[bool]
    """Whether to wait for a lock that is held. False by default, unless `blocking_timeout_seconds` is set."""
    blocking_timeout_seconds: Optional[Seconds]
    """How long to wait. 10 by default. It implies `blocking`."""
    metadata: Optional[Mapping[str, Any]]
    """A JSON object that is shown to everyone who asks who holds the lock. At most 16,384 bytes."""
    heartbeat: Optional[bool]
    """Renews the lease until it is released. True by default, except in `acquire`."""
    min_hold_seconds: Optional[Seconds]
    """A release before this time keeps the lock until then. 0 by default."""
    max_hold_seconds: Optional[Seconds]
    """The heartbeat stops renewing after this time. No limit by default."""
    under: Optional[Union[Lease, SyncLease]]
    """A lease that the same task holds while it waits for this lock, so that a deadlock between the two can be found.
    Inside a block this is known. After `hold` or `acquire` it is not: pass the lease here. Not in `defaults`."""


class RateLimiterOptions(TypedDict, total=False):
    """The options that the constructor of every primitive has."""

    call_timeout_seconds: Seconds
    """How long a call to the store may take, 5 by default. After that its outcome is unknown, a `StoreError`."""
    clock: Optional[Clock]
    """For tests."""
    random: Optional[Random]
    """For tests."""


class HeartbeatThreadOptions(TypedDict, total=False):
    stalled_after_seconds: Seconds
    """The thread stops when the event loop has not run for this long. 30 by default."""


class InstanceOptions(RateLimiterOptions, total=False):
    """The options that the constructors of all primitives that hold leases have."""

    holder_id: Optional[str]
    """Identifies this instance to others. By default host name, process id and a random part."""
    waiter_ttl_seconds: Seconds
    """How long a waiter that died can delay the waiters behind it. 10 by default."""
    deadlock_after_seconds: Seconds
    """How long a claim that waits inside a block waits before it looks for a deadlock, 1 by default. 0: it never looks.
    If claims wait for each other, the youngest ends with a `DeadlockError`."""
    heartbeat_thread: Union[bool, HeartbeatThreadOptions]
    """Lets a thread with a connection of its own renew leases while the event loop is blocked, as by `time.sleep`. The
    thread stops when the event loop has not run for `stalled_after_seconds`: a process that hangs for ever loses its
    locks. Raises `UnsupportedError` where no thread can open the store for itself: memory, advisory locks, and clients
    or drivers that you pass in. False by default. The synchronous API needs none: its heartbeat has a thread anyway."""


@dataclass(frozen=True)
class Share:
    """What part of a lock is claimed: all of it, a reader's part, or permits of a limit."""

    mode: Mode = "exclusive"
    limit: Optional[int] = None
    permits: int = 1


EXCLUSIVE = Share()
SHARED = Share("shared")

_NAMES = frozenset(LockOptions.__annotations__)


def check_defaults(defaults: Optional[LockOptions]) -> LockOptions:
    """Finds mistakes when the instance is made, not at each call."""
    if defaults is None:
        return {}
    if not isinstance(defaults, dict):
        raise InvalidArgumentError("defaults", defaults, "a dict of options")
    check_options("defaults", defaults, _NAMES - {"under"})
    copy = overridden({}, defaults)
    request_from("defaults", EXCLUSIVE, {}, copy, heartbeat_by_default=False)
    return copy


def overridden(options: LockOptions, by: LockOptions) -> LockOptions:
    """A waiting time implies that the call waits, although the options that it overrides do not."""
    copy = options.copy()
    if by.get("blocking_timeout_seconds") is not None:
        copy.pop("blocking", None)
    for name, value in by.items():
        if value is not None:
            copy[name] = value  # type: ignore[literal-required]
    return copy


def check_instance_options(options: Mapping[str, object], known: Type[object], also: Sequence[str]) -> None:
    """Only their names. `known`: the type of the options. `also`: what else the constructor takes."""
    for name in options:
        if name in known.__annotations__:
            continue
        if name in _NAMES and "defaults" in also:
            message = f"an instance has no option {name}: pass it to each call, or defaults={{'{name}': …}}"
            raise InvalidArgumentError("options", name, "made of the options of an instance", message)
        check_options("options", [name], [*known.__annotations__, *also])


def request_from(
    lock_name: str, share: Share, defaults: LockOptions, options: LockOptions, *, heartbeat_by_default: bool
) -> ClaimRequest:
    """Checks every argument before anything is sent."""
    lock_name = check_lock_name(lock_name)
    if not options.keys() <= _NAMES:
        check_options("options", options, _NAMES)
    timeout_seconds = options.get("timeout_seconds")
    if timeout_seconds is None:
        timeout_seconds = defaults.get("timeout_seconds", 30)
    # What a call says about waiting overrides the defaults, and a waiting time implies that it waits.
    blocking, seconds = options.get("blocking"), options.get("blocking_timeout_seconds")
    if blocking is None:
        blocking = seconds is not None or defaults.get("blocking", "blocking_timeout_seconds" in defaults)
    if seconds is None:
        seconds = defaults.get("blocking_timeout_seconds")
    metadata = options.get("metadata")
    if metadata is None:
        metadata = defaults.get("metadata")
    heartbeat = options.get("heartbeat")
    if heartbeat is None:
        heartbeat = defaults.get("heartbeat", heartbeat_by_default)
    min_hold_seconds = options.get("min_hold_seconds")
    if min_hold_seconds is None:
        min_hold_seconds = defaults.get("min_hold_seconds", 0)
    max_hold_seconds = options.get("max_hold_seconds")
    if max_hold_seconds is None:
        max_hold_seconds = defaults.get("max_hold_seconds")
    # A lease of the synchronous API is one of this with another face.
    under = getattr(options.get("under"), "_lease", options.get("under"))
    if under is not None and not isinstance(under, Lease):
        raise InvalidArgumentError("under", under, "a lease")
    return ClaimRequest(
        lock_name,
        ttl_ms_from("timeout_seconds", timeout_seconds),
        blocking_ms_from(blocking, seconds),
        share.mode,
        share.limit,
        share.permits,
        None if metadata is None else check_metadata(metadata),
        check_bool("heartbeat", heartbeat),
        wait_ms_from("min_hold_seconds", min_hold_seconds),
        math.inf if max_hold_seconds is None else ttl_ms_from("max_hold_seconds", max_hold_seconds),
        under=under,
    )
