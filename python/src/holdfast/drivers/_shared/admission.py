"""Who is granted a lock next, for stores that decide in this process (memory and SQLite).

The rules are those of protocol/sqlite/README.md, "Admission".
"""

from __future__ import annotations

from typing import Iterable, Optional, Protocol, Sequence, TypeVar

from ...core.driver import Mode


class Share(Protocol):
    """The part of a lock that a lease has, or that a waiter needs."""

    @property
    def mode(self) -> Mode: ...

    @property
    def limit(self) -> Optional[int]: ...

    @property
    def permits(self) -> int: ...


S = TypeVar("S", bound=Share)


def fits_beside(share: Share, held: Sequence[Share]) -> bool:
    """Whether a claim can be granted beside the leases. Only its own limit counts, never that of another client."""
    if share.mode == "exclusive":
        return not held
    if any(each.mode == "exclusive" for each in held):
        return False
    return share.limit is None or sum(each.permits for each in held) + share.permits <= share.limit


def admitted(leases: Iterable[Share], queue: Iterable[S]) -> list[S]:
    """The waiters that can be granted the lock now: from the front of the queue, as many as fit beside the leases and
    beside each other. No waiter overtakes the first one that does not fit, so readers do not starve a writer."""
    held: list[Share] = list(leases)
    found: list[S] = []
    for waiter in queue:
        if not fits_beside(waiter, held):
            break
        held.append(waiter)
        found.append(waiter)
    return found
