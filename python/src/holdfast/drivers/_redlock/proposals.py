"""The tokens that a client proposes, and the decision of each vote.

A proposal is above every token that this client has seen, and not below its clock in microseconds. A node grants it
only above its own mark, which is the largest token that it has granted. Any two quorums share a node, and that node has
seen the token of the previous grant. So tokens rise with every grant of a name, even if the clients' clocks are wrong.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Callable, Optional, Sequence, Union

from ...core.driver import Grant, LeaseRecord, Refusal
from .._redis.records import TokenRefusal
from .attempts import Attempt
from .quorum import NodeError, Votes

Vote = Union[Grant, Refusal, TokenRefusal]

_LATER_MS = 1_000.0
"""When a waiter asks again if the end of the lease is unknown."""


@dataclass(frozen=True)
class Outbid:
    """With a token above this, enough nodes would have granted it, or would have granted it in the right order."""

    mark: int


@dataclass(frozen=True)
class Refused:
    holder: Optional[LeaseRecord]
    ask_again_ms: float


@dataclass(frozen=True)
class Failed:
    errors: Sequence[NodeError]


Outcome = Union[Grant, Outbid, Refused, Failed]


class Proposals:
    def __init__(self, wall_ms: Callable[[], float], quorum: int, most_ahead_us: int) -> None:
        """`most_ahead_us`: how far ahead of a node's clock a token may be."""
        self._wall_ms = wall_ms
        self._quorum = quorum
        self._most_ahead_us = most_ahead_us
        self._last = 0
        self._ahead_us = 0.0
        """The correction of this client's clock, after enough nodes said that it is too far ahead."""

    def propose(self, attempts: Sequence[Attempt]) -> None:
        """Adds a token for the next round to each attempt. The tokens rise, because several may be for one name."""
        first = max(self._last + 1, math.floor(self._now_us()))
        self._last = first + len(attempts) - 1
        for at, attempt in enumerate(attempts):
            if not attempt.is_repeat:
                attempt.tokens.append(max(first, attempt.mark + 1) + at)

    def decide(self, votes: Votes[Vote], attempt: Attempt) -> Optional[Outcome]:
        """Decides the current round. Only votes for the token of this round count, not votes for an earlier token of
        the claim. None while votes are missing."""
        quorum, answers, pending = self._quorum, votes.answers, votes.pending
        if self._ahead_us != 0:
            self._trust_clock(answers)
        token = attempt.tokens[-1]
        nodes = len(answers) + len(votes.errors) + pending
        grants = [each for each in answers if isinstance(each, Grant) and each.fencing_token == token]
        if len(grants) >= quorum:
            # A node that has granted a higher token may be the only one left that remembers it. A repeat is no new
            # grant.
            higher = 0 if attempt.is_repeat else self._highest_mark(answers, nodes)
            if higher > token:
                return Outbid(higher)
            # The core checks whether enough of the lease is left, counted from before the first proposal was sent.
            return Grant(token, attempt.claim.ttl_ms, acquired_at(token))
        if len(grants) + pending >= quorum:
            return None
        refusals = [each for each in answers if isinstance(each, Refusal)]
        if len(votes.errors) > nodes - quorum:
            return Failed(votes.errors)
        if len(refusals) + len(votes.errors) + pending <= nodes - quorum:
            self._correct_clock(answers, nodes)
            return Outbid(self._highest_mark(answers, nodes))
        # The votes that are missing decide between "another client holds it" and "too few nodes answered".
        if len(refusals) <= nodes - quorum and pending > 0:
            return None
        # With an even number of nodes, refusals from half of them fit a holder and also a rival that has lost. The
        # votes that are missing decide.
        if len(refusals) < quorum and pending > 0 and len(refusals) + pending >= quorum:
            return None
        # If this claim got some of the votes, only a quorum of refusals makes another claim the holder.
        holder = _holder_in(refusals, quorum if grants else nodes - quorum + 1)
        if holder is not None:
            return Refused(holder, _ends_in_ms(refusals))
        return Refused(None, _again_ms(refusals, len(votes.errors), nodes - quorum + 1))

    def learn(self, vote: Vote) -> None:
        """Learns from a vote that arrived after the decision."""
        if not isinstance(vote, TokenRefusal) or vote.mark is None:
            return
        # All other nodes would refuse a proposal that is further ahead.
        if vote.mark <= self._now_us() + self._most_ahead_us:
            self._last = max(self._last, vote.mark)

    def _highest_mark(self, answers: Sequence[Vote], nodes: int) -> int:
        """The highest mark that a quorum can go above. A node whose clock is far ahead of the others must not keep them
        from granting."""
        for answer in answers:
            self.learn(answer)
        marks = [each.mark for each in answers if isinstance(each, TokenRefusal) and each.mark is not None]

        def can_be_followed(mark: int) -> bool:
            unable = [each for each in answers if self._reach_of(each) <= mark]
            return len(unable) <= nodes - self._quorum

        return max((mark for mark in marks if can_be_followed(mark)), default=0)

    def _reach_of(self, vote: Vote) -> float:
        """The highest token that the node would accept now."""
        by_clock = _clock_of(vote) * 1_000 + self._most_ahead_us
        return max(by_clock, (vote.mark or 0) + 1) if isinstance(vote, TokenRefusal) else by_clock

    def _correct_clock(self, answers: Sequence[Vote], nodes: int) -> None:
        """If so many nodes say that this client's clock is too far ahead that the others are no quorum, it continues
        with the clock of the node that completes a quorum."""
        clocks = [each.now_ms for each in answers if isinstance(each, TokenRefusal) and each.mark is None]
        missing = self._quorum - (nodes - len(clocks))
        if missing <= 0:
            return
        now_ms = sorted(clocks, reverse=True)[missing - 1]
        self._ahead_us += self._now_us() - now_ms * 1_000
        self._last = min(self._last, math.floor(self._now_us()))

    def _trust_clock(self, answers: Sequence[Vote]) -> None:
        """Drops the correction as soon as a quorum would accept tokens of this client's own clock. With a clock behind
        those of the other clients, it would be outbid in every first round."""
        clocks = sorted((_clock_of(each) for each in answers), reverse=True)
        if len(clocks) < self._quorum:
            return
        if self._wall_ms() * 1_000 <= clocks[self._quorum - 1] * 1_000 + self._most_ahead_us:
            self._ahead_us = 0.0

    def _now_us(self) -> float:
        return self._wall_ms() * 1_000 - self._ahead_us


