"""Python and Node on one database: one exclusion, one queue, one counter of tokens, one rate limit."""

from __future__ import annotations

import asyncio
from typing import Any, AsyncIterator, Awaitable, Callable, List

import pytest

from holdfast.core.driver import (
    ANY_TOKEN,
    Grant,
    InspectQuery,
    LeaseRef,
    RateAnswer,
    RateLimit,
    RateRequest,
    Refusal,
    Renewal,
)
from holdfast.drivers.postgres import PostgresDriver
from support.node_worker import NodeWorker
from support.postgres import EVERY_CLIENT, Heard, claim_on, grant_of, lease_of, opened, own_schema, refusal_of
from support.postgres import waiters_on
from support.sqlite_driver import in_node

StartNode = Callable[..., Awaitable[NodeWorker]]

NODE_DRIVER = """
  import { openPostgres } from 'holdfast/drivers/postgres'
  let driver
  const told = []
  let tell = () => {}
  const hear = (kind) => (claimId) => { told.push(`${kind} ${claimId}`); tell() }
  const listener = {
    wake: ({ claimId }) => hear('wake')(claimId),
    granted: hear('granted'), lost: hear('lost'), disconnected: hear('disconnected'),
  }
  expose({
    async open(url) { driver = await openPostgres(url) },
    close: () => driver.close(),
    acquire: (claims) => driver.acquire(claims, { secret: `${Math.random()}` }),
    renew: (renewals) => driver.renew(renewals),
    release: (leases) => driver.release(leases),
    consume: (requests) => driver.consume(requests),
    inspect: (query) => driver.inspect(query),
    async listen() { await driver.listen(listener) },
    async heard(event) {
      while (!told.includes(event)) await new Promise((resolve) => { tell = resolve })
    },
  })
"""


@pytest.fixture
async def node(node_worker: StartNode, postgres_url: str) -> NodeWorker:
    worker = await node_worker(NODE_DRIVER)
    await worker.call("open", postgres_url)
    return worker


@pytest.fixture
async def driver(postgres_url: str) -> AsyncIterator[PostgresDriver]:
    async with opened("url with asyncpg", postgres_url) as driver:
        yield driver


async def node_acquire(node: NodeWorker, claim: Any) -> Any:
    [answer] = await node.call("acquire", [in_node(claim)])
    return answer


async def test_each_excludes_the_other_through_every_client_and_tokens_rise_across_both(
    postgres_url: str, node: NodeWorker, lock_name: str
) -> None:
    last = 0
    # One process for all clients: it takes longer to start than all of this.
    for how in EVERY_CLIENT:
        async with opened(how, postgres_url) as driver:
            last = await exclude_each_other(driver, node, lock_name, last)


async def exclude_each_other(driver: PostgresDriver, node: NodeWorker, lock_name: str, last: int) -> int:
    held = claim_on(lock_name, metadata={"by": "Python", "text": 'ü "quoted" \\ {a,b}'})
    grant = await grant_of(driver, held)
    assert grant.fencing_token > last
    refused = await node_acquire(node, claim_on(lock_name))
    assert not refused["granted"]
    assert refused["holder"]["claimId"] == held.claim_id
    assert refused["holder"]["metadata"] == held.metadata
    assert refused["holder"]["fencingToken"] == grant.fencing_token
    assert await driver.release([lease_of(held, grant)]) == [True]

    theirs = claim_on(lock_name, metadata={"by": "Node"})
    answer = await node_acquire(node, theirs)
    assert answer["granted"] and answer["fencingToken"] > grant.fencing_token
    refusal = await refusal_of(driver, claim_on(lock_name))
    assert refusal.holder is not None
    assert (refusal.holder.claim_id, refusal.holder.metadata) == (theirs.claim_id, {"by": "Node"})
    assert refusal.holder.fencing_token == answer["fencingToken"]
    assert await node.call("release", [{"lockName": lock_name, "claimId": theirs.claim_id}]) == [True]
    token: int = answer["fencingToken"]
    return token


async def test_a_stale_lease_of_one_cannot_be_renewed_or_released_after_the_other_got_it(
    driver: PostgresDriver, node: NodeWorker, lock_name: str
) -> None:
    held = claim_on(lock_name, ttl_ms=50)
    grant = await grant_of(driver, held)
    await asyncio.sleep(0.07)
    theirs = claim_on(lock_name)
    answer = await node_acquire(node, theirs)
    assert answer["granted"]
    assert await driver.renew([Renewal(lock_name, held.claim_id, grant.fencing_token, 60_000)]) == ["lost"]
    assert await driver.release([lease_of(held, grant)]) == [False]
    lease = {"lockName": lock_name, "claimId": theirs.claim_id, "fencingToken": answer["fencingToken"]}
    renewal = {**lease, "ttlMs": 60_000}
    assert await node.call("renew", [renewal]) == ["renewed"]


async def test_waiters_of_both_are_served_in_the_order_of_their_arrival_without_asking(
    driver: PostgresDriver, node: NodeWorker, lock_name: str
) -> None:
    held = claim_on(lock_name)
    await grant_of(driver, held)
    heard = Heard()
    await driver.listen(heard)
    await node.call("listen")
    line: List[Any] = []
    for place in range(10):
        claim = claim_on(lock_name, waiter_ttl_ms=60_000)
        is_node = place in (0, 3, 4, 6, 9)
        if is_node:
            assert (await node_acquire(node, claim))["ahead"] == place
        else:
            assert (await refusal_of(driver, claim)).ahead == place
        line.append((is_node, claim))
    assert await waiters_on(driver, lock_name) == [claim.claim_id for _, claim in line]
    assert await driver.release([LeaseRef(lock_name, held.claim_id)]) == [True]
    for place, (is_node, claim) in enumerate(line):
        [lease] = (await driver.inspect(InspectQuery(lock_name=lock_name))).leases
        assert lease.claim_id == claim.claim_id, f"place {place}"
        if is_node:
            await node.call("heard", f"granted {claim.claim_id}")
            assert await node.call("release", [{"lockName": lock_name, "claimId": claim.claim_id}]) == [True]
        else:
            await heard.wait_for("granted", claim.claim_id)
            assert heard.grants[claim.claim_id].fencing_token == lease.fencing_token
            assert await driver.release([LeaseRef(lock_name, claim.claim_id)]) == [True]


