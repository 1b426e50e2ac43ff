"""What a driver remembers of the claims that wait."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from holdfast.core.driver import Claim
from holdfast.drivers._shared.waiting_claims import WaitingClaims


@dataclass(frozen=True, eq=False)
class Call:
    sent: float


def claim(claim_id: str, waiter_ttl_ms: float = 10_000) -> Claim:
    return Claim("name", claim_id, "holder", 30_000, waiter_ttl_ms=waiter_ttl_ms)


def calls(number: int) -> Any:
    return [Call(time.monotonic()) for _ in range(number)]


def test_a_claim_has_its_newest_call_and_the_one_before() -> None:
    claims: WaitingClaims[Call] = WaitingClaims()
    first, second, third = calls(3)
    for call, previous in ((first, None), (second, first), (third, second)):
        claims.sends([claim("a")], call)
        found = claims.find("a")
        assert found is not None and (found.call, found.previous) == (call, previous)
    assert claims.find("b") is None


def test_a_claim_that_does_not_wait_is_not_remembered() -> None:
    claims: WaitingClaims[Call] = WaitingClaims()
    claims.sends([claim("a", waiter_ttl_ms=0), claim("b")], Call(time.monotonic()))
    assert [each.claim.claim_id for each in claims.all()] == ["b"]


def test_an_answer_forgets_a_claim_unless_a_newer_call_has_asked_for_it() -> None:
    claims: WaitingClaims[Call] = WaitingClaims()
    older, newer = calls(2)
    claims.sends([claim("a")], older)
    claims.sends([claim("a")], newer)
    claims.forget("a", older)
    assert claims.find("a") is not None
    claims.forget("a", newer)
    assert claims.find("a") is None
    claims.sends([claim("a")], older)
    claims.forget("a")
    claims.forget("a")
    assert list(claims.all()) == []


def test_claims_that_were_never_withdrawn_do_not_stay_for_ever() -> None:
    claims: WaitingClaims[Call] = WaitingClaims()
    claims.sends([claim(f"old {index}") for index in range(900)], Call(time.monotonic() - 11))
    claims.sends([claim(f"new {index}") for index in range(100)], Call(time.monotonic()))
    assert {each.claim.claim_id[:3] for each in claims.all()} == {"new"}
    assert len(list(claims.all())) == 100
