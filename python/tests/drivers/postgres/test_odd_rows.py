"""Rows that other clients wrote."""

from __future__ import annotations

import pytest

from holdfast import DistributedLock
from support.postgres import connected, opened, own_schema

ODD = [
    "expires_at = 'infinity'",
    "claim_id = NULL, lasts = NULL, expires_at = 'infinity'",
    "claim_id = NULL, lasts = NULL, acquired_at = '-infinity', expires_at = 'infinity'",
    "expires_at = '294276-12-31', lasts = '200000 years'",
    "fencing_token = 9223372036854775807",
    "fencing_token = -1",
    "metadata = '[1]'",
    "metadata = '\"text\"'",
]


@pytest.mark.parametrize("change", ODD)
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
            await lock.close()
