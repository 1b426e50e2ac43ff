"""A lock on several independent servers, granted by a quorum of them."""

from __future__ import annotations

import asyncio
import math
import random
import secrets
import time
from dataclasses import replace
from typing import Any, Callable, Optional, Sequence, Union

from ...core.driver import (
    Capabilities,
    Claim,
    DriverListener,
    Grant,
    InspectPage,
    InspectQuery,
    LeaseRecord,
    LeaseRef,
    RateAnswer,
    RateRequest,
    Refusal,
    RenewAnswer,
    Renewal,
    StopListening,
)
from ...errors import ClosedError, HoldfastError, InvalidArgumentError, StoreError, UnsupportedError
from .._redis.failures import store_error
from .._redis.keys import RELEASED_CHANNEL, slot_tag
from .._redis.records import REPAIRS, Proposal
from .attempts import Attempt, Attempts
from .broadcast import ReleaseBroadcast, message_of
from .inspection import inspect_by_quorum
from .node import VotingNode
from .proposals import Failed, Outbid, Outcome, Proposals, Refused, Vote
from .quorum import Ask, NodeError, Nodes, Votes, quorum_error

CAPABILITIES = Capabilities(
    expiry="ttl",
    scope="network",
    fencing=True,
    shared=True,
    limit=False,
    queue=False,
    wake=True,
    metadata=True,
    rate=False,
    force="call",
    groups=False,
    reasons={
        "limit": "majorities do not preserve a count. With 2 permits and 3 nodes, 3 clients can each find a majority "
        "that has room",
        "rate": "majorities do not preserve a count. Each node would see only some of what was taken",
        "force": "no node could end the leases of the others in the same step. `force_release` ends them one by one",
    },
)

_MAX_ROUNDS = 4
"""After a proposal was outbid, the next one is above the mark. Only a third client can outbid that again."""
_HOUR_US = 3_600_000_000
"""How far a token may be ahead of the clock of a node that forgets nothing."""
_RETRY_MS = (2.0, 40.0)


