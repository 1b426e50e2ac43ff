"""The clock of the machine is wrong for a while. Both clients read it through SQLite."""

from __future__ import annotations

import asyncio
import time
from typing import Callable

import pytest

from holdfast.core.driver import Renewal
from holdfast.drivers._sqlite.database import STATEMENTS
from support.sqlite_driver import claim_on, grant_of, is_granted, opened


@pytest.fixture
def shift(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    now = STATEMENTS["now"]

    def shift(offset_ms: int) -> None:
        monkeypatch.setitem(STATEMENTS, "now", f"SELECT now_ms + ({offset_ms}) FROM ({now})")

    return shift


async def test_failure_74_a_clock_that_goes_back_and_is_set_right_again_ends_no_lease_before_its_time(
    sqlite_url: str, shift: Callable[[int], None]
) -> None:
    async with opened(sqlite_url) as holder, opened(sqlite_url) as rival:
        granted = time.monotonic()
        held = claim_on("name", ttl_ms=3_000)
        grant = await grant_of(holder, held)
        for offset_ms in (-2_000, -60_000, -2_500):
            shift(offset_ms)
            assert not await is_granted(rival, claim_on("name"))
            shift(0)
            assert not await is_granted(rival, claim_on("name"))
        # Of a lease that had been cut, nothing would be left now: its holder relies on it for longer.
        await asyncio.sleep(1.5)
        assert not await is_granted(rival, claim_on("name"))
        while not await is_granted(rival, claim_on("name")):
            await asyncio.sleep(0.05)
        assert time.monotonic() - granted >= 2.99
        assert await holder.renew([Renewal("name", held.claim_id, grant.fencing_token, 3_000)]) == ["lost"]


async def test_failure_43_what_a_clock_wrote_that_was_ahead_ends_its_own_length_after_it_was_found(
    sqlite_url: str, shift: Callable[[int], None]
) -> None:
    async with opened(sqlite_url) as holder, opened(sqlite_url) as rival:
        shift(3_600_000)
        await grant_of(holder, claim_on("name", ttl_ms=1_000))
        shift(0)
        found = time.monotonic()
        while not await is_granted(rival, claim_on("name")):
            await asyncio.sleep(0.05)
        assert 0.9 <= time.monotonic() - found < 5
