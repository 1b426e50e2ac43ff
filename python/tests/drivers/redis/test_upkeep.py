"""Leases are kept and let go of at the memory limit, and beside keys of other programs."""

from __future__ import annotations

from typing import List, Tuple

import pytest
import redis
from holdfast.core.driver import Claim, Grant, InspectQuery, LeaseRef, Renewal
from holdfast.drivers._redis.keys import lock_keys
from holdfast.drivers.redis import open_redis

from support.redis_drivers import claim_on, closing, grant_of, lease_of, refusal_of, renewal_of


@pytest.mark.parametrize("repeated", [1, 20], ids=["", "in long lists"])
async def test_failure_63_at_its_memory_limit_a_server_renews_and_releases_every_lease(
    own_redis, unique_name, repeated: int
):
    server = own_redis()
    async with closing(await open_redis(server.url)) as driver:
        held: List[Tuple[Claim, Grant]] = []
        waiting: List[Claim] = []
        for mode in ("exclusive", "shared"):
            claim = claim_on(unique_name("lock"), mode=mode, ttl_ms=30_000)
            held.append((claim, await grant_of(driver, claim)))
            waiter = claim_on(claim.lock_name, waiter_ttl_ms=20_000, ttl_ms=60_000)
            await refusal_of(driver, waiter)
            waiting.append(waiter)
        with redis.Redis(port=server.port) as client:
            client.config_set("maxmemory", "1")
        for ttl_ms in (30_000, 10_000, 40_000):
            renewals = [renewal_of(claim, grant, ttl_ms) for claim, grant in held]
            # Long lists of renewals go through a script of their own.
            answers = await driver.renew(renewals * repeated)
            assert set(answers) == {"renewed"}, f"to {ttl_ms} ms: {answers}"
        assert await driver.release([lease_of(claim, grant) for claim, grant in held]) == [True, True]
        # Both locks were handed over, until the place of the waiter would have ended. Their first renewal makes it
        # longer.
        handed = (await driver.inspect(InspectQuery(prefix=""))).leases
        assert {each.claim_id for each in handed} == {each.claim_id for each in waiting}
        longer = [Renewal(each.lock_name, each.claim_id, each.fencing_token, 60_000) for each in handed]
        assert await driver.renew(longer) == ["renewed", "renewed"]


async def test_a_key_of_another_type_fails_its_own_entry_of_a_list_and_no_other(redis_url, unique_name):
    spoiled = unique_name("lock")
    data = lock_keys("lock:", spoiled).data
    with redis.Redis.from_url(redis_url) as client:
        client.set(data, "of another program")
        async with closing(await open_redis(redis_url)) as driver:
            mixed = [claim_on(name) for name in (unique_name("lock"), spoiled, unique_name("lock"))]
            one, error, other = await driver.acquire(mixed)
            assert isinstance(one, Grant) and isinstance(other, Grant)
            assert "WRONGTYPE" in str(error) and "another program has written a key of this lock" in str(error)
            renewed, unknown, also = await driver.renew([renewal_of(claim, one) for claim in mixed])
            assert (renewed, also) == ("renewed", "lost") and "WRONGTYPE" in str(unknown)
            yes, released, also_yes = await driver.release(
                [LeaseRef(claim.lock_name, claim.claim_id) for claim in mixed]
            )
            assert (yes, also_yes) == (True, True) and "WRONGTYPE" in str(released)
            client.delete(data)
            await grant_of(driver, claim_on(spoiled))
