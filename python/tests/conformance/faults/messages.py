"""Rule 15: a message is not proof. It may be old, or come from a client that has no rights on the lock."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.core.driver import ANY_TOKEN
from holdfast.core.clock import SYSTEM_CLOCK, SYSTEM_RANDOM
from holdfast.core.holder import ClaimRequest, Holder
from holdfast.core.lease import HeldLease

from ..context import Context
from ..driver_calls import lease_on, must_grant
from ..faulty_network import FaultyNetwork, fails
from ..suite import Group
from ..timing import LONG_MS, until, within

message_faults = Group("faults: messages", needs=["force_up_to", "wake", "ttl"])
case = message_faults.case


@case("rule 15: a holder that gets a false report of a forced release asks, and goes on")
async def _(ctx: Context) -> None:
    watched = await watched_lease(ctx)
    lease, renewals = watched.lease, watched.network.counts["renew"]
    before, ends_at_ms = renewals.answered, (await lease_on(watched.network.driver, ctx.lock_name)).expires_at_ms
    watched.report_loss()
    assert not lease.lost.is_set(), "it believed the message"
    await until("the store to be asked", lambda: renewals.answered > before)
    # When the next answer comes, the first one has been dealt with.
    watched.report_loss()
    await until("the store to be asked again", lambda: renewals.answered > before + 1)
    assert not lease.lost.is_set()
    lease_now = await lease_on(watched.network.driver, ctx.lock_name)
    assert lease_now.claim_id == lease.claim.claim_id
    assert (lease_now.expires_at_ms or 0) >= (ends_at_ms or 0) - 2, "the lease ends sooner"
    assert await lease.release() is True


@case("a holder that gets a report of a forced release loses the lock when the store confirms it")
async def _(ctx: Context) -> None:
    watched = await watched_lease(ctx)
    # If the store sends a message of its own, it is lost.
    watched.network.mute()
    await must_grant(await ctx.driver(), ctx.claim(force_up_to=ANY_TOKEN))
    assert not watched.lease.lost.is_set()
    watched.report_loss()
    error = await within("the loss", watched.lease.lost.wait())
    assert "it was force-released" in str(error)
    assert await watched.lease.release() is False


@case("rule 3: a reported forced release is no loss while the store cannot be asked")
async def _(ctx: Context) -> None:
    watched = await watched_lease(ctx)
    renewals = watched.network.counts["renew"]
    before = renewals.calls
    watched.network.once("renew", fails)
    watched.report_loss()
    await until("the store to be asked", lambda: renewals.calls > before)
    watched.report_loss()
    await until("the store to be asked again", lambda: renewals.answered > 0)
    assert not watched.lease.lost.is_set()
    assert await watched.lease.release() is True


@case("rule 13: a thousand messages about one lease cost at most two requests at a time")
async def _(ctx: Context) -> None:
    watched = await watched_lease(ctx)
    renewals = watched.network.counts["renew"]
    before = renewals.calls
    for _ in range(1_000):
        watched.report_loss()
    await until("the store to be asked", lambda: renewals.answered >= before + 2)
    assert renewals.calls == before + 2
    assert await watched.lease.release() is True


@dataclass
class Watched:
    lease: HeldLease
    network: FaultyNetwork

    def report_loss(self) -> None:
        claim_id = self.lease.claim.claim_id
        self.network.deliver(lambda listener: listener.lost(claim_id, RuntimeError("it was force-released")))


async def watched_lease(ctx: Context) -> Watched:
    """A lease whose holder is subscribed to messages about forced releases."""
    opened = await ctx.open(
        lambda driver: Holder(
            driver,
            "a holder",
            clock=SYSTEM_CLOCK,
            random=SYSTEM_RANDOM,
            call_timeout_ms=5_000,
            waiter_ttl_ms=10_000,
        )
    )
    request = ClaimRequest(ctx.lock_name, LONG_MS, wait_ms=LONG_MS, heartbeat=True)
    lease = await opened.primitive.acquire(request)
    assert isinstance(lease, HeldLease)
    # A claim that waits. A lease alone has no subscription.
    opened.primitive.begin(ClaimRequest(ctx.lock_name, LONG_MS, wait_ms=LONG_MS))
    await until("the subscription", lambda: opened.network.counts["listen"].answered > 0)
    return Watched(lease, opened.network)
