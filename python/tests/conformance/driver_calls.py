"""Calls with one request each, whose answer is taken out of its list of one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, List, Optional, Sequence, Union, cast

from holdfast.core.driver import (
    Claim,
    Driver,
    Grant,
    InspectQuery,
    LeaseRecord,
    LeaseRef,
    RateAnswer,
    RateRequest,
    Refusal,
    Renewal,
    RenewAnswer,
    WaiterRecord,
)

from .timing import until


async def acquire_one(driver: Driver, claim: Claim) -> Union[Grant, Refusal]:
    return cast(Union[Grant, Refusal], only(await driver.acquire([claim])))


async def must_grant(driver: Driver, claim: Claim) -> Grant:
    answer = await acquire_one(driver, claim)
    assert isinstance(answer, Grant), f'{claim.claim_id} should have been granted "{claim.lock_name}": {answer}'
    return answer


async def must_refuse(driver: Driver, claim: Claim) -> Refusal:
    answer = await acquire_one(driver, claim)
    assert isinstance(answer, Refusal), f'{claim.claim_id} should have been refused "{claim.lock_name}": {answer}'
    return answer


async def until_granted(driver: Driver, claim: Claim) -> Grant:
    """Asks repeatedly, for a claim that must be granted once a lease or a place in the queue has expired."""

    async def ask() -> Optional[Grant]:
        answer = await acquire_one(driver, claim)
        return answer if isinstance(answer, Grant) else None

    return cast(Grant, await until(f'a grant of "{claim.lock_name}" to {claim.claim_id}', ask))


async def renew_one(driver: Driver, claim: Claim, fencing_token: int, ttl_ms: float) -> RenewAnswer:
    return cast(RenewAnswer, only(await driver.renew([renewal_of(claim, fencing_token, ttl_ms)])))


async def release_one(driver: Driver, claim: Claim, fencing_token: Optional[int] = None) -> bool:
    """Without a token it withdraws the claim."""
    return cast(bool, only(await driver.release([ref_of(claim, fencing_token)])))


async def consume_one(driver: Driver, request: RateRequest) -> RateAnswer:
    return cast(RateAnswer, only(await driver.consume([request])))


async def leases_on(driver: Driver, lock_name: str) -> List[LeaseRecord]:
    leases: Dict[str, LeaseRecord] = {}
    for page in await pages_of(driver, InspectQuery(lock_name=lock_name)):
        for lease in page.leases:
            leases.setdefault(lease.claim_id, lease)
    return list(leases.values())


async def waiters_on(driver: Driver, lock_name: str) -> List[WaiterRecord]:
    waiters: Dict[str, WaiterRecord] = {}
    for page in await pages_of(driver, InspectQuery(lock_name=lock_name)):
        for waiter in page.waiters:
            waiters.setdefault(waiter.claim_id, waiter)
    return list(waiters.values())


async def pages_of(driver: Driver, query: InspectQuery) -> List[Any]:
    """Follows `next` to the last page, and fails if the pages never end."""
    pages = [await driver.inspect(query)]
    while pages[-1].next is not None:
        assert len(pages) < 100_000, "the pages never end"
        pages.append(await driver.inspect(replace(query, after=pages[-1].next)))
    return pages


async def lease_on(driver: Driver, lock_name: str) -> LeaseRecord:
    """The one lease on a name."""
    leases = await leases_on(driver, lock_name)
    assert len(leases) == 1, f'one lease on "{lock_name}": {leases}'
    return leases[0]


async def assert_untouched(driver: Driver, before: LeaseRecord) -> None:
    """Asserts that the lease is unchanged. A store may derive its end from the remaining time, so two reads may differ
    by a millisecond."""
    after = await lease_on(driver, before.lock_name)
    moved_ms = (after.expires_at_ms or 0) - (before.expires_at_ms or 0)
    assert abs(moved_ms) <= 2, f"its end was moved by {moved_ms} ms"
    assert replace(after, expires_at_ms=None) == replace(before, expires_at_ms=None)


def ref_of(claim: Claim, fencing_token: Optional[int] = None) -> LeaseRef:
    """Without a token it refers to any lease or place in the queue of the claim."""
    return LeaseRef(claim.lock_name, claim.claim_id, fencing_token)


def renewal_of(claim: Claim, fencing_token: int, ttl_ms: float) -> Renewal:
    return Renewal(claim.lock_name, claim.claim_id, fencing_token, ttl_ms)


def only(answers: Sequence[Any]) -> Any:
    """The only entry of an answer, which must not be an error."""
    assert len(answers) == 1, "a list of one is answered by a list of one"
    return unwrap(answers[0])


def unwrap(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer


def unwrap_all(answers: Sequence[Any]) -> List[Any]:
    return [unwrap(answer) for answer in answers]


def granted(answers: Sequence[Any]) -> List[bool]:
    """For each answer, whether it is a grant. None of them may be an error."""
    return [isinstance(unwrap(answer), Grant) for answer in answers]
