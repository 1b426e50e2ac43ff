"""Waiting for what a test cannot be notified of. The test's own timeout ends it."""

from __future__ import annotations

import asyncio
from typing import Any, Callable

from holdfast.core.driver import Driver, InspectQuery


async def until(condition: Callable[[], Any]) -> None:
    """Returns when the condition, which may be a coroutine, is true."""
    while True:
        found = condition()
        if await found if asyncio.iscoroutine(found) else found:
            return
        await asyncio.sleep(0.002)


async def waiters(driver: Driver, count: int) -> None:
    """Returns when this number of claims waits in the store."""

    async def is_reached() -> bool:
        return len((await driver.inspect(InspectQuery())).waiters) == count

    await until(is_reached)


async def settled(count: Callable[[], int]) -> int:
    """Returns a count that has stopped rising."""
    last, alike = -1, 0
    while alike < 10:
        await asyncio.sleep(0.01)
        alike = alike + 1 if count() == last else 0
        last = count()
    return last
