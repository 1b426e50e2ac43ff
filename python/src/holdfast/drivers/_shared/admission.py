"""Who is granted a lock next, for stores that decide in this process (memory and SQLite).

The rules are those of protocol/sqlite/README.md, "Admission".
"""

from __future__ import annotations

from typing import Iterable, TypeVar

from ...core.lock_share import Share, fits_beside

S = TypeVar("S", bound=Share)


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
