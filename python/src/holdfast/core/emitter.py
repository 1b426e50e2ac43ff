"""Calls the listeners of events."""

from __future__ import annotations

import asyncio
import inspect
import logging
from contextvars import Context, ContextVar, copy_context
from typing import Any, Callable, Type

from ..errors import InvalidArgumentError
from .events import EVENTS, Event, name_of

log = logging.getLogger("holdfast")

current_frame: ContextVar[Any] = ContextVar("holdfast_frame", default=None)
"""The innermost block that runs here, of any instance. `_reentry` defines the content. It is here because the core must
leave the block before it calls a user's function."""

Listener = Callable[[Any], object]
Unsubscribe = Callable[[], None]


class Emitter:
    """Calls the listeners of one instance, and those of the process, which `process_events` has."""

    __slots__ = ("_listeners",)

    def __init__(self) -> None:
        self._listeners: dict[Type[Event], dict[object, Listener]] = {}
        """One key for each registration: a listener that is registered twice is called twice. Other threads than that
        of the event loop also register."""

    def on(self, event: object, listener: object) -> Unsubscribe:
        """Raises `InvalidArgumentError` for an unknown event, and for a listener that cannot be called here."""
        kind = EVENTS.get(event) if isinstance(event, str) else None
        if kind is None:
            raise InvalidArgumentError("event", event, f"one of {', '.join(EVENTS)}")
        if not callable(listener):
            raise InvalidArgumentError("listener", listener, "a function")
        if inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(type(listener).__call__):
            rule = "a function that is not a coroutine function: no one awaits it. Start a task in it"
            raise InvalidArgumentError("listener", listener, rule)
        return self.listen(kind, listener)

    def listen(self, kind: Type[Event], listener: Listener) -> Unsubscribe:
        registration = object()
        listeners = self._listeners.setdefault(kind, {})
        listeners[registration] = listener
        return lambda: listeners.pop(registration, None) and None

    def hears(self, kind: Type[Event]) -> bool:
        """Whether anything listens. An event is made only then."""
        return bool(self._listeners.get(kind) or process_events._listeners.get(kind))

    def emit(self, event: Event) -> None:
        kind = type(event)
        context = _outside_blocks()
        for emitter in (process_events, self):
            listeners = emitter._listeners.get(kind, {})
            # A copy, so that a listener that registers itself again is not called twice for one event.
            for registration, listener in list(listeners.items()):
                if registration in listeners:
                    context.run(call_listener, f'a listener of "{name_of(kind)}"', listener, event)


process_events = Emitter()
"""The listeners to all instances of the process."""


def notify(what: str, listener: Callable[..., object], *args: object) -> None:
    """Calls one listener that belongs to no event, such as `on_demoted`, outside of every block."""
    _outside_blocks().run(call_listener, what, listener, *args)


def _outside_blocks() -> Context:
    """Otherwise a listener, or a task that it starts, would enter the lock of the block that caused the event."""
    context = copy_context()
    context.run(current_frame.set, None)
    return context


def call_listener(what: str, listener: Callable[..., object], *args: object) -> None:
    """Calls a user's function that is only notified. If it raises, the logger warns: an error in an application's
    logging must neither stop a heartbeat nor end the process."""
    try:
        result = listener(*args)
        if inspect.iscoroutine(result):
            result.close()
            raise TypeError("it returned a coroutine, which no one awaits. Start a task in it")
    except (KeyboardInterrupt, SystemExit) as error:
        _raise_later(error)
    except BaseException as error:
        warn_of_fault(what, error)


def warn_of_fault(what: str, error: BaseException) -> None:
    """Logs an error in the user's code that has no caller to be raised to. `logging` prints what cannot be printed, but
    a filter may raise."""
    try:
        log.warning("%s raised an error", what, exc_info=error)
    except Exception:
        pass


def _raise_later(error: BaseException) -> None:
    """It ends the event loop, and does not leave a lease half ended."""

    def end() -> None:
        raise error

    try:
        asyncio.get_running_loop().call_soon(end)
    except RuntimeError:
        raise error from None
