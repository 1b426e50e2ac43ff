"""The claims of this client that may wait, each with the newest call that asked for it.

It decides one thing, which only the driver can decide because only the driver knows the secrets: whether a message is
genuine and belongs to the newest call. What a genuine grant is worth, the core decides.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, replace
from typing import Iterable, Optional

from ...core.driver import Claim, Grant
from .records import read_message


@dataclass(frozen=True, eq=False)
class WaitingCall:
    """A call that asks for claims which wait."""

    channel: str
    """The channel on which its grants are published."""
    secret: str
    """New with every call: a grant that it proves was made after the server had run this call."""
    slot: int
    sent: float
    is_unheard: bool
    """When it was sent, this client listened, but not to this slot: a grant right after a refusal is missed."""


@dataclass(frozen=True)
class WakeUp:
    """What a message says: the claim is granted, or without a grant, the claim should ask again."""

    claim: Claim
    grant: Optional[Grant] = None


class WaitingClaims:
    def __init__(self) -> None:
        self._entries: dict[str, tuple[Claim, WaitingCall]] = {}

    def sends(self, claims: Iterable[Claim], channel: str, slot: int, is_unheard: bool) -> WaitingCall:
        """Call it before the request is sent: its grants can arrive before its answer."""
        call = WaitingCall(channel, secrets.token_urlsafe(18), slot, time.monotonic(), is_unheard)
        for claim in claims:
            if claim.wait_ms > 0:
                self._entries[claim.claim_id] = (claim, call)
                if len(self._entries) % _FORGET_EVERY == 0:
                    self._forget_abandoned()
        return call

    def forget(self, claim_id: str, call: Optional[WaitingCall] = None) -> None:
        """The claim no longer waits. With a call: unless a newer one has asked for it since."""
        entry = self._entries.get(claim_id)
        if entry is not None and (call is None or entry[1] is call):
            del self._entries[claim_id]

    @property
    def slots(self) -> set[int]:
        return {call.slot for _, call in self._entries.values()}

    def read(self, channel: str, text: str) -> Optional[WakeUp]:
        """None for a message that is about no claim of ours, that is forged, or that answers an older call."""
        message = read_message(text)
        entry = None if message is None else self._entries.get(message.claim_id)
        if message is None or entry is None:
            return None
        claim, call = entry
        grant = message.grant
        if grant is None:
            return WakeUp(claim)
        if call.channel != channel or not message.is_proved_by(call.secret):
            return None
        # A token that is more than an hour ahead of the server's clock may be correct, because the clock was set back.
        # But a resource that has seen such a token refuses all later ones. So the claim asks the server for it.
        if grant.fencing_token / 1_000 - grant.acquired_at_ms > _FAR_AHEAD_MS:
            return WakeUp(claim)
        # The store keeps whole milliseconds, so its lease may last a fraction longer than the claim asked for.
        return WakeUp(claim, replace(grant, ttl_ms=min(grant.ttl_ms, claim.ttl_ms)))

    def _forget_abandoned(self) -> None:
        """Claims that were never withdrawn, because of a bug elsewhere. Memory must not grow for it."""
        now = time.monotonic()
        for claim_id, (claim, call) in list(self._entries.items()):
            if call.sent + claim.wait_ms / 1_000 < now:
                del self._entries[claim_id]


_FORGET_EVERY = 1_000
_FAR_AHEAD_MS = 3_600_000