async def test_a_forced_release_by_one_is_told_to_the_holder_in_the_other(
    driver: PostgresDriver, node: NodeWorker, lock_name: str
) -> None:
    heard = Heard()
    await driver.listen(heard)
    await node.call("listen")
    mine, theirs = claim_on(lock_name), claim_on(lock_name, force_up_to=ANY_TOKEN)
    await grant_of(driver, mine)
    assert (await node_acquire(node, theirs))["granted"]
    await heard.wait_for("lost", mine.claim_id)
    assert "force-released by python" in str(heard.causes[0])
    await grant_of(driver, claim_on(lock_name, force_up_to=ANY_TOKEN))
    await node.call("heard", f"lost {theirs.claim_id}")


async def test_readers_and_permits_count_together(driver: PostgresDriver, node: NodeWorker, lock_name: str) -> None:
    permits = [claim_on(lock_name, mode="shared", limit=3) for _ in range(4)]
    await grant_of(driver, permits[0])
    assert (await node_acquire(node, permits[1]))["granted"]
    await grant_of(driver, permits[2])
    assert not (await node_acquire(node, permits[3]))["granted"]
    await refusal_of(driver, claim_on(lock_name))
    await driver.release([LeaseRef(lock_name, permits[0].claim_id)])
    assert (await node_acquire(node, permits[3]))["granted"]


async def test_a_claim_asked_for_by_both_is_one_lease(driver: PostgresDriver, node: NodeWorker, lock_name: str) -> None:
    for mode in ("exclusive", "shared"):
        claim = claim_on(f"{lock_name}:{mode}", mode=mode)
        grant = await grant_of(driver, claim)
        answer = await node_acquire(node, claim)
        assert (answer["granted"], answer["fencingToken"]) == (True, grant.fencing_token)
        assert answer["acquiredAtMs"] == grant.acquired_at_ms


async def test_groups_of_both_are_granted_all_or_none(driver: PostgresDriver, node: NodeWorker, lock_name: str) -> None:
    a, b, c = (f"{lock_name}:{letter}" for letter in "abc")
    ours = [claim_on(a, group="one"), claim_on(b, group="one")]
    assert all(isinstance(answer, Grant) for answer in await driver.acquire(ours))
    theirs = [claim_on(b, group="two"), claim_on(c, group="two")]
    answers = await node.call("acquire", [in_node(claim) for claim in theirs])
    assert [(answer["granted"], answer.get("free")) for answer in answers] == [(False, None), (False, True)]
    await driver.release([LeaseRef(claim.lock_name, claim.claim_id) for claim in ours])
    assert all(answer["granted"] for answer in await node.call("acquire", [in_node(claim) for claim in theirs]))
    refused = await driver.acquire(ours)
    assert [isinstance(answer, Refusal) and answer.free for answer in refused] == [True, False]


async def test_one_rate_limit_for_both(driver: PostgresDriver, node: NodeWorker, lock_name: str) -> None:
    limits = [RateLimit(10, 3_600_000, 10), RateLimit(100, 86_400_000, 100)]
    theirs = {
        "name": lock_name,
        "cost": 1,
        "limits": [{"limit": each.limit, "periodMs": each.period_ms, "burst": each.burst} for each in limits],
    }
    for used in range(5):
        [mine] = await driver.consume([RateRequest(lock_name, 1, limits)])
        assert isinstance(mine, RateAnswer)
        assert (mine.allowed, mine.remaining) == (True, 9 - 2 * used)
        [other] = await node.call("consume", [theirs])
        assert (other["allowed"], other["remaining"]) == (True, 8 - 2 * used)
    [over] = await driver.consume([RateRequest(lock_name, 1, limits)])
    assert isinstance(over, RateAnswer) and not over.allowed
    [blocked] = await driver.consume([RateRequest(lock_name, 0, limits, block_ms=60_000)])
    assert isinstance(blocked, RateAnswer) and blocked.blocked_ms
    [other] = await node.call("consume", [theirs])
    assert not other["allowed"] and other["blockedMs"] > 0
    await driver.consume([RateRequest(lock_name, 0, limits, reset=True)])
    [other] = await node.call("consume", [theirs])
    assert (other["allowed"], other["remaining"]) == (True, 9)


async def test_both_may_migrate_at_the_same_time(node_worker: StartNode, postgres_url: str, lock_name: str) -> None:
    async with own_schema(postgres_url) as schema:
        workers = await asyncio.gather(*(node_worker(NODE_DRIVER) for _ in range(2)))
        for worker in workers:
            await worker.call("open", f"{postgres_url}?holdfast_schema={schema}")

        async def here(how: str) -> bool:
            async with opened(how, postgres_url, schema=schema) as driver:
                [answer] = await driver.acquire([claim_on(lock_name)])
                return isinstance(answer, Grant)

        async def there(worker: NodeWorker) -> bool:
            return bool((await node_acquire(worker, claim_on(lock_name)))["granted"])

        results = await asyncio.gather(*map(here, EVERY_CLIENT), *map(there, workers))
        assert sorted(results) == [False] * (len(results) - 1) + [True]
