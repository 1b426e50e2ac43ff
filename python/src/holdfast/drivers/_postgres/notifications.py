"""The payloads of the driver's notifications.

Every role that can connect can send to a channel, so a payload that does not have the expected form is ignored.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from dataclasses import dataclass
from typing import Optional

from ...core.driver import Grant
from ...core.limits import MAX_SAFE_INTEGER

FORCED_CHANNEL = "holdfast_stolen"

_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?", re.ASCII)


@dataclass(frozen=True)
class WakeEvent:
    """One event of `holdfast_send_events`."""

    claim_id: str
    grant: Optional[Grant]
    """None: the claim should ask again."""
    terms: str
    """The token and the two times as they were sent: the proof is about these texts."""
    proof: str

    def is_proved_by(self, key: str, call_id: str) -> bool:
        """Whether it was sent by a client that knows the key, about the call with this random text."""
        told = f"{key} {call_id} {self.terms} {self.claim_id} {key}"
        made = hashlib.sha256(told.encode("utf-8", "replace")).hexdigest()
        return hmac.compare_digest(made.encode(), self.proof.encode("utf-8", "replace"))


def parse_events(payload: str) -> list[WakeEvent]:
    found = _json(payload)
    events = [_event(each) for each in found] if isinstance(found, list) else []
    return [event for event in events if event is not None]


def _event(event: object) -> Optional[WakeEvent]:
    if not isinstance(event, list) or len(event) != 5 or not all(isinstance(part, str) for part in event):
        return None
    claim_id, token, acquired_at, ttl, proof = event
    terms = f"{token} {acquired_at} {ttl}"
    if token == acquired_at == ttl == "":
        return WakeEvent(claim_id, None, terms, proof)
    if not all(_NUMBER.fullmatch(each) and float(each) > 0 for each in (token, acquired_at, ttl)):
        return None
    if "." in token or float(token) > MAX_SAFE_INTEGER:
        return None
    return WakeEvent(claim_id, Grant(int(token), float(ttl), float(acquired_at)), terms, proof)


def parse_forced(payload: str) -> tuple[list[str], str]:
    """The claims that lost their lease, and the new holder."""
    found = _json(payload)
    if not isinstance(found, dict) or not isinstance(found.get("lost"), list):
        return [], ""
    return [each for each in found["lost"] if isinstance(each, str)], str(found.get("by"))


def _json(payload: str) -> Optional[object]:
    try:
        found: object = json.loads(payload)
        return found
    except (ValueError, RecursionError):
        return None