def acquired_at(fencing_token: int) -> float:
    """The start of a lease, the same on all nodes although their clocks differ by some milliseconds: the token is the
    same, and it was the client's clock in microseconds when it was proposed."""
    return fencing_token // 1_000


def agreed_record(record: LeaseRecord) -> LeaseRecord:
    """The record of a node, with a start that is the same on every node."""
    if record.fencing_token == 0:
        return record
    began_ms = acquired_at(record.fencing_token)
    expires_at_ms = record.expires_at_ms
    if expires_at_ms is not None:
        expires_at_ms = began_ms + expires_at_ms - record.acquired_at_ms
    return replace(record, acquired_at_ms=began_ms, expires_at_ms=expires_at_ms)


def _clock_of(vote: Vote) -> float:
    """The node's clock at the time of its answer, or earlier."""
    if isinstance(vote, TokenRefusal):
        return vote.now_ms
    return vote.acquired_at_ms if isinstance(vote, Grant) else vote.answered_at_ms or 0


def _holder_in(refusals: Sequence[Refusal], enough: int) -> Optional[LeaseRecord]:
    """The holder, if at least `enough` nodes name the same. In a split vote there is none."""
    holders = [each.holder for each in refusals if each.holder is not None]
    ids = [each.claim_id for each in holders]
    named = next((each for each in holders if ids.count(each.claim_id) >= enough), None)
    return None if named is None else agreed_record(named)


def _ends_in_ms(refusals: Sequence[Refusal]) -> float:
    """When a waiter asks again if no message says before that the holder has released the lock."""
    return min([_LATER_MS, *(each.ask_again_ms for each in refusals if each.ask_again_ms is not None)])


def _again_ms(refusals: Sequence[Refusal], failed: int, enough: int) -> float:
    """When a quorum may be free after a split vote, if `enough` nodes are too many to do without. A vote for another
    claim may last as long again as it has lasted, at most until it ends. So rivals ask again at once, but a
    vote that nothing releases, because its claim is dead, costs each waiter one request a second."""

    def stands_ms(refusal: Refusal) -> float:
        holder = refusal.holder
        stood_ms = 0.0 if holder is None else max((refusal.answered_at_ms or 0) - holder.acquired_at_ms, 0.0)
        left_ms = _LATER_MS if refusal.ask_again_ms is None else refusal.ask_again_ms
        return min(stood_ms, left_ms, _LATER_MS)

    pauses = sorted([*([_LATER_MS] * failed), *map(stands_ms, refusals)], reverse=True)
    return pauses[enough - 1] if len(pauses) >= enough else 0.0
