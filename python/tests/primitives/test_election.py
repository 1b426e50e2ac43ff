"""Leader election on the memory driver."""

from __future__ import annotations

import asyncio
import time
from typing import Any, AsyncIterator, Callable, List, Optional

import pytest

from conformance.faulty_network import FaultyNetwork
from holdfast import (
    ClosedError,
    InvalidArgumentError,
    Leader,
    LeaderElection,
    LeaseLostError,
    NotAcquiredError,
    NotHeldError,
    StoreError,
    Term,
    UnsupportedError,
)
from holdfast import _instance
from holdfast.drivers.memory import MemoryStore, memory_driver
from support.polling import until, waiters

Candidate = Callable[..., LeaderElection]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def candidate(store: MemoryStore) -> AsyncIterator[Candidate]:
    """Candidates of one election, each with its own driver, as in separate processes."""
    opened: List[LeaderElection] = []

    def create(holder_id: str = "a", *, driver: Any = None, **options: Any) -> LeaderElection:
        own = memory_driver(store) if driver is None else driver
        election = LeaderElection(own, name="scheduler", holder_id=holder_id, **options)
        opened.append(election)
        return election

    yield create
    for election in opened:
        await election.close()


async def waiting(store: MemoryStore, count: int) -> None:
    await waiters(memory_driver(store), count)


async def test_a_term_has_a_number_that_is_its_fencing_token_and_publishes_a_value(candidate: Candidate) -> None:
    a, b = candidate("a"), candidate("b")
    assert await b.leader() is None
    term = await a.campaign(value={"address": "10.0.0.1:80"})
    assert (term.name, term.holder_id, term.held, term.value) == ("scheduler", "a", True, {"address": "10.0.0.1:80"})
    assert term.fencing_token == term.term
    assert a.term is term and b.term is None
    leader = await b.leader()
    assert leader is not None
    assert (leader.holder_id, leader.term, leader.value) == ("a", term.term, {"address": "10.0.0.1:80"})
    assert leader.since == term.since


async def test_resigning_ends_the_term_first_and_then_elects_the_next_candidate_with_a_higher_term(
    store: MemoryStore, candidate: Candidate
) -> None:
    network = FaultyNetwork(memory_driver(store))
    a, b = candidate("a", driver=network.driver), candidate("b")
    first = await a.campaign()
    following = asyncio.create_task(b.campaign())
    await waiting(store, 1)
    sent = network.counts["release"].calls
    demoted_before_release: List[bool] = []
    first._watch_end(lambda: demoted_before_release.append(network.counts["release"].calls == sent))
    assert await first.resign()
    assert demoted_before_release == [True]
    assert isinstance(await first.wait_ended(), NotHeldError)
    assert not first.lost.is_set()
    assert (await following).term > first.term
    assert not await a.resign()
    assert await b.resign()


async def test_a_campaign_waits_without_limit_with_one_it_ends_in_an_error_that_names_the_leader(
    store: MemoryStore, candidate: Candidate
) -> None:
    a, b = candidate("a"), candidate("b")
    await a.campaign()
    for seconds in (0, 0.05):
        with pytest.raises(NotAcquiredError) as refused:
            await b.campaign(blocking_timeout_seconds=seconds)
        assert refused.value.holder is not None and refused.value.holder.holder_id == "a"
    endless = asyncio.create_task(b.campaign())
    await waiting(store, 1)
    assert not endless.done()
    endless.cancel()
    with pytest.raises(asyncio.CancelledError):
        await endless
    await waiting(store, 0)


async def test_a_campaign_goes_on_while_the_store_is_down_and_wins_when_it_is_back(
    store: MemoryStore, candidate: Candidate
) -> None:
    network = FaultyNetwork(memory_driver(store))
    election = candidate("a", driver=network.driver, call_timeout_seconds=0.05)
    network.cut()
    campaign = asyncio.create_task(election.campaign())
    await until(lambda: network.counts["acquire"].calls >= 2)
    network.heal()
    assert (await campaign).held


