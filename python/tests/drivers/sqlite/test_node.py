"""Python and Node on one file: one exclusion, one queue, one counter of tokens, one rate limit, and one bell."""

from __future__ import annotations

import asyncio
import random
from typing import Any, AsyncIterator, Awaitable, Callable, List

import pytest

from holdfast.core.driver import ANY_TOKEN, Grant, InspectQuery, LeaseRef, RateAnswer, RateLimit, RateRequest, Renewal
from holdfast.drivers.sqlite import SqliteDriver
from support.node_worker import NodeWorker
from support.sqlite_driver import (
    NODE_DRIVER,
    Heard,
    claim_on,
    grant_of,
    in_node,
    is_granted,
    lease_of,
    opened,
    refusal_of,
)

StartNode = Callable[..., Awaitable[NodeWorker]]


@pytest.fixture
async def driver(sqlite_url: str) -> AsyncIterator[SqliteDriver]:
    async with opened(sqlite_url) as driver:
        yield driver


@pytest.fixture
async def node(node_worker: StartNode, sqlite_url: str) -> NodeWorker:
    worker = await node_worker(NODE_DRIVER)
    await worker.call("open", sqlite_url)
    return worker


async def node_acquire(node: NodeWorker, claim: Any) -> Any:
    [answer] = await node.call("acquire", [in_node(claim)])
    return answer


def node_lease(claim: Any, answer: Any) -> Any:
    return {"lockName": claim.lock_name, "claimId": claim.claim_id, "fencingToken": answer["fencingToken"]}


async def test_each_excludes_the_other_and_tokens_rise_across_both(driver: SqliteDriver, node: NodeWorker) -> None:
    last = 0
    for _ in range(5):
        held = claim_on("name", metadata={"by": "Python", "text": "ü"})
        grant = await grant_of(driver, held)
        assert grant.fencing_token > last
        refused = await node_acquire(node, claim_on("name"))
        assert not refused["granted"]
        assert refused["holder"]["claimId"] == held.claim_id
        assert refused["holder"]["metadata"] == {"by": "Python", "text": "ü"}
        assert refused["holder"]["fencingToken"] == grant.fencing_token
        assert await driver.release([lease_of(held, grant)]) == [True]

        theirs = claim_on("name", metadata={"by": "Node"})
        answer = await node_acquire(node, theirs)
        assert answer["granted"] and answer["fencingToken"] > grant.fencing_token
        last = answer["fencingToken"]
        refusal = await refusal_of(driver, claim_on("name"))
        assert refusal.holder is not None
        assert (refusal.holder.claim_id, refusal.holder.metadata) == (theirs.claim_id, {"by": "Node"})
        assert await node.call("release", [node_lease(theirs, answer)]) == [True]


async def test_a_stale_lease_of_one_cannot_be_renewed_or_released_after_the_other_got_it(
    driver: SqliteDriver, node: NodeWorker
) -> None:
    held = claim_on("name", ttl_ms=50)
    grant = await grant_of(driver, held)
    await asyncio.sleep(0.06)
    theirs = claim_on("name")
    answer = await node_acquire(node, theirs)
    assert answer["granted"]
    assert await driver.renew([Renewal("name", held.claim_id, grant.fencing_token, 60_000)]) == ["lost"]
    assert await driver.release([lease_of(held, grant)]) == [False]
    assert await node.call("renew", [{**node_lease(theirs, answer), "ttlMs": 60_000}]) == ["renewed"]


async def test_waiters_of_both_are_served_in_the_order_of_their_arrival(driver: SqliteDriver, node: NodeWorker) -> None:
    held = claim_on("name")
    grant = await grant_of(driver, held)
    line: List[Any] = []
    for place in range(12):
        claim = claim_on("name", waiter_ttl_ms=60_000)
        is_node = random.random() < 0.5 if 0 < place < 11 else place == 0
        if is_node:
            assert (await node_acquire(node, claim))["ahead"] == place
        else:
            assert (await refusal_of(driver, claim)).ahead == place
        line.append((is_node, claim))
    page = await driver.inspect(InspectQuery(lock_name="name"))
    assert [waiter.claim_id for waiter in page.waiters] == [claim.claim_id for _, claim in line]
    assert await driver.release([lease_of(held, grant)]) == [True]

    async def try_all() -> List[int]:
        """Asks for all who wait, the last one first. Only the first of the queue may get it."""
        got = []
        for place in reversed(range(len(line))):
            is_node, claim = line[place]
            if is_node:
                answer = await node_acquire(node, claim)
                if answer["granted"]:
                    got.append(place)
            elif await is_granted(driver, claim):
                got.append(place)
        return got

    while line:
        assert await try_all() == [0]
        is_node, claim = line.pop(0)
        if is_node:
            await node.call("release", [{"lockName": "name", "claimId": claim.claim_id}])
        else:
            await driver.release([LeaseRef("name", claim.claim_id)])


