"""A client of the caller belongs to the process, and to the event loop, that uses it."""

from __future__ import annotations

import asyncio
import os
from typing import Any
from weakref import WeakKeyDictionary

from ...errors import StoreError

_first_uses: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
"""The process that used a client first. Before that, its connections may not have been opened yet."""


def assert_own_loop(client: Any) -> None:
    """For a pool or a connection of asyncpg, which sends a statement before it notices that its event loop is another
    one. In a forked process, it would be sent on the parent's socket. Raises `StoreError`."""
    loop = getattr(client, "_loop", None)
    if loop is not None and loop is not asyncio.get_running_loop():
        raise _elsewhere("another event loop or, after a fork, to the parent process")


def assert_own_process(client: Any) -> None:
    """For a client without an event loop of its own: after a fork, parent and child would read each other's answers
    from one socket. Raises `StoreError`."""
    process = os.getpid()
    if _first_uses.setdefault(client, process) != process:
        raise _elsewhere("the process that this one was forked from")


def _elsewhere(owner: str) -> StoreError:
    return StoreError(
        f"the client that was passed belongs to {owner}. Make a client and an instance there and here, or pass a URL",
        retryable=False,
    )
