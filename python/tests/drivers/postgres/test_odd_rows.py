"""Rows that other clients wrote."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import DistributedLock
from holdfast.core.driver import InspectQuery
from support.postgres import connected, opened, own_schema

DEEP_OBJECT = '{"a":' * 2_000 + "1" + "}" * 2_000
DEEP_LIST = "[" * 2_000 + "]" * 2_000
MANY_DIGITS = '{"n": ' + "7" * 5_000 + ', "m": 1}'
ODD = [
    "expires_at = 'infinity'",
    "claim_id = NULL, ttl_ms = NULL, expires_at = 'infinity'",
    "claim_id = NULL, ttl_ms = NULL, acquired_at = '-infinity', expires_at = 'infinity'",
    "expires_at = '294276-12-31', ttl_ms = 'NaN'",
    "fencing_token = 9223372036854775807",
    "fencing_token = -1",
    "metadata = '[1]'",
    "metadata = '\"text\"'",
    f"metadata = '{DEEP_OBJECT}'",
    f"metadata = '{DEEP_LIST}'",
    f"metadata = '{MANY_DIGITS}'",
]


@pytest.mark.parametrize("change", ODD, ids=lambda change: change[:30])
async def test_a_lease_that_another_client_wrote_is_contention_and_is_shown(
    postgres_url: str, lock_name: str, change: str
) -> None:
    async with own_schema(postgres_url) as schema, connected(postgres_url) as other:
        async with opened("url with asyncpg", postgres_url, schema=schema) as driver:
            lock = DistributedLock(driver)
            assert (await lock.acquire(lock_name, timeout_seconds=600)).acquired
            await other.execute(f"UPDATE {schema}.distributed_locks SET {change} WHERE lock_name = $1", lock_name)
            assert not (await lock.acquire(lock_name)).acquired
            assert not (await lock.acquire(lock_name, blocking_timeout_seconds=0.2)).acquired
            shown = (await lock.inspect(lock_name)).leases
            assert len(shown) == 1
            assert isinstance(shown[0].fencing_token, int)
            assert shown[0].metadata is None or isinstance(shown[0].metadata, dict)
            # Nor does it cost the others their answer.
            assert await lock.is_locked(lock_name)
            answers = await asyncio.gather(*(lock.acquire(each) for each in (f"{lock_name}:2", lock_name)))
            assert [each.acquired for each in answers] == [True, False]
            page = await driver.inspect(InspectQuery())
            assert {lock_name, f"{lock_name}:2"} <= {each.lock_name for each in page.leases}
            if change.startswith("metadata"):
                [ended] = await lock.force_release(lock_name, by="operator")
                assert ended.lock_name == lock_name
                assert not await lock.is_locked(lock_name)
            await lock.close()
