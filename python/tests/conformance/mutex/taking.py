"""Takes a mutex, and insists on the outcome."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from holdfast.errors import LeaseLostError

from ..timing import LONG_MS, until
from .subject import Handle, Taken

if TYPE_CHECKING:
    from ..context import MutexProcess

LONG_SECONDS = LONG_MS / 1_000

AT_ONCE = {"timeout_seconds": LONG_SECONDS, "blocking": False}
"""Answers at once."""

WAITING = {"timeout_seconds": LONG_SECONDS, "blocking_timeout_seconds": LONG_SECONDS}
"""Waits for longer than the suite itself: a claim that is granted only at the end of this time fails the case."""


async def must_take(process: MutexProcess, lock_name: str, **options: Any) -> Handle:
    for _ in range(20):
        try:
            taken = await process.take(lock_name, **(options or AT_ONCE))
            break
        except LeaseLostError:
            pass  # On a machine under load, a brief lease may be over before its block begins.
    assert taken.handle is not None, f'"{lock_name}" should have been acquired, but is held by {taken.holder}'
    return taken.handle


async def must_wait(process: MutexProcess, lock_name: str, **options: Any) -> Taken:
    taken = await process.take(lock_name, **(options or AT_ONCE))
    assert not taken.acquired, f'"{lock_name}" should have been refused'
    return taken


async def begin_to_wait(process: MutexProcess, lock_name: str, **options: Any) -> asyncio.Task[Taken]:
    """Begins to wait and returns once the store has refused the claim, so that what the case starts next comes after
    it. On a machine under load the lease in its way may have ended before it asked. Then it has the lock by now, and
    what the case claims about the two holders is still true."""
    counts = process.network.counts["acquire"]
    answers = counts.answered + process.primitive.asks_before_waiting
    taking = asyncio.ensure_future(process.take(lock_name, **(options or WAITING)))
    await until("the first answer to a claim", lambda: taking.done() or counts.answered >= answers)
    return taking
