"""Simulates what happens if no claim gives up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional, Sequence, Union

from ..claim_ids import chain_id_of, chain_ids_of
from ..driver import LeaseRecord, Mode, WaiterRecord
from ..lock_share import fits_beside

Record = Union[LeaseRecord, WaiterRecord]


class StuckQueue:
    """The state of a lock name after everything that can continue has continued."""

    def __init__(self) -> None:
        self.waiters: list[WaiterRecord] = []
        self.next = 0
        """How many waiters, from the first one on, can be granted. Those behind them are stuck."""
        self._held: dict[int, Record] = {}
        self._exclusive = 0
        self._permits = 0

    @property
    def held(self) -> Sequence[Record]:
        """What cannot be released because a claim waits inside its block: leases, and waiters that were granted during
        the simulation."""
        return list(self._held.values())

    @property
    def grantable(self) -> Optional[WaiterRecord]:
        """The next waiter, if it can be granted."""
        if self.next == len(self.waiters):
            return None
        waiter = self.waiters[self.next]
        # Everything that is held as a single share, which `fits_beside` treats like the separate ones.
        held = [_Total("exclusive" if self._exclusive else "shared", self._permits)] if self._held else []
        return waiter if fits_beside(waiter, held) else None

    def hold(self, record: Record) -> None:
        self._held[id(record)] = record
        self._count(record, 1)

    def release(self, record: Record) -> None:
        if self._held.pop(id(record), None) is not None:
            self._count(record, -1)

    def _count(self, record: Record, sign: int) -> None:
        if record.mode == "exclusive":
            self._exclusive += sign
        self._permits += sign * record.permits


def stuck_queues(leases: Sequence[LeaseRecord], waiters: Sequence[WaiterRecord]) -> dict[str, StuckQueue]:
    """Each lease and each waiter is processed once, in any order: a snapshot of ten thousand records must not block the
    event loop, and with it the renewals of the leases of this process."""
    queues: dict[str, StuckQueue] = {}
    chains: dict[str, _Chain] = {}

    def queue_of(lock_name: str) -> StuckQueue:
        return queues.setdefault(lock_name, StuckQueue())

    def chain_of(chain_id: str) -> _Chain:
        return chains.setdefault(chain_id, _Chain())

    def hold(queue: StuckQueue, record: Record) -> None:
        queue.hold(record)
        chain_of(chain_id_of(record.claim_id)).holds.append((queue, record))

    for lease in leases:
        hold(queue_of(lease.lock_name), lease)
    for waiter in waiters:
        queue_of(waiter.lock_name).waiters.append(waiter)
        for each in chain_ids_of(waiter.claim_id):
            chain_of(each).waits_for += 1

    unprocessed = dict.fromkeys(queues.values())

    def release_if_free(chain: _Chain) -> None:
        if chain.waits_for > 0:
            return
        holds, chain.holds = chain.holds, []
        for queue, record in holds:
            queue.release(record)
            unprocessed[queue] = None

    for chain in chains.values():
        release_if_free(chain)
    while unprocessed:
        # It is added again if one of its leases is released later.
        queue, _ = unprocessed.popitem()
        while (granted := queue.grantable) is not None:
            queue.next += 1
            hold(queue, granted)
            for each in chain_ids_of(granted.claim_id):
                chain = chain_of(each)
                chain.waits_for -= 1
                release_if_free(chain)
    return queues


@dataclass
class _Chain:
    waits_for: int = 0
    """How many claims of this chain, and of chains inside it at any depth, have not been granted."""
    holds: list[tuple[StuckQueue, Record]] = field(default_factory=list)


@dataclass
class _Total:
    mode: Mode
    permits: int
    limit: Optional[int] = None
