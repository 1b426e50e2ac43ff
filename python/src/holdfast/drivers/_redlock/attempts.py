"""The attempts of a driver to get claims granted. They keep two kinds of tokens apart: those that may be counted, and
those whose release was sent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Awaitable, Callable, Literal, Optional, Sequence

from ...core.driver import Claim, LeaseRecord, LeaseRef, Renewal

_MAX_REMEMBERED = 10_000
"""A few megabytes. If a claim whose attempt was forgotten asks again, it gets a new token instead of the same. A vote
that arrives after its release then stays on its node until its time to live ends."""


@dataclass(eq=False)
class Attempt:
    """One attempt to get a claim granted, in one or more rounds of voting."""

    claim: Claim
    tokens: list[int] = field(default_factory=list)
    """A token for each round, the current one last."""
    state: Literal["open", "granted", "over"] = "open"
    """`over`: no vote of it may count any more, because everything it got has been or will be released."""
    is_repeat: bool = False
    """It proposes again what an earlier call was granted."""
    mark: int = 0
    """The next proposal has to be above this."""

    def may_count(self, token: int) -> bool:
        """Whether a vote for this token is part of a grant, or may become one."""
        return self.state != "over" and self.tokens[-1] == token

    def leases(self) -> list[LeaseRef]:
        """Always with their tokens: a release that arrives late must not end the lease of a later round."""
        return [LeaseRef(self.claim.lock_name, self.claim.claim_id, token) for token in self.tokens]


class Attempts:
    """A claim has one attempt at a time. A newer attempt ends the older one, which may still be in flight if its caller
    gave it up at a deadline."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], Attempt] = {}
        self._ended: dict[tuple[str, str], Attempt] = {}
        """The newest attempt of each claim that is not open, in case the claim asks again or is withdrawn."""
        self._adopting: set[tuple[str, str]] = set()
        """The leases that are being adopted. A release takes its lease out."""

    def begin(self, claim: Claim) -> Attempt:
        key = (claim.claim_id, claim.lock_name)
        before = self._open.get(key)
        if before is not None:
            before.state = "over"
        attempt = self._ended.pop(key, None)
        if attempt is not None and attempt.state == "granted":
            # The same object, not a new one: a late vote for its token must find that the token is proposed again.
            attempt.claim, attempt.state, attempt.is_repeat, attempt.mark = claim, "open", True, 0
        else:
            attempt = Attempt(claim)
        self._open[key] = attempt
        return attempt

    def end(self, attempt: Attempt, state: Literal["granted", "over"]) -> None:
        """Does nothing if a newer attempt or a release has ended it meanwhile."""
        if attempt.state != "open":
            return
        attempt.state = state
        key = (attempt.claim.claim_id, attempt.claim.lock_name)
        self._open.pop(key, None)
        self._remember(key, attempt)

    def _remember(self, key: tuple[str, str], attempt: Attempt) -> None:
        self._ended[key] = attempt
        if len(self._ended) > _MAX_REMEMBERED:
            del self._ended[next(iter(self._ended))]

    def holding(self, lease: Renewal) -> Optional[Attempt]:
        """The attempt that got this lease. None if it has ended or is not known any more."""
        attempt = self._ended.get((lease.claim_id, lease.lock_name))
        if attempt is None or attempt.state != "granted" or attempt.tokens[-1] != lease.fencing_token:
            return None
        return attempt

    async def adopt(
        self, leases: Sequence[Renewal], read: Callable[[Sequence[str]], Awaitable[Sequence[LeaseRecord]]]
    ) -> None:
        """Reads the claims of leases that this driver did not get, or whose attempts were forgotten, so that it knows
        them as if it had got them. A lease that is released meanwhile stays unknown."""
        unread = {(each.claim_id, each.lock_name): each.fencing_token for each in leases}
        for key in list(unread):
            if key in self._open or key in self._ended or key in self._adopting:
                del unread[key]
        if not unread:
            return
        self._adopting.update(unread)
        try:
            for record in await read(list({lock_name for _, lock_name in unread})):
                key = (record.claim_id, record.lock_name)
                is_known = key not in self._adopting or key in self._open or key in self._ended
                if unread.get(key) == record.fencing_token and not is_known:
                    self._remember(key, Attempt(_claim_of(record), [record.fencing_token], "granted"))
        finally:
            self._adopting.difference_update(unread)

    def release(self, lease: LeaseRef) -> Sequence[LeaseRef]:
        """Ends the attempt that got this lease. Returns what to release: if the caller names no token, a lease for each
        token of the attempt."""
        key = (lease.claim_id, lease.lock_name)
        self._adopting.discard(key)
        attempt: Optional[Attempt] = self._open.get(key) or self._ended.get(key)
        token = lease.fencing_token
        if attempt is None or (token is not None and attempt.tokens[-1:] != [token]):
            return [lease]
        attempt.state = "over"
        self._open.pop(key, None)
        self._ended.pop(key, None)
        return attempt.leases() if token is None and attempt.tokens else [lease]


def _claim_of(record: LeaseRecord) -> Claim:
    """Its time to live is that of each renewal."""
    return Claim(
        record.lock_name,
        record.claim_id,
        record.holder_id,
        ttl_ms=0,
        mode=record.mode,
        permits=record.permits,
        metadata=record.metadata,
    )
