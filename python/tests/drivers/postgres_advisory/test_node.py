"""Node and Python processes exclude each other and see each other's leases."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Awaitable, Callable

import pytest
from holdfast import DistributedLock
from holdfast.core.driver import InspectQuery, Refusal
from holdfast.drivers.postgres_advisory import PostgresAdvisoryDriver
from support.advisory import Listener, claim_on, granted, is_free, ref_of, until
from support.names import unique

OpenDriver = Callable[..., Awaitable[PostgresAdvisoryDriver]]
StartNode = Callable[..., Awaitable[Any]]


def source(url: str) -> str:
    return f"""
        import {{ randomBytes }} from 'node:crypto'
        import {{ DistributedLock }} from 'holdfast'
        import {{ openPostgresAdvisory }} from 'holdfast/drivers/postgres-advisory'
        const driver = await openPostgresAdvisory({json.dumps(url)})
        const lock = new DistributedLock({{ driver, holderId: 'node' }})
        const leases = new Map()
        const claims = new Map()
        expose({{
          async close() {{
            await lock.close()
            await driver.close()
          }},
          async acquire(name, options) {{
            const result = await lock.acquire(name, options)
            const {{ holder }} = result
            if (!result.acquired) return {{ acquired: false, holder: holder?.holderId, token: holder?.fencingToken }}
            leases.set(name, result.lock)
            return {{ acquired: true, token: result.lock.fencingToken }}
          }},
          release: (name) => leases.get(name).release(),
          async shared(name) {{
            const claim = {{ lockName: name, claimId: randomBytes(12).toString('hex'), holderId: 'node', mode: 'shared',
              permits: 1, ttlMs: 30000, waitMs: 0 }}
            claims.set(name, claim)
            return (await driver.acquire([claim]))[0].granted
          }},
          unshare: async (name) => (await driver.release([claims.get(name)]))[0],
          async inspect(lockName) {{
            const page = await driver.inspect({{ lockName }})
            return {{ leases: page.leases, waiters: page.waiters }}
          }},
        }})"""


@pytest.fixture
async def node(node_worker: StartNode, postgres_url: str) -> Any:
    return await node_worker(source(postgres_url))


async def test_node_and_python_exclude_each_other_and_each_sees_the_other_as_the_holder(
    node: Any, open_driver: OpenDriver
) -> None:
    name, driver = unique("both"), await open_driver()
    claim = claim_on(name, holder_id="python")
    grant = await granted(driver, claim)
    refused = await node.call("acquire", name, {})
    assert refused == {"acquired": False, "holder": "python", "token": grant.fencing_token}
    [shown] = (await node.call("inspect", name))["leases"]
    assert (shown["claimId"], shown["fencingToken"]) == (claim.claim_id, grant.fencing_token)
    assert shown["mode"] == "exclusive"
    assert await driver.release([ref_of(claim, grant)]) == [True]

    acquired = await node.call("acquire", name, {"timeoutSeconds": 30})
    assert acquired["acquired"] and acquired["token"] > grant.fencing_token
    [refusal] = await driver.acquire([claim_on(name)])
    assert isinstance(refusal, Refusal) and refusal.holder is not None
    assert (refusal.holder.holder_id, refusal.holder.fencing_token) == ("node", acquired["token"])
    [lease] = (await driver.inspect(InspectQuery(lock_name=name))).leases
    assert (lease.holder_id, lease.fencing_token) == ("node", acquired["token"])
    assert await node.call("release", name)
    assert (await granted(driver, claim_on(name))).fencing_token > acquired["token"]


async def test_a_python_waiter_is_served_by_a_release_in_node_and_a_node_waiter_by_one_in_python(
    node: Any, postgres_url: str, open_driver: OpenDriver
) -> None:
    name, driver, listener = unique("queue"), await open_driver(), Listener()
    await driver.listen(listener)
    await node.call("acquire", name, {})
    waiting = claim_on(name, waiter_ttl_ms=10_000)
    await driver.acquire([waiting])
    # Each sees the other's waiter.
    [shown] = (await node.call("inspect", name))["waiters"]
    assert shown["claimId"] == waiting.claim_id
    await node.call("release", name)
    await until("the grant", lambda: waiting.claim_id in listener.grants)
    grant = await granted(driver, waiting)

    pending = asyncio.ensure_future(node.call("acquire", name, {"blockingTimeoutSeconds": 14}))

    async def waiter() -> Any:
        return (await driver.inspect(InspectQuery(lock_name=name))).waiters

    [seen] = await until("node to wait", waiter)
    assert seen.holder_id == "node"
    await driver.release([ref_of(waiting, grant)])
    acquired = await pending
    assert acquired["acquired"] and acquired["token"] > grant.fencing_token


async def test_readers_of_both_languages_share_a_lock_and_exclude_a_writer(node: Any, open_driver: OpenDriver) -> None:
    name, driver = unique("readers"), await open_driver()
    reader = claim_on(name, mode="shared")
    await granted(driver, reader)
    assert await node.call("shared", name) is True
    assert not await is_free(driver, name)
    await driver.release([ref_of(reader)])
    assert not await is_free(driver, name)
    assert await node.call("unshare", name) is True
    assert await is_free(driver, name)


async def test_many_leases_are_shown_compressed_in_both_directions(node: Any, open_driver: OpenDriver) -> None:
    name, driver = unique("many"), await open_driver()
    long_id = "a holder with a long name, as people give them"
    claims = [claim_on(f"{name}:{number}:ü*", holder_id=long_id) for number in range(12)]
    await driver.acquire(claims)
    # A statement after the grant, whose comment lists all of them.
    await driver.inspect(InspectQuery(lock_name="free"))
    for claim in (claims[0], claims[-1]):
        [shown] = (await node.call("inspect", claim.lock_name))["leases"]
        assert (shown["claimId"], shown["holderId"]) == (claim.claim_id, claim.holder_id)
    names = [f"{name}:node:{number}:*ü" for number in range(12)]
    tokens = [(await node.call("acquire", each, {}))["token"] for each in names]
    await node.call("inspect", "free")
    for each, token in ((names[0], tokens[0]), (names[-1], tokens[-1])):
        [lease] = (await driver.inspect(InspectQuery(lock_name=each))).leases
        assert (lease.holder_id, lease.fencing_token) == ("node", token)


async def test_a_killed_node_process_frees_its_lock_for_a_python_waiter(node: Any, postgres_url: str) -> None:
    name = unique("killed")
    lock = DistributedLock(postgres_url.replace("postgres://", "postgres+advisory://"))
    held = await node.call("acquire", name, {"timeoutSeconds": 600})
    await node.kill()
    result = await lock.acquire(name, blocking_timeout_seconds=30)
    assert result and result.lease.fencing_token > held["token"]
    await lock.close()