async def test_a_release_in_node_wakes_the_waiter_here(driver: SqliteDriver, node: NodeWorker) -> None:
    for _ in range(3):
        theirs, waiting = claim_on("name"), claim_on("name", waiter_ttl_ms=60_000)
        answer = await node_acquire(node, theirs)
        assert not await is_granted(driver, waiting)
        heard = Heard()
        stop = await driver.listen(heard)
        await node.call("release", [node_lease(theirs, answer)])
        await asyncio.wait_for(heard.wait_for(waiting), 30)
        grant = await grant_of(driver, waiting)
        await driver.release([lease_of(waiting, grant)])
        await stop()


async def test_a_release_here_wakes_the_waiter_in_node(driver: SqliteDriver, node: NodeWorker) -> None:
    await node.call("listen")
    for _ in range(3):
        held, waiting = claim_on("name"), claim_on("name", waiter_ttl_ms=60_000)
        grant = await grant_of(driver, held)
        assert not (await node_acquire(node, waiting))["granted"]
        await driver.release([lease_of(held, grant)])
        await node.call("woken", waiting.claim_id)
        answer = await node_acquire(node, waiting)
        assert answer["granted"]
        await node.call("release", [node_lease(waiting, answer)])


async def test_the_bell_alone_wakes_both_ways(
    driver: SqliteDriver, node: NodeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the poll, which would find the change a little later. Only inotify and the ring are left."""
    monkeypatch.setattr("holdfast.drivers._sqlite.watch._SAFETY_POLL_SECONDS", 3_600)
    theirs, waiting = claim_on("name"), claim_on("name", waiter_ttl_ms=60_000)
    answer = await node_acquire(node, theirs)
    assert not await is_granted(driver, waiting)
    heard = Heard()
    await driver.listen(heard)
    await node.call("release", [node_lease(theirs, answer)])
    await asyncio.wait_for(heard.wait_for(waiting), 30)


async def test_readers_and_permits_count_together(driver: SqliteDriver, node: NodeWorker) -> None:
    permits = [claim_on("name", mode="shared", limit=3) for _ in range(4)]
    assert await is_granted(driver, permits[0])
    assert (await node_acquire(node, permits[1]))["granted"]
    assert await is_granted(driver, permits[2])
    assert not (await node_acquire(node, permits[3]))["granted"]
    assert not await is_granted(driver, claim_on("name"))
    await driver.release([LeaseRef("name", permits[0].claim_id)])
    assert (await node_acquire(node, permits[3]))["granted"]


async def test_a_claim_asked_for_by_both_is_one_lease(driver: SqliteDriver, node: NodeWorker) -> None:
    """Asking again after a lost answer is harmless, for any client."""
    for mode in ("exclusive", "shared"):
        claim = claim_on(mode, mode=mode)
        grant = await grant_of(driver, claim)
        answer = await node_acquire(node, claim)
        assert (answer["granted"], answer["fencingToken"]) == (True, grant.fencing_token)
        assert answer["acquiredAtMs"] == grant.acquired_at_ms
        assert await grant_of(driver, claim) == grant


async def test_one_rate_limit_for_both(driver: SqliteDriver, node: NodeWorker) -> None:
    limits = [RateLimit(10, 3_600_000, 10), RateLimit(100, 86_400_000, 100)]
    theirs = {
        "name": "key",
        "cost": 1,
        "limits": [{"limit": each.limit, "periodMs": each.period_ms, "burst": each.burst} for each in limits],
    }
    for used in range(5):
        [mine] = await driver.consume([RateRequest("key", 1, limits)])
        assert isinstance(mine, RateAnswer)
        assert (mine.allowed, mine.remaining) == (True, 9 - 2 * used)
        [other] = await node.call("consume", [theirs])
        assert (other["allowed"], other["remaining"]) == (True, 8 - 2 * used)
    [mine] = await driver.consume([RateRequest("key", 1, limits)])
    [other] = await node.call("consume", [theirs])
    assert isinstance(mine, RateAnswer)
    assert not mine.allowed and not other["allowed"]


async def test_a_block_and_a_reset_of_one_are_seen_by_the_other(driver: SqliteDriver, node: NodeWorker) -> None:
    limits = [RateLimit(3, 7_000, 3)]
    theirs = {"name": "key", "cost": 1, "limits": [{"limit": 3, "periodMs": 7_000, "burst": 3}]}
    await driver.consume([RateRequest("key", 1, limits)])
    await driver.consume([RateRequest("key", 0, limits, block_ms=3_600_000.5)])
    [other] = await node.call("consume", [theirs])
    assert not other["allowed"] and other["blockedMs"] > 3_500_000
    await node.call("consume", [{**theirs, "cost": 0, "change": {"blockMs": 1_800_000}}])
    [mine] = await driver.consume([RateRequest("key", 1, limits)])
    assert isinstance(mine, RateAnswer) and mine.blocked_ms is not None
    assert not mine.allowed and 1_700_000 < mine.blocked_ms <= 1_800_000
    await driver.consume([RateRequest("key", 0, limits, reset=True)])
    [other] = await node.call("consume", [theirs])
    assert other["allowed"] and other["remaining"] == 2
    await node.call("consume", [{**theirs, "cost": 0, "change": "reset"}])
    [mine] = await driver.consume([RateRequest("key", 0, limits)])
    assert isinstance(mine, RateAnswer) and mine.remaining == 3


async def test_each_can_take_by_force_from_the_other_but_not_a_newer_lease(
    driver: SqliteDriver, node: NodeWorker
) -> None:
    held, taker, late = claim_on("name"), claim_on("name", force_up_to=ANY_TOKEN), claim_on("name")
    grant = await grant_of(driver, held)
    answer = await node_acquire(node, taker)
    assert answer["granted"] and answer["fencingToken"] > grant.fencing_token
    assert await driver.renew([Renewal("name", held.claim_id, grant.fencing_token, 60_000)]) == ["lost"]
    # It saw the first lease, which has been replaced meanwhile.
    stale = claim_on("name", force_up_to=grant.fencing_token)
    refusal = await refusal_of(driver, stale)
    assert refusal.holder is not None and refusal.holder.claim_id == taker.claim_id
    back = await grant_of(driver, claim_on("name", force_up_to=answer["fencingToken"]))
    assert back.fencing_token > answer["fencingToken"]
    assert await node.call("renew", [{**node_lease(taker, answer), "ttlMs": 60_000}]) == ["lost"]
    assert not (await node_acquire(node, late))["granted"]


async def test_a_group_is_granted_beside_the_leases_of_the_other_or_not_at_all(
    driver: SqliteDriver, node: NodeWorker
) -> None:
    theirs = claim_on("b")
    answer = await node_acquire(node, theirs)
    group = [claim_on(name, group="g") for name in "abc"]
    refused = await driver.acquire(group)
    assert [getattr(each, "free", None) for each in refused] == [True, False, True]
    assert len((await driver.inspect(InspectQuery())).leases) == 1
    await node.call("release", [node_lease(theirs, answer)])
    assert all(isinstance(each, Grant) for each in await driver.acquire(group))
    answers = await node.call("acquire", [in_node(claim_on(name, group="h")) for name in "cd"])
    assert [each.get("free", False) for each in answers] == [False, True]


async def test_both_show_the_same_leases_and_waiters(driver: SqliteDriver, node: NodeWorker) -> None:
    await grant_of(driver, claim_on("a", metadata={"n": 1}))
    await node_acquire(node, claim_on("b", mode="shared", limit=4, permits=2))
    await node_acquire(node, claim_on("a", waiter_ttl_ms=60_000))
    mine = await driver.inspect(InspectQuery())
    theirs = await node.call("inspect", {})
    assert [each.claim_id for each in mine.leases] == [each["claimId"] for each in theirs["leases"]]
    assert [each.expires_at_ms for each in mine.leases] == [each["expiresAtMs"] for each in theirs["leases"]]
    assert [each.waiting_since_ms for each in mine.waiters] == [each["waitingSinceMs"] for each in theirs["waiters"]]
    # A page that one has begun, the other goes on with.
    first = await driver.inspect(InspectQuery(page_size=1))
    assert first.next is not None
    rest = await node.call("inspect", {"after": first.next})
    assert [each["lockName"] for each in rest["leases"]] == ["b"]
