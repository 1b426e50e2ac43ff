"""Locks of one session: requested, granted, and their keys."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Dict, Mapping, Tuple

from .activity_comment import ActivityEntry


@dataclass(frozen=True)
class LockRequest:
    """A request for an advisory lock. It has no token yet."""

    lock_name: str
    claim_id: str
    holder_id: str
    shared: bool
    key: int

    def activity(self) -> ActivityEntry:
        return ActivityEntry(self.lock_name, self.claim_id, self.holder_id, self.shared)


@dataclass(frozen=True)
class SessionLease:
    """A lease on an advisory lock, as the process that holds it knows it."""

    request: LockRequest
    fencing_token: int
    acquired_at_ms: float

    def activity(self) -> ActivityEntry:
        of = self.request
        return ActivityEntry(
            of.lock_name, of.claim_id, of.holder_id, of.shared, self.fencing_token, self.acquired_at_ms
        )


class HeldLocks:
    """The leases of one session, by claim id, and how many of them each key has."""

    def __init__(self) -> None:
        self._leases: Dict[str, SessionLease] = {}
        self._keys: Dict[int, Tuple[int, bool]] = {}

    @property
    def leases(self) -> Mapping[str, SessionLease]:
        return self._leases

    def has(self, request: LockRequest) -> bool:
        return request.key in self._keys

    def excludes(self, request: LockRequest) -> bool:
        """Whether a lease of this session excludes the lock.

        The server would grant it nevertheless: it only counts how often a session has a lock.
        """
        held = self._keys.get(request.key)
        return held is not None and not (held[1] and request.shared)

    def add(self, lease: SessionLease) -> None:
        request = lease.request
        self._leases[request.claim_id] = lease
        count, _ = self._keys.get(request.key, (0, False))
        self._keys[request.key] = (count + 1, request.shared)

    def remove(self, lease: SessionLease) -> None:
        request = lease.request
        if self._leases.pop(request.claim_id, None) is None:
            return
        count, shared = self._keys[request.key]
        if count == 1:
            del self._keys[request.key]
        else:
            self._keys[request.key] = (count - 1, shared)

    def clear(self) -> None:
        self._leases.clear()
        self._keys.clear()


def release_request_key(claim_id: str, fencing_token: int) -> int:
    """The key by which a client asks the holder of a lease to let go of it."""
    return advisory_key(f"holdfast:force-release:{claim_id}:{fencing_token}")


def advisory_key(lock_name: str) -> int:
    """The key of a lock name among PostgreSQL's advisory locks: `pg_advisory_lock(key)` excludes Holdfast's leases.

    It is the first eight bytes of the SHA-256 of the name in UTF-8, as a signed big-endian number. With 64 bits, a
    million names that are held at once have a collision once in 37 million cases.
    """
    return int.from_bytes(hashlib.sha256(lock_name.encode()).digest()[:8], "big", signed=True)