async def test_a_campaign_waits_for_a_store_that_cannot_be_opened(
    candidate: Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = 2
    open_driver = _instance.driver_from

    async def driver_from(store: object) -> Any:
        nonlocal failures
        if failures > 0:
            failures -= 1
            raise StoreError("the store is down")
        return await open_driver(store)

    monkeypatch.setattr(_instance, "driver_from", driver_from)
    assert (await candidate("a").campaign()).held
    assert failures == 0
    failures = 1_000
    other = candidate("b")
    with pytest.raises(StoreError):
        await other.campaign(blocking_timeout_seconds=0.1)
    waiting = asyncio.create_task(other.campaign())
    await until(lambda: failures < 998)
    cancelled = asyncio.create_task(other.campaign())
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    await other.close()
    with pytest.raises(ClosedError):
        await waiting


async def test_close_ends_campaigns_and_terms(candidate: Candidate, store: MemoryStore) -> None:
    a, b = candidate("a"), candidate("b")
    term = await a.campaign()
    campaign = asyncio.create_task(b.campaign())
    await waiting(store, 1)
    await b.close()
    with pytest.raises(ClosedError):
        await campaign
    await a.close()
    assert not term.held
    with pytest.raises((LeaseLostError, NotHeldError)):
        term.assert_held()
    with pytest.raises(ClosedError):
        await a.campaign()


async def test_a_leader_can_resign_while_its_instance_drains_and_that_ends_the_drain(candidate: Candidate) -> None:
    a, b = candidate("a"), candidate("b")
    await a.campaign()
    closing = asyncio.create_task(a.close(drain_seconds=50))
    await asyncio.sleep(0)
    assert await a.resign()
    await closing
    with pytest.raises(ClosedError):
        await a.resign()
    assert await b.leader() is None


async def test_bad_input_is_refused_before_anything_is_sent(candidate: Candidate) -> None:
    with pytest.raises(InvalidArgumentError, match="name must be"):
        LeaderElection("memory:", name="")
    with pytest.raises(InvalidArgumentError, match="timeout_seconds must be"):
        LeaderElection("memory:", name="a", timeout_seconds=0.01)
    with pytest.raises(InvalidArgumentError, match="store must be"):
        LeaderElection(None, name="a")
    election = candidate()
    wrong: List[Any] = [
        ({"value": object()}, "value"),
        ({"value": {"at": float("nan")}}, "value.at"),
        ({"value": "x" * 17_000}, "value"),
        ({"max_term_seconds": -1}, "max_term_seconds"),
        ({"blocking_timeout_seconds": -1}, "blocking_timeout_seconds"),
        ({"on_demoted": 1}, "on_demoted"),
    ]
    for options, argument in wrong:
        with pytest.raises(InvalidArgumentError) as refused:
            await election.campaign(**options)
        assert refused.value.argument == argument
    with pytest.raises(InvalidArgumentError, match="lead must be"):
        await election.run(None)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="rest_seconds must be"):
        await election.run(print, rest_seconds=-1)
    with pytest.raises(InvalidArgumentError, match="every_seconds must be"):
        election.observe(every_seconds=0)
    assert election._instance._holder is None


async def test_a_driver_without_metadata_refuses_a_value_with_the_reason_and_elects_without_one(
    store: MemoryStore, candidate: Candidate
) -> None:
    from dataclasses import replace

    driver = memory_driver(store)
    driver.capabilities = replace(driver.capabilities, metadata=False)
    election = candidate("a", driver=driver)
    with pytest.raises(UnsupportedError, match="Others can see its holder_id"):
        await election.campaign(value=1)
    term = await election.campaign()
    leader = await election.leader()
    assert leader is not None and (leader.term, leader.value) == (term.term, None)


async def test_a_loss_is_reported_exactly_once_by_the_first_statement_after_a_stall(
    store: MemoryStore, candidate: Candidate
) -> None:
    network = FaultyNetwork(memory_driver(store))
    election = candidate("a", driver=network.driver, timeout_seconds=0.2)
    told: List[Exception] = []
    term = await election.campaign(on_demoted=lambda _, reason: told.append(reason))
    network.cut()
    time.sleep(0.25)  # a stall beyond the lease
    assert not term.held
    assert [type(each) for each in told] == [LeaseLostError]
    assert term.lost.is_set() and isinstance(await term.lost, LeaseLostError)
    assert election.term is None
    await asyncio.sleep(0.1)  # for every timer that is due
    assert len(told) == 1
    network.heal()


