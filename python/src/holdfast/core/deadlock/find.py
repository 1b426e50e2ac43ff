"""Finds cycles in what the store shows: which leases cannot be released before which waiters are served."""

from __future__ import annotations

from typing import NamedTuple, Optional, Sequence

from ...errors import DeadlockError, DeadlockStep
from ..claim_ids import chain_id_of, chain_ids_of
from ..driver import LeaseRecord, WaiterRecord
from ..lock_share import fits_beside
from .components import component_numbers, group_by
from .stuck_queues import Record, stuck_queues


class Wait(NamedTuple):
    """An edge of the wait-for graph: a claim that waits, and a lease or an earlier waiter that blocks it."""

    waiter: WaiterRecord
    blocker: Record


Cycle = Sequence[Wait]
"""It starts with the victim."""


def find_cycles(leases: Sequence[LeaseRecord], waiters: Sequence[WaiterRecord]) -> dict[str, Cycle]:
    """The cycles, each by the claim id of its victim, the claim that has to give up. What is missing in the records can
    hide a deadlock, but never invent one.

    The victim is the youngest of the claims that wait for each other. So all processes choose the same victim, and the
    work that is lost is that of the claim that came last. A claim that only waits behind a cycle is not part of it.
    """
    waits = wait_for_graph(leases, waiters)
    edges = [(chain_id_of(waiter.claim_id), chain_id_of(blocker.claim_id)) for waiter, blocker in waits]
    numbers = component_numbers([*edges, *_nesting_edges(waits)])
    in_cycles = [
        (numbers[start], wait) for (start, to), wait in zip(edges, waits) if numbers[start] == numbers.get(to)
    ]
    found: dict[str, Cycle] = {}
    for group in group_by(in_cycles, lambda each: each[0]).values():
        component = [wait for _, wait in group]
        victim = max((wait.waiter for wait in component), key=lambda each: (each.waiting_since_ms, each.claim_id))
        found[victim.claim_id] = _shortest_cycle(component, victim.claim_id)
    return found


def wait_for_graph(leases: Sequence[LeaseRecord], waiters: Sequence[WaiterRecord]) -> list[Wait]:
    """Of all claims that can never be granted unless one of them gives up.

    A block inside which no claim waits continues, and its lease will be released. The same is true for a block whose
    inner claims can all be granted once such leases are released, and so on until nothing changes. The remaining claims
    wait for each other. So a permit that is held in a cycle does no harm if another permit of the semaphore becomes
    free.
    """
    waits: list[Wait] = []
    for queue in stuck_queues(leases, waiters).values():
        holders, ahead = queue.held, None
        for waiter in queue.waiters[queue.next :]:
            # Only the first waiter needs an edge to every holder. The others reach all of them through those ahead.
            considered = holders if ahead is None else holders[:_MAX_BLOCKERS]
            for holder in considered:
                if waiter.limit is not None or not fits_beside(waiter, [holder]):
                    waits.append(Wait(waiter, holder))
            if ahead is not None:
                waits.append(Wait(waiter, ahead))
            ahead = waiter
    return waits


def cycle_key(cycle: Cycle) -> str:
    """If two snapshots contain a cycle with the same key, all its claims waited and held from the first to the second.
    """
    return " ".join(f"{waiter.claim_id} {blocker.claim_id}" for waiter, blocker in cycle)


def deadlock_error(cycle: Cycle) -> DeadlockError:
    lock_name = cycle[0].waiter.lock_name
    waits = []
    for waiter, blocker in cycle[:_MAX_WAITS_IN_MESSAGE]:
        holds = isinstance(blocker, LeaseRecord)
        how = f"which {blocker.holder_id} holds" if holds else f"behind {blocker.holder_id}"
        waits.append(f'{waiter.holder_id} waits for "{waiter.lock_name}", {how}')
    left = len(cycle) - len(waits)
    more = f"; and {left} more" if left else ""
    return DeadlockError(
        f'waiting for "{lock_name}" would never end: {"; ".join(waits)}{more}',
        lock_name,
        [DeadlockStep(waiter.holder_id, waiter.lock_name, blocker.holder_id) for waiter, blocker in cycle],
    )


def _nesting_edges(waits: Sequence[Wait]) -> list[tuple[str, str]]:
    """A block continues when everything inside it does. So there is an edge from each chain to the chains directly
    inside it in which a claim waits."""
    outer: dict[str, str] = {}
    for waiter, _ in waits:
        ids = chain_ids_of(waiter.claim_id)
        for inside, around in zip(ids, ids[1:]):
            if inside in outer:
                break
            outer[inside] = around
    return [(around, inside) for inside, around in outer.items()]


def _shortest_cycle(component: Sequence[Wait], claim_id: str) -> Cycle:
    """Breadth-first search from the waits of a claim back to a lease under which the claim is made."""
    waits_inside: dict[str, list[Wait]] = {}
    for wait in component:
        for each in chain_ids_of(wait.waiter.claim_id):
            waits_inside.setdefault(each, []).append(wait)
    own = set(chain_ids_of(claim_id))
    paths = [_Path(wait, None) for wait in component if wait.waiter.claim_id == claim_id]
    visited: set[str] = set()
    # The list grows during the loop, so shorter paths come first.
    for path in paths:
        chain = chain_id_of(path.last.blocker.claim_id)
        if chain in own:
            return path.waits
        if chain not in visited:
            visited.add(chain)
            paths.extend(_Path(wait, path) for wait in waits_inside.get(chain, ()))
    return component


class _Path(NamedTuple):
    last: Wait
    before: Optional[_Path]

    @property
    def waits(self) -> Cycle:
        waits: list[Wait] = []
        path: Optional[_Path] = self
        while path is not None:
            waits.append(path.last)
            path = path.before
        return waits[::-1]


_MAX_WAITS_IN_MESSAGE = 20
"""How many waits of a cycle an error message lists. The `cycle` of the error has all of them."""
_MAX_BLOCKERS = 16
"""To how many holders a waiter that is not the first of its queue has an edge."""
