"""The payloads of the driver's notifications.

Every role that can connect can send to a channel, so a payload that does not have the expected form is ignored.
"""

from __future__ import annotations

import json
from typing import Literal, Optional

STOLEN_CHANNEL = "holdfast_stolen"

GrantEvent = tuple[Literal["granted", "wake"], str, str]
"""Kind, claim id, lock name."""


def parse_events(payload: str) -> list[GrantEvent]:
    found = _json(payload)
    return [(event[0], event[1], event[2]) for event in found if _is_event(event)] if isinstance(found, list) else []


def _is_event(event: object) -> bool:
    return (
        isinstance(event, list)
        and len(event) == 3
        and event[0] in ("granted", "wake")
        and isinstance(event[1], str)
        and isinstance(event[2], str)
    )


def parse_theft(payload: str) -> tuple[list[str], str]:
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