async def test_a_resignation_is_reported_exactly_once_even_if_on_demoted_raises(
    candidate: Candidate, caplog: pytest.LogCaptureFixture
) -> None:
    election = candidate()
    told: List[Any] = []

    def on_demoted(term: Term, reason: Exception) -> None:
        told.append((term, type(reason)))
        raise RuntimeError("in on_demoted")

    term = await election.campaign(on_demoted=on_demoted)
    assert await term.resign()
    assert not await term.resign()
    assert told == [(term, NotHeldError)]
    assert "on_demoted" in caplog.text
    assert await election.leader() is None


async def test_a_term_ends_by_itself_after_max_term_seconds(candidate: Candidate) -> None:
    term = await candidate(timeout_seconds=0.3).campaign(max_term_seconds=0.2)
    assert isinstance(await term.wait_ended(), LeaseLostError)


async def test_a_block_around_a_term_resigns(candidate: Candidate) -> None:
    a, b = candidate("a"), candidate("b")
    async with await a.campaign() as term:
        assert term.held
    assert (await b.campaign(blocking_timeout_seconds=0)).held


# Observing


async def test_there_is_no_leader_after_a_block_that_did_not_await_the_resignation(
    store: MemoryStore, candidate: Candidate
) -> None:
    network = FaultyNetwork(memory_driver(store))
    election, other = candidate("a", driver=network.driver), candidate("b")

    async def slow(forward: Any) -> Any:
        await asyncio.sleep(0.02)
        return await forward()

    network.always("release", slow)
    async with await election.campaign() as term:
        resigning = asyncio.ensure_future(term.resign())
        await asyncio.sleep(0)
    assert await other.leader() is None
    assert await resigning is True


async def test_observers_see_the_leader_and_every_change_also_to_no_leader(candidate: Candidate) -> None:
    a, b = candidate("a"), candidate("b")
    changes = b.observe(every_seconds=0.05)

    async def following() -> Optional[str]:
        leader: Optional[Leader] = await changes.__anext__()
        return None if leader is None else leader.holder_id

    assert await following() is None
    term = await a.campaign()
    assert await following() == "a"
    await term.resign()
    assert await following() is None
    await b.campaign()
    assert await following() == "b"
    last = asyncio.create_task(following())
    await asyncio.sleep(0)
    await b.close()
    with pytest.raises(StopAsyncIteration):
        await last


async def test_an_observer_looks_at_once_when_its_own_instance_is_elected_or_demoted(candidate: Candidate) -> None:
    election = candidate("a")
    changes = election.observe(every_seconds=3_600)
    assert await changes.__anext__() is None
    term = await election.campaign()
    leader = await changes.__anext__()
    assert leader is not None and leader.term == term.term
    await term.resign()
    assert await changes.__anext__() is None


async def test_a_store_that_does_not_answer_does_not_mean_that_there_is_no_leader(
    store: MemoryStore, candidate: Candidate
) -> None:
    network = FaultyNetwork(memory_driver(store))
    election = candidate("a", driver=network.driver, call_timeout_seconds=0.05)
    heard = asyncio.Event()
    changes = election.observe(every_seconds=0.05, on_error=lambda _: heard.set())
    term = await election.campaign()
    leader = await changes.__anext__()
    assert leader is not None and leader.term == term.term
    network.cut()
    following = asyncio.ensure_future(changes.__anext__())
    await heard.wait()
    assert not following.done()
    network.heal()
    await term.resign()
    assert await following is None


# Leading again and again


async def test_run_campaigns_again_after_its_function_has_ended_until_it_is_cancelled(candidate: Candidate) -> None:
    election = candidate()
    terms: List[int] = []
    third = asyncio.Event()

    def lead(term: Term) -> None:
        terms.append(term.term)
        if len(terms) == 3:
            third.set()

    run = asyncio.create_task(election.run(lead, rest_seconds=0.01))
    await third.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert terms == sorted(set(terms))
    assert await election.leader() is None


