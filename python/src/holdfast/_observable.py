"""`on`, which every instance has."""

from __future__ import annotations

from typing import Any, Callable, Literal, overload

from .core.emitter import Emitter, Unsubscribe
from .core.events import (
    Acquired,
    AcquireFailed,
    Consumed,
    ForceReleased,
    HandedOver,
    HeartbeatFailed,
    ListenFailed,
    Lost,
    Refused,
    Released,
    ReleaseFailed,
    RenewalFailed,
    Renewed,
    Requested,
    Restored,
    Running,
    StoreFailed,
    Waiting,
)


class Observable:
    """What has events: every primitive except a fence, and `holdfast.events` for the whole process."""

    @property
    def _events(self) -> Emitter:
        raise NotImplementedError

    # One overload for each event, so that an editor completes its name and knows the type of its argument.
    @overload
    def on(self, event: Literal["requested"], listener: Callable[[Requested], object]) -> Unsubscribe: ...
    @overload
    def on(self, event: Literal["waiting"], listener: Callable[[Waiting], object]) -> Unsubscribe: ...
    @overload
    def on(self, event: Literal["acquired"], listener: Callable[[Acquired], object]) -> Unsubscribe: ...
    @overload
    def on(self, event: Literal["refused"], listener: Callable[[Refused], object]) -> Unsubscribe: ...
    @overload
    def on(self, event: Literal["acquire_failed"], listener: Callable[[AcquireFailed], object]) -> Unsubscribe: ...
    @overload
    def on(self, event: Literal["running"], listener: Callable[[Running], object]) -> Unsubscribe: ...
    @overload
    def on(self, event: Literal["renewed"], listener: Callable[[Renewed], object]) -> Unsubscribe: ...
    @overload
    def on(self, event: Literal["renewal_failed"], listener: Callable[[RenewalFailed], object]) -> Unsubscribe: ...
    @overload
    def on(self, event: Literal["force_released"], listener: Callable[[ForceReleased], object]) -> Unsubscribe: ...
    @overload
    def on(self, event: Literal["lost"], listener: Callable[[Lost], object]) -> Unsubscribe: ...
    @overload
    def on(self, event: Literal["released"], listener: Callable[[Released], object]) -> Unsubscribe: ...
    @overload
    def on(self, event: Literal["handed_over"], listener: Callable[[HandedOver], object]) -> Unsubscribe: ...
    @overload
    def on(self, event: Literal["restored"], listener: Callable[[Restored], object]) -> Unsubscribe: ...
    @overload
    def on(self, event: Literal["release_failed"], listener: Callable[[ReleaseFailed], object]) -> Unsubscribe: ...
    @overload
    def on(self, event: Literal["heartbeat_failed"], listener: Callable[[HeartbeatFailed], object]) -> Unsubscribe: ...
    @overload
    def on(self, event: Literal["listen_failed"], listener: Callable[[ListenFailed], object]) -> Unsubscribe: ...
    @overload
    def on(self, event: Literal["store_failed"], listener: Callable[[StoreFailed], object]) -> Unsubscribe: ...
    @overload
    def on(self, event: Literal["consumed"], listener: Callable[[Consumed], object]) -> Unsubscribe: ...
    def on(self, event: str, listener: Callable[[Any], object]) -> Unsubscribe:
        """Calls `listener` with each event of this name. Returns a function that removes it.

        It is called in the thread of the event loop, in the step in which the event happens, and outside of every block
        of a lock. The synchronous API has an event loop in a thread of its own. So a listener must not block: while it
        runs, no lease is renewed. If it raises, the logger `holdfast` warns, and nothing else changes. A coroutine
        function is refused, because no one would await it: start a task in the listener.

        Raises `InvalidArgumentError` for an unknown event, and for a listener that is not such a function.
        """
        return self._events.on(event, listener)
