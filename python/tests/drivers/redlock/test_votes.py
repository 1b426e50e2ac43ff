"""How a vote is decided, without servers."""

from __future__ import annotations

from typing import Any, List, Optional

import pytest
from holdfast.core.driver import Claim, Grant, LeaseRecord, LeaseRef, Refusal
from holdfast.drivers._redis.records import TokenRefusal
from holdfast.drivers._redlock.attempts import Attempt, Attempts
from holdfast.drivers._redlock.proposals import Failed, Outbid, Proposals, Refused
from holdfast.drivers._redlock.quorum import NodeError, Votes
from holdfast.errors import StoreError

NOW_MS = 1_772_366_400_000.0
MOST_AHEAD_US = 15_000_000
CLAIM = Claim("order:1", "claim", "me", 30_000)


def proposals(quorum: int, wall_ms: float = NOW_MS) -> Proposals:
    return Proposals(lambda: wall_ms, quorum, MOST_AHEAD_US)


def attempt_of(subject: Proposals) -> Attempt:
    attempt = Attempt(CLAIM)
    subject.propose([attempt])
    return attempt


def grant(token: int) -> Grant:
    return Grant(token, 30_000, NOW_MS)


def refusal(claim_id: Optional[str] = "rival", ask_again_ms: Optional[float] = None) -> Refusal:
    holder = None
    if claim_id is not None:
        holder = LeaseRecord("order:1", claim_id, "rival", "exclusive", 1, 5_000_000, 4_000, 34_000)
    return Refusal(holder=holder, ask_again_ms=ask_again_ms, answered_at_ms=NOW_MS)


def votes(answers: List[Any], errors: int = 0, pending: int = 0) -> Votes[Any]:
    failed = [NodeError(f"node {at}", StoreError("down")) for at in range(errors)]
    return Votes(pending, answers, failed)


def test_proposals_rise_and_are_not_below_the_clock():
    subject = proposals(2)
    attempts = [Attempt(CLAIM) for _ in range(3)]
    subject.propose(attempts)
    subject.propose(attempts[:1])
    tokens = [attempts[0].tokens[0], attempts[1].tokens[0], attempts[2].tokens[0], attempts[0].tokens[1]]
    assert tokens == sorted(set(tokens)) and tokens[0] >= NOW_MS * 1_000


