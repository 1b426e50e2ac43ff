"""Renewals of a client whose clock the case advances: they come when the case says so, however slow the machine is."""

from __future__ import annotations

from typing import Any

from support.steered_clock import SteeredClock

from .context import Process
from .timing import KEPT_SECONDS, timers_run, until

UNHURRIED = {"call_timeout_seconds": 6 * KEPT_SECONDS}
"""No call is over because the clock was advanced."""


async def beats(process: Process[Any], clock: SteeredClock, times: int) -> None:
    """Advances the clock to the next heartbeat of leases with `KEPT_SECONDS`, and waits for its answer, so many times.
    Three of them last longer than the lease did when it was granted."""
    renewals = process.network.counts["renew"]
    for _ in range(times):
        before = renewals.answered
        clock.advance(0.4 * KEPT_SECONDS)
        await until("the heartbeat", lambda: renewals.answered > before)
        await timers_run()


async def send_heartbeat(process: Process[Any], clock: SteeredClock, after: float = 0.4) -> None:
    """The same until it was sent, after a part of the TTL."""
    renewals = process.network.counts["renew"]
    before = renewals.calls
    clock.advance(after * KEPT_SECONDS)
    await until("the heartbeat to be sent", lambda: renewals.calls > before)


RETRY = 0.15
"""The part of the TTL after which a renewal without an answer is repeated."""
