"""Which messages count for the claims of this client that wait.

Only the driver can decide that, because only the driver knows the secrets. What a genuine grant is worth, the core
decides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Optional

from ...core.driver import Claim, Grant
from .._shared.waiting_claims import WaitingClaims
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


def read_wake_up(claims: WaitingClaims[WaitingCall], channel: str, text: str) -> Optional[WakeUp]:
    """None for a message that is about no claim of ours, that is forged, or that answers an older call."""
    message = read_message(text)
    waiting = None if message is None else claims.find(message.claim_id)
    if message is None or waiting is None:
        return None
    claim, call, grant = waiting.claim, waiting.call, message.grant
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


_FAR_AHEAD_MS = 3_600_000