@pytest.mark.parametrize("nodes, quorum", [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4)])
def test_a_quorum_of_grants_is_a_grant_without_the_slowest_node(nodes, quorum):
    subject = proposals(quorum)
    attempt = attempt_of(subject)
    token = attempt.tokens[-1]
    for count in range(quorum):
        assert subject.decide(votes([grant(token)] * count, pending=nodes - count), attempt) is None
    decided = subject.decide(votes([grant(token)] * quorum, pending=nodes - quorum), attempt)
    assert decided == Grant(token, 30_000, token // 1_000)


def test_grants_of_another_round_do_not_count():
    subject = proposals(2)
    attempt = attempt_of(subject)
    before = attempt.tokens[-1]
    subject.propose([attempt])
    decided = subject.decide(votes([grant(before), grant(before), grant(attempt.tokens[-1])]), attempt)
    assert not isinstance(decided, Grant)


@pytest.mark.parametrize("nodes, quorum", [(2, 2), (4, 3), (6, 4)])
def test_a_split_vote_of_an_even_number_of_nodes_is_decided_and_names_no_holder(nodes, quorum):
    subject = proposals(quorum)
    attempt = attempt_of(subject)
    half = nodes // 2
    answers = [grant(attempt.tokens[-1])] * half + [refusal()] * half
    decided = subject.decide(votes(answers), attempt)
    assert isinstance(decided, Refused) and decided.holder is None


@pytest.mark.parametrize("age_ms, left_ms, errors, again_ms", [
    (30, 20_000, 1, 30),  # a live rival
    (5_000, 20_000, 1, 1_000),  # a dead claim's vote, and a node that is down
    (5_000, 200, 1, 200),  # it ends soon
])  # fmt: skip
def test_after_a_split_vote_a_claim_asks_again_after_as_long_as_the_rival_has_stood(age_ms, left_ms, errors, again_ms):
    subject = proposals(2)
    attempt = attempt_of(subject)
    holder = LeaseRecord("order:1", "rival", "rival", "exclusive", 1, 5_000_000, NOW_MS - age_ms, NOW_MS + left_ms)
    rival = Refusal(holder=holder, ask_again_ms=left_ms, answered_at_ms=NOW_MS)
    decided = subject.decide(votes([grant(attempt.tokens[-1]), rival], errors=errors), attempt)
    assert decided == Refused(None, again_ms)


def test_a_quorum_of_refusals_names_the_holder_with_the_start_that_all_nodes_agree_on():
    subject = proposals(2)
    attempt = attempt_of(subject)
    decided = subject.decide(votes([refusal(ask_again_ms=700), refusal(ask_again_ms=400)], pending=1), attempt)
    assert isinstance(decided, Refused) and decided.ask_again_ms == 400
    assert decided.holder is not None and decided.holder.claim_id == "rival"
    assert (decided.holder.acquired_at_ms, decided.holder.expires_at_ms) == (5_000, 35_000)


def test_too_many_failures_are_an_error_and_no_refusal():
    subject = proposals(3)
    attempt = attempt_of(subject)
    assert isinstance(subject.decide(votes([refusal(), refusal()], errors=3), attempt), Failed)
    assert isinstance(subject.decide(votes([grant(attempt.tokens[-1])] * 2, errors=3), attempt), Failed)
    # Whether another client holds it is still open.
    assert subject.decide(votes([refusal(), refusal()], errors=2, pending=1), attempt) is None


def test_a_proposal_below_a_mark_is_outbid_and_the_next_is_above_it():
    subject = proposals(2)
    attempt = attempt_of(subject)
    mark = attempt.tokens[-1] + 500
    decided = subject.decide(votes([TokenRefusal(NOW_MS, mark), TokenRefusal(NOW_MS, 3)], pending=1), attempt)
    assert decided == Outbid(mark)
    attempt.mark = mark
    subject.propose([attempt])
    assert attempt.tokens[-1] > mark


def test_a_grant_below_a_mark_of_another_node_is_outbid():
    """That node may be the only one left that remembers the larger token."""
    subject = proposals(2)
    attempt = attempt_of(subject)
    token = attempt.tokens[-1]
    higher = TokenRefusal(NOW_MS, token + 7)
    assert subject.decide(votes([higher, grant(token), grant(token)]), attempt) == Outbid(token + 7)
    attempt.is_repeat = True
    assert isinstance(subject.decide(votes([higher, grant(token), grant(token)]), attempt), Grant)


def test_a_node_whose_clock_is_far_ahead_does_not_keep_the_others_from_granting():
    subject = proposals(2)
    attempt = attempt_of(subject)
    token = attempt.tokens[-1]
    far = TokenRefusal(NOW_MS + 86_400_000, token + 86_400_000_000)
    assert isinstance(subject.decide(votes([far, grant(token), grant(token)]), attempt), Grant)


def test_a_client_whose_clock_is_far_ahead_goes_on_with_the_clock_of_the_nodes():
    subject = proposals(2, NOW_MS + 86_400_000)
    attempt = attempt_of(subject)
    too_far = TokenRefusal(NOW_MS)
    assert isinstance(subject.decide(votes([too_far, too_far], pending=1), attempt), Outbid)
    subject.propose([attempt])
    assert abs(attempt.tokens[-1] - NOW_MS * 1_000) < 1_000


def test_no_vote_counts_whose_release_was_sent():
    attempts = Attempts()
    attempt = attempts.begin(CLAIM)
    attempt.tokens.append(7)
    assert attempt.may_count(7)
    assert attempts.release(LeaseRef("order:1", "claim")) == [LeaseRef("order:1", "claim", 7)]
    assert attempt.state == "over" and not attempt.may_count(7)
    attempts.end(attempt, "granted")
    assert attempt.state == "over", "a grant that comes later does not revive it"


def test_a_claim_that_asks_again_proposes_the_token_that_it_was_granted():
    attempts = Attempts()
    attempt = attempts.begin(CLAIM)
    attempt.tokens.append(7)
    attempts.end(attempt, "granted")
    again = attempts.begin(CLAIM)
    assert again is attempt and again.is_repeat and again.tokens == [7]
    newer = attempts.begin(CLAIM)
    assert again.state == "over" and newer is not again
    assert attempts.release(LeaseRef("order:1", "claim", 99)) == [LeaseRef("order:1", "claim", 99)]
    assert newer.state == "open", "the release of another token does not touch it"
