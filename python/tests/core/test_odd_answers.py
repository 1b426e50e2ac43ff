"""What a broken or hostile server, or a row of another client, makes of a driver's answers."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Any, List, Optional, Sequence

import pytest

from holdfast import DistributedLock, StoreError
from holdfast.core.driver import (
    Claim,
    DriverListener,
    Grant,
    InspectPage,
    LeaseRecord,
    LeaseRef,
    RateAnswer,
    Refusal,
    WaiterRecord,
)
from holdfast.drivers.memory import MemoryDriver
from holdfast.rate_limiter import RateLimiter

GRANT = Grant(7, 500, 1_000)
LEASE = LeaseRecord("name", "c", "h", "exclusive", 1, 7, 1_000, 2_000)

ODD_GRANTS = [
    *({"fencing_token": value} for value in (0, -1, 1.5, math.nan, math.inf, 2**53, "7", None, True)),
    *({"ttl_ms": value} for value in (0, -1, math.nan, None)),
    *({"acquired_at_ms": value} for value in (math.nan, 8.64e15 + 2, math.inf, "1", None)),
]


class Answering(MemoryDriver):
    """Answers every claim with the same."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer
        self.claims: List[Claim] = []
        self.listener: Optional[DriverListener] = None

    async def acquire(self, claims: Sequence[Claim]) -> Any:
        self.claims += claims
        return [self.answer for _ in claims]

    async def release(self, leases: Sequence[LeaseRef]) -> Any:
        return [True for _ in leases]

    async def listen(self, listener: DriverListener) -> Any:
        self.listener = listener

        async def stop() -> None: ...

        return stop


@pytest.mark.parametrize("change", ODD_GRANTS, ids=str)
async def test_a_grant_that_is_not_valid_never_becomes_a_lease(change: Any) -> None:
    lock = DistributedLock(Answering(replace(GRANT, **change)))
    with pytest.raises(StoreError):
        await lock.acquire("name", timeout_seconds=0.5)
    await lock.close()


@pytest.mark.parametrize("change", ODD_GRANTS, ids=str)
async def test_a_reported_grant_that_is_not_valid_is_a_hint_to_ask(change: Any) -> None:
    driver = Answering(Refusal(answered_at_ms=0))
    lock = DistributedLock(driver)
    waiting = asyncio.ensure_future(lock.acquire("name", timeout_seconds=0.5, blocking_timeout_seconds=0.4))
    await asyncio.sleep(0.1)  # it listens, and was refused again
    asked = len(driver.claims)
    assert driver.listener is not None
    driver.listener.granted(driver.claims[0].claim_id, replace(GRANT, **change))
    assert not (await waiting).acquired
    assert len(driver.claims) > asked
    await lock.close()


async def test_a_lease_is_never_trusted_for_longer_than_its_claim_asked_for() -> None:
    lock = DistributedLock(Answering(replace(GRANT, ttl_ms=1e12)))
    lease = await lock.hold("name", timeout_seconds=0.5, heartbeat=False)
    assert lease.remaining_seconds <= 0.5
    await lock.close()


async def test_a_lease_that_was_granted_at_the_last_date_there_is_has_a_valid_end() -> None:
    lock = DistributedLock(Answering(replace(GRANT, acquired_at_ms=8.64e15)))
    lease = await lock.hold("name", timeout_seconds=0.5, heartbeat=False)
    assert lease.expires_at >= lease.acquired_at
    await lock.close()


@pytest.mark.parametrize("field", ["ask_again_ms", "ahead", "answered_at_ms"])
async def test_a_refusal_with_a_time_that_is_no_number_is_no_answer(field: str) -> None:
    lock = DistributedLock(Answering(Refusal(**{field: math.nan})))
    with pytest.raises(StoreError):
        await lock.acquire("name")
    await lock.close()


@pytest.mark.parametrize(
    "change",
    [
        {"acquired_at_ms": -math.inf, "expires_at_ms": math.inf},
        {"acquired_at_ms": "Infinity", "expires_at_ms": 9e15},
        {"acquired_at_ms": {}, "expires_at_ms": "x"},
        {"fencing_token": 2**63},
        {"fencing_token": -1},
        {"metadata": [1]},
        {"claim_id": 7, "holder_id": {"a": 1}},
        {"holder_id": "x" * 20_000},
        {"mode": "weird", "permits": "many", "limit": {}},
    ],
    ids=lambda change: str(change)[:60],
)
async def test_a_record_that_another_client_wrote_is_shown_and_nothing_fails(change: Any) -> None:
    record = replace(LEASE, **change)
    waiter: Any = {"lock_name": "name", "claim_id": 7, "holder_id": None, "mode": 3, "permits": None}

    class Showing(Answering):
        async def inspect(self, query: Any) -> InspectPage:
            return InspectPage([record], [WaiterRecord(**waiter, waiting_since_ms=math.nan)])

    lock = DistributedLock(Showing(Refusal(holder=record)))
    refused = await lock.acquire("name")
    assert refused.holder is not None and isinstance(refused.holder.holder_id, str)
    assert refused.error is not None and len(refused.error) < 1_000
    inspection = await lock.inspect("name")
    [shown] = inspection.leases
    assert 0 <= shown.fencing_token < 2**53 and isinstance(shown.permits, int)
    assert shown.mode == "exclusive" and (shown.metadata is None or isinstance(shown.metadata, dict))
    # An end at infinity is far away, and not in 1970.
    assert shown.expires_at is not None and (change.get("expires_at_ms") != math.inf or shown.expires_at.year == 9_999)
    assert isinstance(inspection.waiters[0].holder_id, str)
    await lock.close()


@pytest.mark.parametrize("page", [None, 7, [], {}])
async def test_a_page_that_is_none_is_an_error_with_a_code(page: Any) -> None:
    class Paging(Answering):
        async def inspect(self, query: Any) -> Any:
            return page

    lock = DistributedLock(Paging(GRANT))
    with pytest.raises(StoreError):
        await lock.inspect("name")
    with pytest.raises(StoreError):
        await lock.is_locked("name")
    await lock.close()


@pytest.mark.parametrize(
    "change",
    [{"remaining": math.nan}, {"retry_after_ms": None}, {"reset_after_ms": math.inf}, {"used_ms": [math.nan]}],
    ids=str,
)
async def test_a_rate_limit_whose_numbers_are_not_finite_is_no_answer(change: Any) -> None:
    class Limiting(Answering):
        async def consume(self, requests: Sequence[Any]) -> Any:
            return [replace(RateAnswer(True, 1, 0, 0, [0]), **change) for _ in requests]

    limiter = RateLimiter(Limiting(GRANT), limits="2/hour")
    with pytest.raises(StoreError):
        await limiter.consume("key")
    await limiter.close()
