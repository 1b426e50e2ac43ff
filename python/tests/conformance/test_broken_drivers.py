"""Each of these drivers breaks one promise. The case that is named beside it catches it."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any, AsyncIterator, Callable, Dict, List, Sequence, Set, Tuple

import pytest

from conformance import timing
from conformance.groups import cases_of
from conformance.stores import Store, StoreKind, no_session
from conformance.suite import Outcome, run_cases
from holdfast.core.driver import ANY_TOKEN, Claim, Driver, Grant, InspectQuery, LeaseRef, Refusal
from holdfast.drivers.memory import MemoryStore, memory_driver


class Wrapped:
    """The memory driver, but for what a subclass changes."""

    def __init__(self, real: Driver) -> None:
        self.real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


def with_ttl(change: Callable[[float], float]) -> Callable[[Driver], Any]:
    class WithTtl(Wrapped):
        async def acquire(self, claims: Any) -> Any:
            return await self.real.acquire([replace(each, ttl_ms=change(each.ttl_ms)) for each in claims])

        async def renew(self, renewals: Any) -> Any:
            return await self.real.renew([replace(each, ttl_ms=change(each.ttl_ms)) for each in renewals])

    return WithTtl


def with_claims(change: Callable[[Claim], Claim]) -> Callable[[Driver], Any]:
    class WithClaims(Wrapped):
        async def acquire(self, claims: Any) -> Any:
            return await self.real.acquire([change(claim) for claim in claims])

    return WithClaims


class FallingTokens(Wrapped):
    """A restart of the store takes its counter back."""

    async def acquire(self, claims: Any) -> Any:
        answers = await self.real.acquire(claims)
        return [
            replace(answer, fencing_token=2**53 - answer.fencing_token) if isinstance(answer, Grant) else answer
            for answer in answers
        ]

    async def release(self, leases: Any) -> Any:
        # By the claim alone, because the tokens are not those of the store.
        return await self.real.release([replace(each, fencing_token=None) for each in leases])


class ForgetfulTokens(FallingTokens):
    """Tokens count from 1 for each name, and from 1 again after it was idle."""

    counts: Dict[str, Tuple[int, float]] = {}

    async def acquire(self, claims: Any) -> Any:
        answers = await self.real.acquire(claims)
        return [self._counted(claim, answer) for claim, answer in zip(claims, answers)]

    def _counted(self, claim: Claim, answer: Any) -> Any:
        if not isinstance(answer, Grant):
            return answer
        count, at = self.counts.get(claim.lock_name, (0, 0.0))
        count = count + 1 if time.monotonic() - at < 1 else 1
        self.counts[claim.lock_name] = count, time.monotonic()
        return replace(answer, fencing_token=count)


class ReleasesByName(Wrapped):
    async def release(self, leases: Any) -> Any:
        return await self.real.release([await self._of_anyone(each) for each in leases])

    async def _of_anyone(self, ref: LeaseRef) -> LeaseRef:
        page = await self.real.inspect(InspectQuery(lock_name=ref.lock_name))
        return LeaseRef(ref.lock_name, page.leases[0].claim_id) if page.leases else ref


class ReleasesByClaim(Wrapped):
    async def release(self, leases: Any) -> Any:
        return await self.real.release([replace(each, fencing_token=None) for each in leases])


class RenewalRecreates(Wrapped):
    async def renew(self, renewals: Any) -> Any:
        answers = list(await self.real.renew(renewals))
        for index, renewal in enumerate(renewals):
            if answers[index] == "lost":
                claim = Claim(renewal.lock_name, renewal.claim_id, "a holder", renewal.ttl_ms)
                [answer] = await self.real.acquire([claim])
                answers[index] = "renewed" if isinstance(answer, Grant) else "lost"
        return answers


class RenewalOfAnyone(Wrapped):
    async def renew(self, renewals: Any) -> Any:
        return ["renewed" for _ in renewals]


class GrantsTwice(Wrapped):
    """Does not look whether the name is held."""

    async def acquire(self, claims: Any) -> Any:
        answers = await self.real.acquire(claims)
        return [
            Grant(1, claim.ttl_ms, 0) if isinstance(answer, Refusal) else answer
            for claim, answer in zip(claims, answers)
        ]


class NewLeaseEachTime(Wrapped):
    """Asking again after a lost reply releases and acquires again."""

    async def acquire(self, claims: Any) -> Any:
        await self.real.release([LeaseRef(each.lock_name, each.claim_id) for each in claims])
        return await self.real.acquire(claims)


class LastComeFirstServed(Wrapped):
    """A newcomer that waits takes the place before all others: they queue again behind it."""

    waiting: Dict[str, List[Claim]] = {}

    async def acquire(self, claims: Any) -> Any:
        answers: List[Any] = []
        for claim in claims:
            waiting = self.waiting.setdefault(claim.lock_name, [])
            if claim.waiter_ttl_ms > 0 and claim.claim_id not in [each.claim_id for each in waiting]:
                await self.real.release([LeaseRef(each.lock_name, each.claim_id) for each in waiting])
                answers.extend(await self.real.acquire([claim]))
                await self.real.acquire(waiting)
                waiting.insert(0, claim)
            else:
                answers.extend(await self.real.acquire([claim]))
        return answers


class Overtakes(Wrapped):
    """The first that asks after a release gets the lock, although others wait for it."""

    released: Set[str] = set()

    async def acquire(self, claims: Any) -> Any:
        return await self.real.acquire([self._forcing(claim) for claim in claims])

    def _forcing(self, claim: Claim) -> Claim:
        is_first = claim.lock_name in self.released
        self.released.discard(claim.lock_name)
        return replace(claim, force_up_to=ANY_TOKEN if is_first else None)

    async def release(self, leases: Any) -> Any:
        self.released.update(lease.lock_name for lease in leases)
        return await self.real.release(leases)


class Misaligned(Wrapped):
    """Answers a list in the order of the names."""

    async def acquire(self, claims: Any) -> Any:
        return await self.real.acquire(sorted(claims, key=lambda claim: claim.lock_name))


class ShortAnswers(Wrapped):
    """Leaves out what it has nothing to say about."""

    async def release(self, leases: Any) -> Any:
        return [answer for answer in await self.real.release(leases) if answer]


class FailsForLongLists(Wrapped):
    async def acquire(self, claims: Any) -> Any:
        if len(claims) > 250:
            raise RuntimeError("too many")
        return await self.real.acquire(claims)


class ListsFewWaiters(Wrapped):
    async def inspect(self, query: Any) -> Any:
        page = await self.real.inspect(query)
        return replace(page, waiters=page.waiters[:50])


class PrefixIsAPattern(Wrapped):
    async def inspect(self, query: Any) -> Any:
        if query.prefix is not None and query.prefix.endswith("%"):
            query = replace(query, prefix=query.prefix[:-1])
        return await self.real.inspect(query)


class OneUnitTooMany(Wrapped):
    async def consume(self, requests: Any) -> Any:
        return await self.real.consume([self._more(request) for request in requests])

    def _more(self, request: Any) -> Any:
        limits = [replace(each, burst=each.burst + 1) if each.burst > 100 else each for each in request.limits]
        return replace(request, limits=limits)


class ChargesRefused(Wrapped):
    async def consume(self, requests: Any) -> Any:
        answers = []
        for request in requests:
            [answer] = await self.real.consume([request])
            if not answer.allowed:
                await self.real.consume([replace(request, cost=1)])
            answers.append(answer)
        return answers


class KeepsOnlyTheFirstLimit(Wrapped):
    async def consume(self, requests: Any) -> Any:
        return await self.real.consume([replace(request, limits=request.limits[:1]) for request in requests])


class NeverWakes(Wrapped):
    async def listen(self, listener: Any) -> Any:
        async def stop() -> None:
            pass

        return stop


class ForgetsMetadata(Wrapped):
    async def inspect(self, query: Any) -> Any:
        page = await self.real.inspect(query)
        return replace(page, leases=[replace(lease, metadata=None) for lease in page.leases])


class UsableWhenClosed(Wrapped):
    async def close(self) -> None:
        pass


class WithoutGroups(Wrapped):
    async def acquire(self, claims: Any) -> Any:
        return await self.real.acquire([replace(claim, group=None) for claim in claims])


class UndoesGroups(WithoutGroups):
    """Grants the free names of a group, and releases them again."""

    async def acquire(self, claims: Any) -> Any:
        answers = await super().acquire(claims)
        grouped = any(claim.group for claim in claims)
        if not grouped or all(isinstance(answer, Grant) for answer in answers):
            return answers
        await asyncio.sleep(0)  # another client asks meanwhile
        granted = [claim for claim, answer in zip(claims, answers) if isinstance(answer, Grant)]
        await self.real.release([LeaseRef(claim.lock_name, claim.claim_id) for claim in granted])
        return [Refusal(free=True) if isinstance(answer, Grant) else answer for answer in answers]


class SplitsLists(Wrapped):
    async def acquire(self, claims: Any) -> Any:
        return [*await self.real.acquire(claims[:128]), *await self.real.acquire(claims[128:])]


class RefusesItsOwnGroup(Wrapped):
    async def acquire(self, claims: Any) -> Any:
        page = await self.real.inspect(InspectQuery(page_size=10_000))
        known = {lease.claim_id for lease in page.leases}
        if any(claim.group and claim.claim_id in known for claim in claims):
            return [Refusal() for _ in claims]
        return await self.real.acquire(claims)


BROKEN: Sequence[Tuple[str, str, Callable[[Driver], Any]]] = [
    ("grants a lock that is held", "a held lock is refused to another process", GrantsTwice),
    ("answers that a held lock is free to its own process", "two claims of one driver exclude each other", GrantsTwice),
    ("takes tokens back", "rule 8: tokens rise over releases", FallingTokens),
    ("begins its tokens anew after a second of idleness", "after a name was idle for a second", ForgetfulTokens),
    ("releases the lease of another claim", "a release by another claim answers no", ReleasesByName),
    ("releases by claim without the token", "a release with a smaller or larger token answers no", ReleasesByClaim),
    ("releases a successor’s lease", "releasing an ended lease answers no and leaves a rival’s lease", ReleasesByName),
    ("re-creates a lease by renewing it", "renewing an ended lease answers lost and re-creates", RenewalRecreates),
    ("renews what it does not have", "a renewal with the wrong token or claim answers lost", RenewalOfAnyone),
    ("makes a new lease for the same claim", "asking again with the same claim returns the same", NewLeaseEachTime),
    ("serves the last waiter first", "waiters are served in the order in which they came", LastComeFirstServed),
    ("lets a newcomer overtake", "a newcomer does not overtake a waiter", Overtakes),
    ("answers lists in another order", "answers are in the order of their requests", Misaligned),
    ("leaves out answers", "a list of releases says for each whether it ended a lease", ShortAnswers),
    (
        "keeps a lease of an hour for a minute",
        "a lease of an hour is kept for an hour",
        with_ttl(lambda ms: min(ms, 60_000)),
    ),
    (
        "ends a lease at once whose time to live is above 2^31 ms",
        "a lease of 40 days is kept for 40 days",
        with_ttl(lambda ms: 1 if ms > 2**31 else ms),
    ),
    ("keeps a lease longer than its time to live", "with no tolerance before or after", with_ttl(lambda ms: ms * 1.2)),
    ("ends a lease before its time", "with no tolerance before or after", with_ttl(lambda ms: ms * 0.8)),
    ("fails for lists of more than 250 entries", "a list of 1,000 names", FailsForLongLists),
    (
        "counts permits in a byte",
        "256 permits are counted exactly",
        with_claims(lambda claim: replace(claim, permits=claim.permits % 256)),
    ),
    (
        "judges a claim without its limit",
        "a claim is judged by its own limit",
        with_claims(lambda claim: replace(claim, limit=None)),
    ),
    (
        "uses no force",
        "a lock that is held is granted at once to a claim with force",
        with_claims(lambda claim: replace(claim, force_up_to=None)),
    ),
    (
        "ends what is newer than the claim says",
        "a claim with forceUpTo is refused if there is a newer lease",
        with_claims(lambda claim: replace(claim, force_up_to=claim.force_up_to and ANY_TOKEN)),
    ),
    ("lists the first 50 waiters only", "every one of 150 waiters is shown", ListsFewWaiters),
    ("takes a prefix for a pattern", "a prefix is taken literally", PrefixIsAPattern),
    ("forgets metadata", "metadata comes back as it went in", ForgetsMetadata),
    (
        "makes names lower case",
        "names that differ in case, spaces or composed letters",
        with_claims(lambda claim: replace(claim, lock_name=claim.lock_name.lower())),
    ),
    ("can be used after close", "after close every call rejects", UsableWhenClosed),
    ("wakes no waiter", "a waiter is notified of a release by another process", NeverWakes),
    ("allows one unit too many in bursts above 100", "a burst of 150 is exactly that many units", OneUnitTooMany),
    ("charges a refused request", "a refused request is not charged", ChargesRefused),
    ("keeps only the first limit", "several limits are charged together or not at all", KeepsOnlyTheFirstLimit),
    ("grants the free names of a group", "a group with one held name is refused", WithoutGroups),
    (
        "grants the free names of a group, and releases them again",
        "no other client ever finds the others taken",
        UndoesGroups,
    ),
    ("splits a list in the middle of a group", "a group of 100 claims in a long list is not split", SplitsLists),
    (
        "refuses a group that asks again because of its own leases",
        "a group that asks again gets the same leases",
        RefusesItsOwnGroup,
    ),
]


@pytest.mark.parametrize("caught_by, make", [pytest.param(by, make, id=what) for what, by, make in BROKEN])
def test_the_suite_catches_a_driver_that(
    caught_by: str, make: Callable[[Driver], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Some of them never do what a case waits for.
    monkeypatch.setattr(timing, "PATIENCE_SECONDS", 1.0)
    outcomes = outcomes_with(make, [caught_by])
    assert outcomes
    assert any(isinstance(outcome, BaseException) for outcome in outcomes)


def test_the_suite_passes_a_correct_driver_in_the_same_cases() -> None:
    outcomes = outcomes_with(lambda driver: driver, [caught_by for _, caught_by, _ in BROKEN])
    assert len(outcomes) >= len({caught_by for _, caught_by, _ in BROKEN})
    assert set(outcomes) == {None}


def outcomes_with(make: Callable[[Driver], Any], titles: Sequence[str]) -> List[Outcome]:
    """The outcomes of the cases whose titles have one of these parts."""

    @asynccontextmanager
    async def open() -> AsyncIterator[Store]:
        shared = MemoryStore()

        async def driver(cleanup: AsyncExitStack) -> Driver:
            wrapped: Driver = make(memory_driver(shared))
            return wrapped

        yield Store(driver, no_session)

    kind = StoreKind("broken", open)
    driver_cases = [case for case in cases_of(kind) if case.group.startswith("driver interface: ")]
    cases = [case for case in driver_cases if any(title in case.title for title in titles)]
    return list(run_cases(kind, cases).values())
