"""The claims of a driver that may wait, each with the newest call that asked for it.

A driver compares a message with them: whether it is genuine, and belongs to that call. What a genuine grant is worth,
the core decides.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Generic, Iterable, Optional, Protocol, TypeVar

from ...core.driver import Claim


class WaitingCall(Protocol):
    """A call that asks for claims which wait."""

    @property
    def sent(self) -> float:
        """When it was sent, by `time.monotonic()`."""


Call = TypeVar("Call", bound=WaitingCall)


@dataclass(frozen=True)
class WaitingClaim(Generic[Call]):
    claim: Claim
    call: Call
    previous: Optional[Call]
    """The call before it."""


class WaitingClaims(Generic[Call]):
    def __init__(self) -> None:
        self._entries: dict[str, WaitingClaim[Call]] = {}

    def sends(self, claims: Iterable[Claim], call: Call) -> None:
        """Call it before the request is sent: its grants can arrive before its answer."""
        for claim in claims:
            if claim.waiter_ttl_ms > 0:
                before = self._entries.get(claim.claim_id)
                self._entries[claim.claim_id] = WaitingClaim(claim, call, None if before is None else before.call)
                if before is None and len(self._entries) % _FORGET_EVERY == 0:
                    self._forget_abandoned()

    def forget(self, claim_id: str, call: Optional[Call] = None) -> None:
        """The claim no longer waits. With a call: unless a newer one has asked for it since."""
        entry = self._entries.get(claim_id)
        if entry is not None and (call is None or entry.call is call):
            del self._entries[claim_id]

    def find(self, claim_id: str) -> Optional[WaitingClaim[Call]]:
        return self._entries.get(claim_id)

    def all(self) -> Iterable[WaitingClaim[Call]]:
        return self._entries.values()

    def _forget_abandoned(self) -> None:
        """Claims that were never withdrawn, because of a bug elsewhere. Memory must not grow for it."""
        now = time.monotonic()
        for claim_id, entry in list(self._entries.items()):
            if entry.call.sent + entry.claim.waiter_ttl_ms / 1_000 < now:
                del self._entries[claim_id]


_FORGET_EVERY = 1_000
