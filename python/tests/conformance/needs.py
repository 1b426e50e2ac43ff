"""What a case may need of a driver. Every skip of the suite comes from this table and states its reason."""

from __future__ import annotations

from typing import Callable, Dict, Optional, Sequence, Tuple

from holdfast.core.driver import Capabilities

NEEDS: Dict[str, Tuple[Callable[[Capabilities], bool], str]] = {
    "ttl": (
        lambda of: of.expiry == "ttl",
        "its leases last as long as the session that took them, none ends by time",
    ),
    "session": (lambda of: of.expiry == "session", "its leases end by time, not with a connection"),
    "fencing": (lambda of: of.fencing, "its grants carry no fencing token"),
    "shared": (lambda of: of.shared, "it has no shared mode"),
    "limit": (lambda of: of.limit, "it cannot count permits, so it has no semaphores"),
    "queue": (lambda of: of.queue, "it keeps no queue, so waiters of different processes are served in any order"),
    "wake": (lambda of: of.wake, "it cannot wake a waiter, so waiters poll"),
    "metadata": (lambda of: of.metadata, "it keeps no metadata"),
    "rate": (lambda of: of.rate, "it has no rate limits"),
    "force": (lambda of: bool(of.force), "it cannot take a lock from its holder"),
    "force_up_to": (lambda of: of.force == "claim", "it cannot take a lock from its holder in the step of a claim"),
    "groups": (lambda of: of.groups, "it cannot grant several names in one step"),
    "own_clock": (
        lambda of: of.scope == "network",
        "its store lives on the machine of its clients and reads the same clock",
    ),
}


def unmet_reason(capabilities: Capabilities, wanted: Sequence[str]) -> Optional[str]:
    """Why the driver skips a case with these needs. None if it meets all of them."""
    for need in wanted:
        is_met, reason = NEEDS[need]
        if not is_met(capabilities):
            return reason
    return None
