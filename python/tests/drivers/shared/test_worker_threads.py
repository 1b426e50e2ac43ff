"""The threads for clients that block."""

from __future__ import annotations

import asyncio
import threading

import pytest
from holdfast.drivers._shared.worker_threads import WorkerThreads


async def test_a_call_that_was_given_up_before_it_began_is_not_made() -> None:
    """The release of a claim that was given up may go through another thread. A claim that comes after it would keep
    the lock, with no one who knows of it."""
    threads, go_on = WorkerThreads("test", 1), threading.Event()
    made: list[str] = []
    slow = asyncio.ensure_future(threads.run(lambda: go_on.wait(30), timeout_seconds=30))
    await asyncio.sleep(0)
    with pytest.raises(asyncio.TimeoutError):
        await threads.run(lambda: made.append("given up"), timeout_seconds=0.01)
    go_on.set()
    assert await slow
    await threads.run(lambda: made.append("later"), timeout_seconds=30)
    assert made == ["later"]
    threads.close()