async def test_a_lost_term_cancels_the_function_and_run_campaigns_again_when_it_has_ended(
    store: MemoryStore, candidate: Candidate
) -> None:
    network = FaultyNetwork(memory_driver(store))
    election = candidate("a", driver=network.driver, timeout_seconds=0.2, call_timeout_seconds=0.05)
    demoted: List[int] = []
    terms: List[Term] = []
    second = asyncio.Event()
    at_cancellation: List[bool] = []

    async def lead(term: Term) -> None:
        terms.append(term)
        if len(terms) == 2:
            second.set()
            return
        network.cut()
        try:
            await asyncio.sleep(50)
        finally:
            at_cancellation.append(term.held)
            network.heal()

    run = asyncio.create_task(election.run(lead, rest_seconds=0.01, on_demoted=lambda t, _: demoted.append(t.term)))
    await second.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert at_cancellation == [False]
    assert terms[0].lost.is_set() and terms[1].term > terms[0].term
    assert demoted[:2] == [each.term for each in terms[:2]]


async def test_run_raises_the_error_of_its_function_after_resigning(candidate: Candidate) -> None:
    a, b = candidate("a"), candidate("b")

    async def lead(_: Term) -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        await a.run(lead)
    assert (await b.campaign(blocking_timeout_seconds=0)).held


async def test_with_on_error_run_goes_on_and_an_error_after_a_demotion_counts_as_an_error(
    candidate: Candidate,
) -> None:
    election = candidate()
    errors: List[str] = []
    runs = 0
    over = asyncio.Event()

    async def lead(term: Term) -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise RuntimeError("first")
        await term.resign()
        if runs == 2:
            raise RuntimeError("second, in the clean-up")
        over.set()
        term.assert_held()  # its NotHeldError is how it stops

    run = asyncio.create_task(election.run(lead, rest_seconds=0, on_error=lambda error, _: errors.append(str(error))))
    await over.wait()
    await asyncio.sleep(0.01)  # so that the third term is over
    run.cancel()
    await asyncio.wait({run})
    assert errors == ["first", "second, in the clean-up"]


async def test_a_function_that_resigns_itself_goes_on_and_one_whose_term_is_resigned_elsewhere_is_cancelled(
    candidate: Candidate,
) -> None:
    election = candidate()
    ends: List[str] = []
    leads = asyncio.Event()

    async def lead(term: Term) -> None:
        if not ends:
            await term.resign()
            await asyncio.sleep(0)
            ends.append("resigned itself")
            return
        leads.set()
        try:
            await asyncio.sleep(50)
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    run = asyncio.create_task(election.run(lead, rest_seconds=0))
    await leads.wait()
    assert await election.resign()
    await until(lambda: len(ends) == 2)
    run.cancel()
    await asyncio.wait({run})
    assert ends[:2] == ["resigned itself", "cancelled"]


async def test_a_function_that_notices_the_loss_of_its_term_itself_is_cancelled_nevertheless(
    store: MemoryStore, candidate: Candidate
) -> None:
    network = FaultyNetwork(memory_driver(store))
    election = candidate("a", driver=network.driver, timeout_seconds=0.1, call_timeout_seconds=0.05)
    ended = asyncio.Event()

    async def lead(term: Term) -> None:
        network.cut()
        time.sleep(0.15)  # no timer can fire before the next statement
        assert not term.held
        try:
            await asyncio.sleep(50)
        finally:
            network.heal()
            ended.set()

    run = asyncio.create_task(election.run(lead))
    await ended.wait()
    run.cancel()
    await asyncio.wait({run})


async def test_a_function_can_close_its_own_election(candidate: Candidate) -> None:
    election = candidate()

    async def lead(_: Term) -> None:
        await election.close()

    await election.run(lead)
    assert election.closed


async def test_run_rests_longer_after_each_failure_in_a_row_and_never_campaigns_in_a_busy_loop(
    candidate: Candidate,
) -> None:
    for rest_seconds in (0.04, 0):
        election = candidate()
        at: List[float] = []
        over = asyncio.Event()

        def lead(_: Term) -> None:
            at.append(time.monotonic())
            if len(at) == 4:
                over.set()
            raise RuntimeError("again")

        run = asyncio.create_task(election.run(lead, rest_seconds=rest_seconds, on_error=lambda *_: None))
        await over.wait()
        run.cancel()
        await asyncio.wait({run})
        # At least half of 100 (the least after a failure), 200, 400 ms. A timer may be a little early.
        for index, (before, after) in enumerate(zip(at, at[1:])):
            assert after - before >= 0.05 * 2**index - 0.002


