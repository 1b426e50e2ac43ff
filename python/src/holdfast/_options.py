"""The options of a claim, from the arguments of a call and the defaults of an instance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Mapping, Optional, TypedDict

from .core.arguments import check_bool, check_lock_name, check_metadata, ttl_ms_from, wait_ms_from
from .core.driver import Mode
from .core.holder import ClaimRequest
from .errors import InvalidArgumentError


class LockDefaults(TypedDict, total=False):
    """Options for all calls that do not set them: `{"timeout_seconds": 60, "blocking": True}`."""

    timeout_seconds: float
    blocking: bool
    blocking_timeout_seconds: float
    metadata: Mapping[str, Any]
    heartbeat: bool
    min_hold_seconds: float
    max_hold_seconds: float


@dataclass(frozen=True)
class Share:
    """What part of a lock is claimed: all of it, a reader's part, or permits of a limit."""

    mode: Mode = "exclusive"
    limit: Optional[int] = None
    permits: int = 1


EXCLUSIVE = Share()
SHARED = Share("shared")

_NAMES = frozenset(LockDefaults.__annotations__)


def check_defaults(defaults: Optional[LockDefaults]) -> LockDefaults:
    """Finds mistakes when the instance is made, not at each call."""
    if defaults is None:
        return {}
    if not isinstance(defaults, dict):
        raise InvalidArgumentError("defaults", defaults, "a dict of options")
    for name in defaults:
        if name not in _NAMES:
            raise InvalidArgumentError("defaults", name, "made of " + ", ".join(sorted(_NAMES)))
    request_from("defaults", EXCLUSIVE, defaults, heartbeat_by_default=False)
    copy: LockDefaults = defaults.copy()
    return copy


def request_from(
    lock_name: str,
    share: Share,
    defaults: LockDefaults,
    *,
    heartbeat_by_default: bool,
    timeout_seconds: Optional[float] = None,
    blocking: Optional[bool] = None,
    blocking_timeout_seconds: Optional[float] = None,
    metadata: Optional[Mapping[str, Any]] = None,
    heartbeat: Optional[bool] = None,
    min_hold_seconds: Optional[float] = None,
    max_hold_seconds: Optional[float] = None,
) -> ClaimRequest:
    """Checks every argument before anything is sent. None means that the call does not set the option."""
    lock_name = check_lock_name(lock_name)
    if timeout_seconds is None:
        timeout_seconds = defaults.get("timeout_seconds", 30)
    if metadata is None:
        metadata = defaults.get("metadata")
    if heartbeat is None:
        heartbeat = defaults.get("heartbeat", heartbeat_by_default)
    if min_hold_seconds is None:
        min_hold_seconds = defaults.get("min_hold_seconds", 0)
    if max_hold_seconds is None:
        max_hold_seconds = defaults.get("max_hold_seconds")
    return ClaimRequest(
        lock_name,
        ttl_ms_from("timeout_seconds", timeout_seconds),
        _wait_ms(blocking, blocking_timeout_seconds, defaults),
        share.mode,
        share.limit,
        share.permits,
        None if metadata is None else check_metadata(metadata),
        check_bool("heartbeat", heartbeat),
        wait_ms_from("min_hold_seconds", min_hold_seconds),
        math.inf if max_hold_seconds is None else ttl_ms_from("max_hold_seconds", max_hold_seconds),
    )


def _wait_ms(blocking: Optional[bool], seconds: Optional[float], defaults: LockDefaults) -> int:
    """What a call says about waiting overrides the defaults, and a waiting time implies that it waits."""
    if blocking is None:
        blocking = seconds is not None or defaults.get("blocking", "blocking_timeout_seconds" in defaults)
    if seconds is None:
        seconds = defaults.get("blocking_timeout_seconds", 10)
    wait_ms = wait_ms_from("blocking_timeout_seconds", seconds)
    return wait_ms if check_bool("blocking", blocking) else 0
