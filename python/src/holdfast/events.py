"""The events of locks and limiters. `lock.on("lost", listener)` listens to one instance, and `holdfast.events.on` to
all instances of the process, also to those that are created later."""

from __future__ import annotations

from ._observable import Observable
from .core.emitter import Emitter, process_events
from .core.events import Acquired as Acquired
from .core.events import AcquireFailed as AcquireFailed
from .core.events import ClaimEvent as ClaimEvent
from .core.events import Consumed as Consumed
from .core.events import Event as Event
from .core.events import ForceReleased as ForceReleased
from .core.events import HandedOver as HandedOver
from .core.events import HeartbeatFailed as HeartbeatFailed
from .core.events import LeaseEvent as LeaseEvent
from .core.events import ListenFailed as ListenFailed
from .core.events import LossReason as LossReason
from .core.events import Lost as Lost
from .core.events import Refused as Refused
from .core.events import Released as Released
from .core.events import ReleaseFailed as ReleaseFailed
from .core.events import RenewalFailed as RenewalFailed
from .core.events import Renewed as Renewed
from .core.events import Requested as Requested
from .core.events import Restored as Restored
from .core.events import Running as Running
from .core.events import StoreFailed as StoreFailed
from .core.events import Waiting as Waiting


class _Process(Observable):
    @property
    def _events(self) -> Emitter:
        return process_events


on = _Process().on
"""Like `on` of an instance, for all instances of the process."""
