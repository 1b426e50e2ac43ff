"""The tick of a schedule that a call belongs to, as a text that is the same in every instance and language."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Optional, Union

from ..core.arguments import check_text
from ..errors import InvalidArgumentError
from .results import MAX_KEY_LENGTH, names_of

Tick = Union[datetime, str]
"""The scheduled time with its time zone, or the scheduler's own id of the tick."""

_MAX_TICK_LENGTH = 64
"""It bounds the name, so that a name fits with every tick or with none."""

_MAX_TICK_NAME_LENGTH = MAX_KEY_LENGTH - 1 - _MAX_TICK_LENGTH
"""The key is the name, "@" and the tick."""

_GRACE_MS = 500
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class TickNames:
    key: str
    run: str
    """The lock of a run. It has the name of the schedule, so that one tick runs at a time. With `overlap`, each tick
    has its own. The tick has no colon there: in the templates of metrics, `{id}` ends at one."""
    done: str
    """The record that the tick is done."""


def tick_names(name: str, tick: str, overlap: bool) -> TickNames:
    key = f"{name}@{tick}"
    own = f"@{tick.replace(':', '.')}" if overlap else ""
    return TickNames(key, f"cron:{name}{own}", names_of(key).done)


def check_tick_name(name: object) -> str:
    return check_text("name", name, _MAX_TICK_NAME_LENGTH)


def tick_of(tick: Optional[Tick], now_ms: float, every_ms: Optional[float]) -> str:
    """protocol/README.md, "Ticks of a schedule"."""
    if isinstance(tick, str):
        return check_text("tick", tick, _MAX_TICK_LENGTH)
    if isinstance(tick, datetime):
        # The local time of an instance without a time zone would name another tick than that of the next instance.
        if tick.utcoffset() is None:
            raise InvalidArgumentError("tick", tick.isoformat(), "a datetime with a time zone")
        return _text(tick.astimezone(timezone.utc))
    if tick is not None:
        raise InvalidArgumentError("tick", tick, "a datetime with a time zone, or a text")
    if every_ms is None:
        raise InvalidArgumentError("every_seconds", None, "a number of seconds if the tick is not passed")
    # Timers fire late, and sometimes slightly early. Schedules use whole seconds: half a second of grace keeps those
    # away from the edge.
    grace_ms = min(_GRACE_MS, every_ms / 2)
    return _text(_EPOCH + timedelta(milliseconds=math.floor((now_ms + grace_ms) / every_ms) * every_ms))


def _text(time: datetime) -> str:
    return time.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
