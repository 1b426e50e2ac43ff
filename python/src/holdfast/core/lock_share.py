"""The part of a lock that a lease has, or that a waiter needs."""

from __future__ import annotations

from typing import Optional, Protocol, Sequence

from .driver import Mode


class Share(Protocol):
    @property
    def mode(self) -> Mode: ...

    @property
    def limit(self) -> Optional[int]: ...

    @property
    def permits(self) -> int: ...


def fits_beside(share: Share, held: Sequence[Share]) -> bool:
    """Whether a claim can be granted beside the leases. Only its own limit counts, never that of another client."""
    if share.mode == "exclusive":
        return not held
    if any(each.mode == "exclusive" for each in held):
        return False
    return share.limit is None or sum(each.permits for each in held) + share.permits <= share.limit
