"""Marks in the store which lock name a claim waits for."""

from __future__ import annotations

import asyncio
from typing import Callable, Optional

from ...errors import HoldfastError, StoreError
from ..claim_ids import chain_id_of, chain_ids_of
from ..driver import Claim, LeaseRecord
from ..in_flight import InFlight
from ..store_client import StoreClient

_PREFIX = "waits:"
_TTL_MS = 90_000
"""Longer than the longest pause between two searches of a claim: each search writes the marker again."""


class WaitMarker:
    """So a process that finds one of the leases around the claim can follow it. There is one marker for each of these
    leases, under a name that contains the id of the lease's chain. So it takes one request by name, which every store
    answers from an index, to get from a lease to what it waits for. Without markers, all lock names would have to be
    read.

    A marker is a shared lease with a TTL. It is only a hint where to look: the queue of the lock name shows whether the
    claim still waits there.
    """

    def __init__(
        self, store: StoreClient, in_flight: InFlight, claim: Claim, failed: Callable[[Exception], None]
    ) -> None:
        """`store` must send nothing but markers: if the client has no permission for their names, the store rejects
        everything that is in one list with them."""
        self._store = store
        self._in_flight = in_flight
        self._failed = failed
        self._claims = [
            Claim(
                _PREFIX + chain_id,
                f"{claim.claim_id}~{len(chain_id)}",
                claim.holder_id,
                _TTL_MS,
                mode="shared",
                metadata={"waitsFor": claim.lock_name},
            )
            for chain_id in _chains_around(claim.claim_id)
        ]
        self._is_due = False
        self._written = False
        self._refused = False
        self._ended = False
        self._working = False

    def write(self) -> None:
        """Writes the marker, or renews it."""
        if not self._ended:
            self._is_due = self._written = True
            self._work()

    def end(self) -> None:
        """Removes the marker after the writes in flight have settled: a release must not overtake the write that it
        undoes."""
        if not self._ended:
            self._ended = True
            self._work()

    def _work(self) -> None:
        if self._working:
            return
        if self._is_due and not self._ended:
            self._is_due = False
            self._working = True
            self._in_flight.begin()
            self._store.spawn(self._write(), self._settled)
        elif self._ended and self._written and not self._refused:
            for claim in self._claims:
                self._store.withdraw(claim)

    async def _write(self) -> None:
        for answer in await asyncio.gather(*map(self._store.ask, self._claims), return_exceptions=True):
            if isinstance(answer, HoldfastError):
                self._refused = self._refused or (isinstance(answer, StoreError) and not answer.retryable)
                self._failed(answer)
        self._settled()

    def _settled(self) -> None:
        self._working = False
        self._in_flight.end()
        self._work()


def marker_name_of(lease: LeaseRecord) -> Optional[str]:
    """The name of the markers of the claims that wait inside the block of a lease. None for a lease of another client,
    inside which Holdfast cannot know of claims."""
    chain_id = chain_id_of(lease.claim_id)
    return _PREFIX + chain_id if "." in chain_id else None


def waits_for(marker: LeaseRecord) -> Optional[str]:
    """The lock name in a marker."""
    name = (marker.metadata or {}).get("waitsFor")
    return name if isinstance(name, str) else None


def _chains_around(claim_id: str) -> list[str]:
    """The chains of all leases that the claim keeps while it waits. Its own chain is one of them if other leases are
    acquired together with it."""
    return [each for each in chain_ids_of(claim_id) if "." in each and each != claim_id]
