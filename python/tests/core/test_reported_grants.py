"""Grants that the store reports to a waiter without a request."""

from __future__ import annotations

import asyncio
from typing import AsyncIterator, Tuple

import pytest
from holdfast import DistributedLock
from holdfast.core.driver import Claim, Grant
from holdfast.core.holder import ClaimRequest
from holdfast.core.lease import HeldLease

from conformance.faulty_network import FaultyNetwork, hold_reply
from support.locks import Locks, until


@pytest.fixture
async def locks() -> AsyncIterator[Locks]:
    opened = Locks()
    yield opened
    await opened.close()


async def waiting_claim(
    locks: Locks, lock: DistributedLock, network: FaultyNetwork
) -> "Tuple[asyncio.Future[object], Claim]":
    """A claim that waits, has been refused under a subscription, and hears nothing of the store itself."""
    task = asyncio.ensure_future(lock.acquire("a", blocking=True))
    await until(lambda: network.counts["listen"].answered)
    calls = network.counts["acquire"].calls
    await until(lambda: network.counts["acquire"].calls >= max(2, calls))
    await asyncio.sleep(0.01)
    network.mute()
    record = locks.page.waiters[0]
    return task, Claim("a", record.claim_id, record.holder_id, 30_000, waiter_ttl_ms=10_000)


async def test_a_reported_grant_that_is_newer_than_the_refusal_is_accepted(locks: Locks) -> None:
    holder = locks()
    await holder.acquire("a")
    lock, network = locks.behind_network()
    task, claim = await waiting_claim(locks, lock, network)
    calls = network.counts["acquire"].calls
    await holder.release("a")
    grant = locks.store.acquire(claim)
    assert isinstance(grant, Grant)
    network.deliver(lambda listener: listener.granted(claim.claim_id, grant))
    result = await task
    assert result.lease.fencing_token == grant.fencing_token  # type: ignore[attr-defined]
    assert network.counts["acquire"].calls == calls, "no request was needed"


async def test_a_reported_grant_that_is_older_than_the_refusal_counts_for_nothing(locks: Locks) -> None:
    holder = locks()
    await holder.acquire("a")
    lock, network = locks.behind_network()
    task, claim = await waiting_claim(locks, lock, network)
    calls = network.counts["acquire"].calls
    old = Grant(1, 30_000, 1_000)
    network.deliver(lambda listener: listener.granted(claim.claim_id, old))
    await until(lambda: network.counts["acquire"].calls > calls)
    await asyncio.sleep(0.01)
    assert not task.done(), "the store was asked, and refused again"
    network.heal()
    await holder.release("a")
    network.deliver(lambda listener: listener.wake("a"))
    assert await task


async def test_a_grant_that_is_reported_during_a_request_is_asked_for_again(locks: Locks) -> None:
    holder = locks()
    await holder.acquire("a")
    lock, network = locks.behind_network()
    task, claim = await waiting_claim(locks, lock, network)
    held = hold_reply()
    network.once("acquire", held.fault)
    network.deliver(lambda listener: listener.wake("a"))
    await held.reached.wait()
    await holder.release("a")
    grant = locks.store.acquire(claim)
    assert isinstance(grant, Grant)
    network.deliver(lambda listener: listener.granted(claim.claim_id, grant))
    await asyncio.sleep(0.01)
    assert not task.done(), "a request is in flight, which could acquire the lock again after its release"
    held.resume()
    result = await task
    assert result.lease.fencing_token == grant.fencing_token  # type: ignore[attr-defined]


async def test_a_forged_loss_is_checked_with_the_store(locks: Locks) -> None:
    """FAILURES 38."""
    lock, network = locks.behind_network()
    holder = await lock._instance.open()
    lease = await holder.acquire(ClaimRequest("a", 30_000))
    assert isinstance(lease, HeldLease)
    # A lease alone has no subscription.
    holder.begin(ClaimRequest("a", 30_000, wait_ms=30_000))
    await until(lambda: network.counts["listen"].answered)
    await asyncio.sleep(0)
    network.deliver(lambda listener: listener.lost(lease.claim.claim_id, ValueError("forged")))
    await until(lambda: network.counts["renew"].answered == 1)
    await asyncio.sleep(0.01)
    assert lease.held
    await locks().force_release("a", by="operator")
    await lease.lost
