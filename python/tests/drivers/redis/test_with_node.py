"""Node and Python on the same keys: one lock, one queue, one limit."""

from __future__ import annotations

from typing import Any, AsyncIterator

import pytest
from holdfast.core.driver import ANY_TOKEN, InspectQuery, RateLimit, RateRequest
from holdfast.drivers.redis import RedisDriver, open_redis

from support.redis_drivers import (
    NODE_DRIVER,
    Heard,
    claim_on,
    closing,
    grant_of,
    in_node,
    lease_of,
    refusal_of,
)


@pytest.fixture
def url(request: Any, redis_url: str, cluster_urls: Any) -> str:
    if getattr(request, "param", "redis") == "redis":
        return redis_url
    return "redis+cluster://" + ",".join(each.split("://", 1)[1] for each in cluster_urls)


on_a_cluster_too = pytest.mark.parametrize("url", ["redis", "redis+cluster"], indirect=True)


@pytest.fixture
async def driver(url: str) -> AsyncIterator[RedisDriver]:
    async with closing(await open_redis(url)) as driver:
        yield driver


@pytest.fixture
async def node(url: str, node_worker: Any) -> Any:
    worker = await node_worker(NODE_DRIVER)
    await worker.call("open", url)
    return worker


@on_a_cluster_too
async def test_a_lease_of_one_language_is_refused_in_the_other(driver, node, lock_name):
    ours = claim_on(lock_name, metadata={"from": "python"})
    grant = await grant_of(driver, ours)
    [refused] = await node.call("acquire", [in_node(claim_on(lock_name))])
    assert refused["granted"] is False
    assert refused["holder"]["metadata"] == {"from": "python"}
    assert refused["holder"]["fencingToken"] == grant.fencing_token
    assert await node.call("release", [{"lockName": lock_name, "claimId": ours.claim_id, "fencingToken": 1}]) == [False]
    assert await driver.release([lease_of(ours, grant)]) == [True]

    theirs = claim_on(lock_name, metadata={"from": "node"})
    [granted] = await node.call("acquire", [in_node(theirs)])
    assert granted["fencingToken"] > grant.fencing_token
    refusal = await refusal_of(driver, claim_on(lock_name))
    assert refusal.holder is not None and refusal.holder.metadata == {"from": "node"}
    page = await driver.inspect(InspectQuery(lock_name=lock_name))
    assert [lease.claim_id for lease in page.leases] == [theirs.claim_id]

    forced = await grant_of(driver, claim_on(lock_name, force_up_to=ANY_TOKEN))
    assert forced.fencing_token > granted["fencingToken"]
    renewal = {"lockName": lock_name, "claimId": theirs.claim_id, "fencingToken": granted["fencingToken"]}
    assert await node.call("renew", [{**renewal, "ttlMs": 60_000}]) == ["lost"]


@on_a_cluster_too
async def test_waiters_of_both_languages_are_served_in_the_order_in_which_they_came(driver, node, lock_name):
    heard = Heard()
    await driver.listen(heard)
    await node.call("listen")
    holder = claim_on(lock_name)
    lease = lease_of(holder, await grant_of(driver, holder))
    waiters = [claim_on(lock_name, waiter_ttl_ms=30_000) for _ in range(6)]
    for at, waiter in enumerate(waiters):
        if at % 2 == 0:
            [refused] = await node.call("acquire", [in_node(waiter)])
            assert refused["ahead"] == at
        else:
            assert (await refusal_of(driver, waiter)).ahead == at
    tokens = [lease.fencing_token]
    for at, waiter in enumerate(waiters):
        # Released by the other language than the one that waits next, and then by the same one.
        named = {"lockName": lock_name, "claimId": lease.claim_id, "fencingToken": lease.fencing_token}
        if at % 3 == 0:
            assert await driver.release([lease]) == [True]
        else:
            assert await node.call("release", [named]) == [True]
        if at % 2 == 0:
            token = (await node.call("grantOf", waiter.claim_id))["fencingToken"]
        else:
            token = (await heard.grant_of(waiter)).fencing_token
        tokens.append(token)
        lease = type(lease)(lock_name, waiter.claim_id, token)
    assert tokens == sorted(set(tokens))


async def test_a_semaphore_and_a_rate_limit_count_both_languages(driver, node, lock_name, unique_name):
    ours = claim_on(lock_name, mode="shared", limit=3, permits=2)
    grant = await grant_of(driver, ours)
    theirs = claim_on(lock_name, mode="shared", limit=3)
    [granted] = await node.call("acquire", [in_node(theirs)])
    assert granted["granted"] is True
    await refusal_of(driver, claim_on(lock_name, mode="shared", limit=3))
    await refusal_of(driver, claim_on(lock_name))
    await driver.release([lease_of(ours, grant)])
    [granted] = await node.call("acquire", [in_node(claim_on(lock_name, mode="shared", limit=3, permits=2))])
    assert granted["granted"] is True

    name = unique_name("rate")
    limit = RateLimit(limit=4, period_ms=60_000, burst=4)
    ours = [answer.allowed for answer in await driver.consume([RateRequest(name, 1, [limit])] * 3)]
    request = {"name": name, "cost": 1, "limits": [{"limit": 4, "periodMs": 60_000, "burst": 4}]}
    theirs = [answer["allowed"] for answer in await node.call("consume", [request, request])]
    assert (ours, theirs) == ([True, True, True], [True, False])
    [looked] = await driver.consume([RateRequest(name, 0, [limit])])
    assert looked.remaining == 0
