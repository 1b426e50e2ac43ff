"""Time in cases. Asserted bounds are one-sided: a machine under load is late, never early."""

from __future__ import annotations

import asyncio
import inspect
import time
from typing import Any, Awaitable, Callable, TypeVar

Result = TypeVar("Result")

LONG_MS = 60_000
"""Longer than any case runs: a lease with this TTL ends only if a client ends it."""

SHORT_MS = 200
"""The TTL of a lease that expires during a case."""

BRIEF_SECONDS = 0.4
"""The same if a client must get the lease first: an answer that takes longer than this is no grant."""

KEPT_SECONDS = 600.0
"""The TTL of a lease that renewals keep, for a client whose clock the case advances."""

VAIN_SECONDS = 40.0
"""How long a claim waits that is never granted, for a client whose clock the case advances when the claim has had its
first answer. Without an answer it does not know the holder."""

PATIENCE_SECONDS = 30.0
"""How long the suite waits for what must happen: longer than a loaded machine takes."""

LOOK_EVERY_SECONDS = 0.005


def monotonic_ms() -> float:
    return time.monotonic() * 1_000


async def sleep_ms(ms: float) -> None:
    await asyncio.sleep(ms / 1_000)


async def outlast(ttl_ms: float) -> None:
    """Waits until a TTL that began before this call is over by the store's clock, whose seconds may be slightly longer
    than ours."""
    await sleep_ms(ttl_ms * 1.02 + 10)


async def before_it_ends(steps: Callable[[float], Awaitable[None]]) -> float:
    """Runs steps that a lease with this TTL must outlast, and returns the TTL. If they fail on a machine that took
    longer than that, they have shown nothing, and are run with a longer one. So they take another name each time."""
    for ttl_ms in (300, 1_500, 7_500, 37_500):
        started_ms = monotonic_ms()
        try:
            await steps(ttl_ms)
            return ttl_ms
        except AssertionError:
            if monotonic_ms() - started_ms < at_least(ttl_ms):
                raise
    raise AssertionError("the machine is too slow")


def at_least(ms: float) -> float:
    """The least time that `ms` of the store's clock take on ours: 1 % for clock drift, 2 ms for rounding."""
    return ms * 0.99 - 2


async def until(what: str, look: Callable[[], Any]) -> Any:
    """Polls until `look` returns something truthy, and returns that. `what` completes the sentence "waited for …"."""
    started = time.monotonic()
    while True:
        seen = look()
        if inspect.isawaitable(seen):
            seen = await seen
        if seen:
            return seen
        if time.monotonic() - started > PATIENCE_SECONDS:
            raise AssertionError(f"waited {PATIENCE_SECONDS} s for {what}")
        await asyncio.sleep(LOOK_EVERY_SECONDS)


async def within(what: str, awaitable: Awaitable[Result]) -> Result:
    """As `until`, for an awaitable. It is not cancelled: a case that fails leaves that to the end of the context."""
    future = asyncio.ensure_future(awaitable)
    done, _ = await asyncio.wait([future], timeout=PATIENCE_SECONDS)
    if not done:
        raise AssertionError(f"waited {PATIENCE_SECONDS} s for {what}")
    return future.result()


async def timers_run() -> None:
    """Lets every timer and callback run that is due by now. After a stall their order is the event loop's own."""
    for _ in range(10):
        await asyncio.sleep(0)