class RedlockDriver:
    """Made by `redlock_driver` and `open_redlock`."""

    name = "redlock"
    place: Optional[str] = None
    capabilities = CAPABILITIES

    def __init__(
        self,
        nodes: Sequence[VotingNode],
        *,
        quorum: int,
        timeout_seconds: float,
        longest_ttl_ms: Optional[int],
        on_node_error: Optional[Callable[[NodeError], None]],
        wall_ms: Callable[[], float] = lambda: time.time() * 1_000,
    ) -> None:
        """`longest_ttl_ms` None: the nodes forget nothing, and a time to live has no bound."""
        self.longest_ttl_ms: Optional[float] = longest_ttl_ms
        self._longest_ttl_ms = longest_ttl_ms
        self._quorum = quorum
        self._on_node_error = on_node_error
        self._most_ahead_us = _HOUR_US if longest_ttl_ms is None else math.ceil(longest_ttl_ms * 1_000 / 4)
        self._nodes: Nodes[VotingNode] = Nodes(nodes, timeout_seconds, self._node_failed)
        self._proposals = Proposals(wall_ms, quorum, self._most_ahead_us)
        self._attempts = Attempts()
        self._broadcast = ReleaseBroadcast(nodes, quorum, timeout_seconds)
        self._closed = False
        # Takes a tenth of a second, once for each process: better here than in the first renewal.
        slot_tag(0)

    def __repr__(self) -> str:
        return f"<RedlockDriver on {len(self._nodes.all)} nodes, quorum {self._quorum}>"

    async def acquire(self, claims: Sequence[Claim]) -> Sequence[Union[Grant, Refusal, Exception]]:
        self._assert_open()
        refused = [self._unsupported(claim) for claim in claims]
        # A claim that is in the list twice has one attempt.
        begun: dict[tuple[str, str], Attempt] = {}
        for claim, error in zip(claims, refused):
            key = (claim.claim_id, claim.lock_name)
            if error is None and key not in begun:
                begun[key] = self._attempts.begin(claim)
        answers: dict[Attempt, Union[Grant, Refusal, Exception]] = {}
        left = list(begun.values())
        for round_number in range(1, _MAX_ROUNDS + 1):
            if not left:
                break
            self._proposals.propose(left)
            outcomes = await self._vote(left)
            undecided = []
            for attempt, outcome in zip(left, outcomes):
                answer = self._answer(attempt, outcome, round_number == _MAX_ROUNDS)
                if answer is None:
                    undecided.append(attempt)
                else:
                    answers[attempt] = answer
            left = undecided
        return [
            answers[begun[(claim.claim_id, claim.lock_name)]] if error is None else error
            for claim, error in zip(claims, refused)
        ]

    async def _vote(self, attempts: Sequence[Attempt]) -> list[Outcome]:
        """One round: proposes a token for each attempt to every node."""
        claims = [attempt.claim for attempt in attempts]
        tokens = [attempt.tokens[-1] for attempt in attempts]
        proposals = [Proposal(claim, token) for claim, token in zip(claims, tokens)]

        async def call(node: VotingNode) -> Sequence[Union[Vote, Exception]]:
            return await node.propose(proposals, self._most_ahead_us, self._longest_ttl_ms)

        def decide(votes: Votes[Vote], entry: int) -> Optional[Outcome]:
            return self._proposals.decide(votes, attempts[entry])

        def late(node: VotingNode, entry: int, vote: Vote) -> None:
            self._proposals.learn(vote)
            self._give_back(node, [(attempts[entry], tokens[entry])], [vote])

        ask: Ask[VotingNode, Vote, Outcome] = Ask(len(attempts), call, decide, late)
        return await self._nodes.ask(ask)

    def _give_back(
        self, node: VotingNode, proposed: Sequence[tuple[Attempt, int]], votes: Sequence[Union[Vote, Exception]]
    ) -> None:
        """Releases the grants that count for nothing. The release of their tokens may have overtaken them, and nothing
        else will end these leases."""
        leases = [
            LeaseRef(attempt.claim.lock_name, attempt.claim.claim_id, token)
            for (attempt, token), vote in zip(proposed, votes)
            if isinstance(vote, Grant) and not attempt.may_count(token)
        ]
        if leases:
            self._nodes.in_background(node, "release", node.place, node.driver.release(leases))

    def _answer(self, attempt: Attempt, outcome: Outcome, is_last: bool) -> Union[Grant, Refusal, Exception, None]:
        """None: another round."""
        if attempt.state == "over":
            # Even if the nodes granted it: its tokens may have been released, or a newer attempt has replaced them.
            self._release_everywhere(attempt.leases())
            name = attempt.claim.lock_name
            return StoreError(f'the claim of "{name}" was withdrawn, or asked for again, during the vote')
        if isinstance(outcome, Grant):
            self._attempts.end(attempt, "granted")
            # Nodes that did not answer this round may still have the lease of an earlier one.
            self._release_everywhere(attempt.leases()[:-1])
            del attempt.tokens[:-1]
            return outcome
        if isinstance(outcome, Outbid) and not is_last:
            attempt.is_repeat = False
            attempt.mark = outcome.mark
            return None
        if isinstance(outcome, Failed):
            error = quorum_error("acquire", self._quorum, len(self._nodes.all), outcome.errors)
            if attempt.is_repeat:
                # As far as is known, the earlier grant still exists, and its holder may rely on it.
                self._attempts.end(attempt, "granted")
            else:
                self._lose(attempt)
            return error
        self._lose(attempt)
        refused = outcome if isinstance(outcome, Refused) else Refused(None, 0.0)
        if attempt.claim.waiter_ttl_ms == 0:
            return Refusal(holder=refused.holder)
        # Each rival in a split vote asks again at a different moment, so that they do not split the next vote, too.
        again_ms = refused.ask_again_ms + random.uniform(*_RETRY_MS)
        return Refusal(holder=refused.holder, ask_again_ms=again_ms)

    def _lose(self, attempt: Attempt) -> None:
        """The attempt is over before its release is sent. From then on none of its tokens counts."""
        self._attempts.end(attempt, "over")
        self._release_everywhere(attempt.leases())

    def _release_everywhere(self, leases: Sequence[LeaseRef]) -> None:
        """On every node, also on those that did not answer."""
        if leases:
            for node in self._nodes.all:
                self._nodes.in_background(node, "release", node.place, node.driver.release(leases))

    async def renew(self, renewals: Sequence[Renewal]) -> Sequence[Union[RenewAnswer, Exception]]:
        self._assert_open()
        refused = [self._too_long(renewal.ttl_ms) for renewal in renewals]
        asked = [renewal for renewal, error in zip(renewals, refused) if error is None]
        quorum, count = self._quorum, len(self._nodes.all)
        outcomes: list[Union[RenewAnswer, Exception, None]] = [None] * len(asked)
        # Of each node that lacks some of the leases, before a quorum has renewed them: their places in the list.
        lacking: dict[VotingNode, list[int]] = {}
        answered: dict[VotingNode, Sequence[Union[RenewAnswer, Exception]]] = {}
        sent = time.monotonic()

        async def call(node: VotingNode) -> Sequence[Union[RenewAnswer, Exception]]:
            return await node.driver.renew(asked)

        def decide(votes: Votes[RenewAnswer], entry: int) -> Union[RenewAnswer, Exception, None]:
            renewed = votes.answers.count("renewed")
            if renewed >= quorum:
                outcomes[entry] = "renewed"
            elif renewed + len(votes.errors) + votes.pending < quorum:
                outcomes[entry] = "lost"
            elif votes.pending == 0:
                outcomes[entry] = quorum_error("renew", quorum, count, votes.errors)
            return outcomes[entry]

        def settled(node: VotingNode, answers: Sequence[Union[RenewAnswer, Exception]]) -> None:
            # Long after the call, the leases may have been released, perhaps by another driver. The next renewal
            # repairs.
            if time.monotonic() - sent > self._nodes.timeout_seconds:
                return
            answered[node] = answers
            lost = [at for at, answer in enumerate(answers) if answer == "lost"]
            if lost:
                lacking[node] = lost
            for each, places in lacking.items():
                renewed = [at for at in places if outcomes[at] == "renewed"]
                sources = [has for has, found in answered.items() if renewed and found[renewed[0]] == "renewed"]
                if sources:
                    self._repair(each, sources[0], [asked[at] for at in renewed])
                lacking[each] = [at for at in places if outcomes[at] is None]

        ask: Ask[VotingNode, RenewAnswer, Union[RenewAnswer, Exception]] = Ask(
            len(asked), call, decide, settled=settled
        )
        answers = iter(await self._nodes.ask(ask))
        return [next(answers) if error is None else error for error in refused]

    def _repair(self, node: VotingNode, source: VotingNode, renewals: Sequence[Renewal]) -> None:
        """Writes leases again on a node that has lost them, because it was restarted or away for longer than their time
        to live. A quorum has just renewed them. Without this, a lease would be lost when enough nodes have been
        restarted one after the other, although a quorum was always up.

        `source` has them. What this driver did not get itself is read there: it may renew for another one."""
        self._propose_again(node, renewals)
        unknown = [renewal for renewal in renewals if self._attempts.holding(renewal) is None]
        if not unknown or self._closed:
            return

        async def read(lock_names: Sequence[str]) -> Sequence[LeaseRecord]:
            return (await source.inspect_names(lock_names)).leases

        async def adopt() -> Sequence[Exception]:
            await self._attempts.adopt(unknown, read)
            self._propose_again(node, unknown)
            return []

        self._nodes.in_background(source, "read a lease", source.place, adopt())

    def _propose_again(self, node: VotingNode, renewals: Sequence[Renewal]) -> None:
        holding = [(self._attempts.holding(renewal), renewal) for renewal in renewals]
        known = [(attempt, renewal) for attempt, renewal in holding if attempt is not None]
        if not known or self._closed:
            return
        tokens = [(attempt, renewal.fencing_token) for attempt, renewal in known]
        proposals = [
            Proposal(replace(attempt.claim, ttl_ms=renewal.ttl_ms), renewal.fencing_token) for attempt, renewal in known
        ]

        async def propose() -> Sequence[Union[Vote, Exception]]:
            votes = await node.propose(proposals, REPAIRS, self._longest_ttl_ms)
            # As for any vote: if the lease was released meanwhile, this may have come after the release.
            self._give_back(node, tokens, votes)
            return votes

        self._nodes.in_background(node, "repair a lease", node.place, propose())

    async def release(self, leases: Sequence[LeaseRef]) -> Sequence[Union[bool, Exception]]:
        self._assert_open()
        quorum, count = self._quorum, len(self._nodes.all)

        def decide(votes: Votes[bool], entry: int) -> Union[_Ended, Exception, None]:
            ended = votes.answers.count(True)
            if ended >= quorum:
                return _Ended(True)
            if ended + len(votes.errors) + votes.pending < quorum:
                return _Ended(False)
            return quorum_error("release", quorum, count, votes.errors) if votes.pending == 0 else None

        return await self._release(leases, decide)

    async def force_release(
        self, leases: Sequence[LeaseRecord], *, by: str, end_session: bool
    ) -> Sequence[Union[bool, Exception]]:
        """Each node compares claim and token, as in any release. A lease that a quorum of the nodes does not have any
        more has ended, even if the other nodes are away and still have it: its holder needs a quorum for every renewal.
        A renewal that comes between the nodes makes its holder repair the lease on those that have ended it, so each of
        them refuses that first."""
        self._assert_open()
        quorum, count = self._quorum, len(self._nodes.all)

        def decide(votes: Votes[bool], entry: int) -> Union[_Ended, Exception, None]:
            if len(votes.answers) >= quorum:
                return _Ended(True in votes.answers)
            failed = len(votes.errors) > count - quorum
            return quorum_error("end the lease", quorum, count, votes.errors) if failed else None

        refs = [LeaseRef(each.lock_name, each.claim_id, each.fencing_token) for each in leases]
        # Its holder learns with its next renewal that it has ended, and repairs it no more.
        bar_ms = _HOUR_US // 1_000 if self._longest_ttl_ms is None else self._longest_ttl_ms
        answers = await self._release(refs, decide, bar_ms)
        ended = [ref.claim_id for ref, answer in zip(refs, answers) if answer is True]
        if ended:
            # A caller that closes the driver after this must not cut the messages off.
            await asyncio.gather(*(self._publish_forced(node, ended, by) for node in self._nodes.all))
        return answers

    async def _publish_forced(self, node: VotingNode, claim_ids: Sequence[str], by: str) -> None:
        """After the leases were ended: a holder that asks earlier has its lease."""
        try:
            await asyncio.wait_for(node.publish_forced(claim_ids, by), self._nodes.timeout_seconds)
        except Exception as error:
            self._node_failed(NodeError(node.name, store_error("publish", error, node.place)))

    async def _release(
        self,
        leases: Sequence[LeaseRef],
        decide: Callable[[Votes[bool], int], Union[_Ended, Exception, None]],
        bar_ms: Optional[int] = None,
    ) -> Sequence[Union[bool, Exception]]:
        """On every node, and notifies waiters. `bar_ms`: for how long no node may repair the leases."""
        released = [self._attempts.release(lease) for lease in leases]
        flat = [each for parts in released for each in parts]
        call_id = secrets.token_urlsafe(12)

        async def call(node: VotingNode) -> Sequence[Union[bool, Exception]]:
            def unpublished(error: StoreError) -> None:
                self._node_failed(NodeError(node.name, error))

            if bar_ms is not None:
                await node.bar(flat, bar_ms)
            sent = await node.release(flat, RELEASED_CHANNEL, lambda lease: message_of(lease, call_id), unpublished)
            answers = iter(sent)
            return [_any_of([next(answers) for _ in parts]) for parts in released]

        ask: Ask[VotingNode, bool, Union[_Ended, Exception]] = Ask(len(leases), call, decide)
        outcomes = await self._nodes.ask(ask)
        return [outcome.answer if isinstance(outcome, _Ended) else outcome for outcome in outcomes]

    async def inspect(self, query: InspectQuery) -> InspectPage:
        self._assert_open()
        return await inspect_by_quorum(self._nodes, self._quorum, query)

    async def listen(self, listener: DriverListener) -> StopListening:
        self._assert_open()
        return await self._broadcast.listen(listener)

    async def consume(self, requests: Sequence[RateRequest]) -> Sequence[Union[RateAnswer, Exception]]:
        raise UnsupportedError(f"redlock has no rate limits: {CAPABILITIES.reasons['rate']}")

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self._broadcast.close()
        loop = asyncio.get_running_loop()
        releasing = [each for each in self._nodes.tasks if each.get_loop() is loop]
        if releasing:
            # Releases that are under way would otherwise leave their leases until they expire.
            await asyncio.wait(releasing, timeout=self._nodes.timeout_seconds)
        await asyncio.gather(*(node.driver.close() for node in self._nodes.all))

    def _node_failed(self, failure: NodeError) -> None:
        listener = self._on_node_error
        if listener is not None:
            # Not from here: what it raises must not change the vote.
            asyncio.get_running_loop().call_soon(listener, failure)

    def _unsupported(self, claim: Claim) -> Optional[HoldfastError]:
        if claim.force_up_to is not None:
            return UnsupportedError(f"redlock cannot take a lock by force: {CAPABILITIES.reasons['force']}")
        if claim.limit is not None:
            return UnsupportedError(f"redlock has no limits: {CAPABILITIES.reasons['limit']}")
        return self._too_long(claim.ttl_ms)

    def _too_long(self, ttl_ms: float) -> Optional[HoldfastError]:
        longest = self._longest_ttl_ms
        if longest is None or ttl_ms <= longest:
            return None
        bound = f"longest_ttl_seconds ({longest / 1_000:g})"
        rule = f"at most the redlock driver's {bound}, for which a restarted node does not vote"
        return InvalidArgumentError("timeout_seconds", ttl_ms / 1_000, rule)

    def _assert_open(self) -> None:
        if self._closed:
            raise ClosedError("the redlock driver is closed")


class _Ended:
    """Whether a quorum of nodes ended the lease. A decision must not be None or look like it."""

    def __init__(self, answer: bool) -> None:
        self.answer = answer


def _any_of(answers: Sequence[Union[bool, Exception]]) -> Union[bool, Exception]:
    """One lease may have been released under several tokens."""
    if any(answer is True for answer in answers):
        return True
    return next((answer for answer in answers if isinstance(answer, Exception)), False)
