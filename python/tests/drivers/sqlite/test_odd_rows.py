"""Rows that other programs wrote. SQLite keeps a value of any type in a column of any type."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from holdfast import DistributedLock
from support.sqlite_driver import opened

ODD = [
    "metadata = 'no JSON'",
    "metadata = -1",
    "metadata = '[1]'",
    "metadata = x'00ff'",
    f"metadata = '{'[' * 2_000}{']' * 2_000}'",
    f"metadata = '{'7' * 5_000}'",
    "fencing_token = 9e999",
    "fencing_token = 'text'",
    "acquired_at_ms = 'text'",
    "acquired_at_ms = 9e999, expires_at_ms = 9e999, ttl_ms = 9e999",
    "permits = 'many', max_permits = x'00'",
    "holder_id = x'00ff'",
]


@pytest.mark.parametrize("change", ODD, ids=lambda change: change[:30])
async def test_a_lease_that_another_program_wrote_is_contention_and_is_shown(
    sqlite_path: Path, sqlite_url: str, change: str
) -> None:
    async with opened(sqlite_url) as driver:
        lock = DistributedLock(driver)
        assert (await lock.acquire("name", timeout_seconds=600)).acquired
        file = sqlite3.connect(sqlite_path, isolation_level=None)
        file.execute(f"UPDATE holdfast_leases SET {change}")
        file.close()
        refused = await lock.acquire("name")
        assert not refused.acquired
        shown = (await lock.inspect("name")).leases
        assert len(shown) == 1
        assert isinstance(shown[0].fencing_token, int) and isinstance(shown[0].holder_id, str)
        assert shown[0].metadata is None or isinstance(shown[0].metadata, dict)
        await lock.close()