async def test_a_cancelled_run_keeps_its_term_until_its_function_has_stopped(candidate: Candidate) -> None:
    a, b = candidate("a"), candidate("b")
    leads, stopping, cleaned = asyncio.Event(), asyncio.Event(), asyncio.Event()
    demoted: List[bool] = []
    held: List[bool] = []

    async def lead(term: Term) -> None:
        leads.set()
        try:
            await asyncio.sleep(50)
        finally:
            stopping.set()
            await cleaned.wait()
            held.append(term.held)

    run = asyncio.create_task(a.run(lead, on_demoted=lambda *_: demoted.append(True)))
    await leads.wait()
    run.cancel()
    await stopping.wait()
    with pytest.raises(NotAcquiredError):
        await b.campaign(blocking_timeout_seconds=0)
    assert demoted == []
    cleaned.set()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert (held, demoted) == ([True], [True])
    assert (await b.campaign(blocking_timeout_seconds=0)).held


async def test_an_error_while_the_function_stops_is_not_hidden_by_the_cancellation(candidate: Candidate) -> None:
    leads = asyncio.Event()

    async def lead(_: Term) -> None:
        leads.set()
        try:
            await asyncio.sleep(50)
        finally:
            raise OSError("cannot hand over")

    run = asyncio.create_task(candidate().run(lead))
    await leads.wait()
    run.cancel()
    with pytest.raises(OSError, match="cannot hand over"):
        await run


async def test_run_returns_when_the_instance_is_closed_while_leading_or_campaigning(
    candidate: Candidate, store: MemoryStore
) -> None:
    a, b = candidate("a"), candidate("b")
    leads = asyncio.Event()

    async def lead(_: Term) -> None:
        leads.set()
        await asyncio.sleep(50)

    leading = asyncio.create_task(a.run(lead))
    await leads.wait()
    campaigning = asyncio.create_task(b.run(lead))
    await waiting(store, 1)
    await b.close()
    await campaigning
    await a.close()
    await leading
    with pytest.raises(ClosedError):
        await a.run(lead)


async def test_three_candidates_lead_in_turn_one_at_a_time(candidate: Candidate) -> None:
    leading = 0
    terms: List[int] = []
    enough = asyncio.Event()

    async def lead(term: Term) -> None:
        nonlocal leading
        leading += 1
        assert leading == 1
        terms.append(term.term)
        await asyncio.sleep(0)  # so that a second leader would be noticed
        leading -= 1
        if len(terms) >= 12:
            enough.set()

    runs = [asyncio.create_task(candidate(each).run(lead, rest_seconds=0.01)) for each in "abc"]
    await asyncio.wait({*runs, asyncio.create_task(enough.wait())}, return_when=asyncio.FIRST_COMPLETED)
    for run in runs:
        run.cancel()
    ends = await asyncio.gather(*runs, return_exceptions=True)
    assert [type(each) for each in ends] == [asyncio.CancelledError] * 3
    assert terms == sorted(terms)


async def test_a_run_inside_a_timeout_ends_with_the_timeout(candidate: Candidate) -> None:
    election = candidate()

    async def lead(_: Term) -> None:
        await asyncio.sleep(50)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await election.run(lead)
    assert await election.leader() is None


async def test_a_run_in_a_task_group_ends_with_the_group_and_has_resigned(candidate: Candidate) -> None:
    election = candidate()
    leads = asyncio.Event()

    async def lead(_: Term) -> None:
        leads.set()
        await asyncio.sleep(50)

    with pytest.raises(ExceptionGroup) as raised:
        async with asyncio.TaskGroup() as group:
            group.create_task(election.run(lead))
            await leads.wait()
            raise OSError("the other task failed")
    assert [type(each) for each in raised.value.exceptions] == [OSError]
    assert await election.leader() is None
