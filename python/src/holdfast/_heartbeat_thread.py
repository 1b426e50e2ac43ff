"""The option `heartbeat_thread` of every instance."""

from __future__ import annotations

import asyncio
import os
from typing import Awaitable, Callable, Optional, Union

from ._options import HeartbeatThreadOptions
from .connect import driver_from
from .core.arguments import check_options, ttl_ms_from
from .core.clock import Clock, Random
from .core.driver import Driver
from .core.heartbeat_thread import HeartbeatThread
from .core.limits import STALLED_AFTER_MS
from .errors import InvalidArgumentError, UnsupportedError
from .sync.portal import portal


class ThreadSettings:
    """Checked when the instance is made."""

    def __init__(self, store: object, option: Union[bool, HeartbeatThreadOptions]) -> None:
        if option is not True and not isinstance(option, dict):
            raise InvalidArgumentError("heartbeat_thread", option, "True, False or a dict of options")
        options: HeartbeatThreadOptions = {} if option is True else option
        check_options("heartbeat_thread", options, HeartbeatThreadOptions.__annotations__)
        seconds = options.get("stalled_after_seconds", STALLED_AFTER_MS / 1_000)
        self._stalled_after_ms = ttl_ms_from("heartbeat_thread.stalled_after_seconds", seconds)
        if not _can_reopen(store):
            raise UnsupportedError(
                "heartbeat_thread needs the URL of a store that a thread can open for itself: not memory:, not "
                "advisory locks, whose leases belong to one connection, and no client or driver that you pass in"
            )
        self._store = store

    def open(self, clock: Clock, random: Random, call_timeout_ms: float) -> HeartbeatThread:
        """Raises `UnsupportedError` in the event loop of the synchronous API."""
        loop = portal().loop
        if asyncio.get_running_loop() is loop:
            raise UnsupportedError(
                "the synchronous API has no heartbeat_thread: its heartbeat runs in a thread of its own anyway"
            )
        return HeartbeatThread(
            loop,
            _opener(self._store),
            clock=clock,
            random=random,
            call_timeout_ms=call_timeout_ms,
            stalled_after_ms=self._stalled_after_ms,
        )


def thread_settings(store: object, option: Union[bool, HeartbeatThreadOptions]) -> Optional[ThreadSettings]:
    return None if option is False else ThreadSettings(store, option)


def _opener(store: object) -> Callable[[], Awaitable[Driver]]:
    async def open_driver() -> Driver:
        return (await driver_from(store)).driver

    return open_driver


def _can_reopen(store: object) -> bool:
    if isinstance(store, str):
        scheme = store.partition(":")[0].lower()
        return scheme != "memory" and not scheme.endswith("+advisory")
    return isinstance(store, os.PathLike)
