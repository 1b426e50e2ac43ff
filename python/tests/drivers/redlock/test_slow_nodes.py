"""Nodes that answer when the test lets them, without servers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, List

from holdfast.core.driver import Grant, LeaseRef
from holdfast.drivers._redis.records import REPAIRS
from holdfast.drivers._redlock.driver import RedlockDriver

from support.redis_drivers import claim_on, grant_of, renewal_of, until


class FakeNode:
    """Grants everything, but only after `lets` was set."""

    place = "nowhere"

    def __init__(self, name: str) -> None:
        self.name = name
        self.lets = asyncio.Event()
        self.lets.set()
        self.leases: List[LeaseRef] = []
        self.repairs = 0
        self.driver = SimpleNamespace(release=self._release, renew=self._renew)

    async def propose(self, proposals: Any, most_ahead_us: int, *rest: Any) -> Any:
        self.repairs += most_ahead_us == REPAIRS
        await self.lets.wait()
        for each in proposals:
            self.leases.append(LeaseRef(each.lock_name, each.claim.claim_id, each.token))
        return [Grant(each.token, each.claim.ttl_ms, 1) for each in proposals]

    async def _renew(self, renewals: Any) -> Any:
        has = [LeaseRef(each.lock_name, each.claim_id, each.fencing_token) in self.leases for each in renewals]
        return ["renewed" if each else "lost" for each in has]

    async def release(self, leases: Any, *rest: Any) -> Any:
        return await self._release(leases)

    async def _release(self, leases: Any) -> Any:
        ended = [lease in self.leases for lease in leases]
        self.leases = [lease for lease in self.leases if lease not in leases]
        return ended


async def test_a_grant_waits_for_a_quorum_and_a_late_vote_for_a_released_token_is_released(lock_name):
    nodes: List[Any] = [FakeNode(f"node {at}") for at in (1, 2, 3)]
    slow = nodes[2]
    slow.lets.clear()
    driver = RedlockDriver(nodes, quorum=2, timeout_seconds=600, longest_ttl_ms=None, on_node_error=None)
    claim = claim_on(lock_name)
    grant = await asyncio.wait_for(grant_of(driver, claim), 20)
    # The release reaches the slow node before the proposal does.
    lease = LeaseRef(lock_name, claim.claim_id, grant.fencing_token)
    assert await asyncio.wait_for(driver.release([lease]), 20) == [True]
    slow.lets.set()
    # The vote arrives, and only then can it be released.
    for _ in range(10):
        await asyncio.sleep(0)

    async def is_gone() -> bool:
        return not any(node.leases for node in nodes)

    await until(is_gone, "the late vote was left on its node")


async def test_a_late_vote_for_a_lease_that_is_held_stays(lock_name):
    nodes: List[Any] = [FakeNode(f"node {at}") for at in (1, 2, 3)]
    nodes[2].lets.clear()
    driver = RedlockDriver(nodes, quorum=2, timeout_seconds=600, longest_ttl_ms=None, on_node_error=None)
    await grant_of(driver, claim_on(lock_name))
    nodes[2].lets.set()
    for _ in range(10):
        await asyncio.sleep(0)
    assert all(len(node.leases) == 1 for node in nodes)


async def test_a_repair_that_arrives_after_the_release_is_released(lock_name):
    nodes: List[Any] = [FakeNode(f"node {at}") for at in (1, 2, 3)]
    slow = nodes[2]
    driver = RedlockDriver(nodes, quorum=2, timeout_seconds=600, longest_ttl_ms=None, on_node_error=None)
    claim = claim_on(lock_name)
    grant = await grant_of(driver, claim)
    for _ in range(10):
        await asyncio.sleep(0)
    slow.leases.clear()
    slow.lets.clear()
    assert await driver.renew([renewal_of(claim, grant)]) == ["renewed"]
    for _ in range(10):
        await asyncio.sleep(0)
    lease = LeaseRef(lock_name, claim.claim_id, grant.fencing_token)
    assert await driver.release([lease]) == [True]
    slow.lets.set()
    for _ in range(3):
        await asyncio.sleep(0)

    async def is_gone() -> bool:
        return not any(node.leases for node in nodes)

    await until(is_gone, "the repair was left on its node")
    assert slow.repairs == 1


async def test_only_what_a_quorum_has_renewed_is_repaired(lock_name):
    nodes: List[Any] = [FakeNode(f"node {at}") for at in (1, 2, 3)]
    driver = RedlockDriver(nodes, quorum=2, timeout_seconds=600, longest_ttl_ms=None, on_node_error=None)
    claims = [claim_on(f"{lock_name}:{at}") for at in range(3)]
    renewals = [renewal_of(claim, await grant_of(driver, claim)) for claim in claims]
    for _ in range(10):
        await asyncio.sleep(0)
    # One node lacks the second lease, and two lack the third.
    del nodes[0].leases[1], nodes[1].leases[2], nodes[2].leases[2]
    assert await driver.renew(renewals) == ["renewed", "renewed", "lost"]
    for _ in range(10):
        await asyncio.sleep(0)
    assert [len(node.leases) for node in nodes] == [3, 2, 2]
    assert [node.repairs for node in nodes] == [1, 0, 0]
