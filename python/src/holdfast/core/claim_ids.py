"""The ids of claims, in the form of protocol/README.md, "Claim ids"."""

from __future__ import annotations

from typing import Optional

from .clock import Random
from .limits import MAX_CHAIN_DEPTH

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_SECRET_LENGTH = 12
_PREFIX_LENGTH = 6


def _base36(number: int) -> str:
    if number < 36:
        return _DIGITS[number]
    text = ""
    while number:
        number, digit = divmod(number, 36)
        text = _DIGITS[digit] + text
    return text


def _part(count: int, random: Random) -> str:
    """A claim's own part: a count, so that the claims of an instance can be put in order, and 72 random bits. Without
    them, a client that has seen other ids could guess the id of a waiting claim and forge messages to it."""
    return f"{_base36(count)}-{random.id()[:_SECRET_LENGTH]}"


class Chain:
    """The block of a lease, as the claims made inside it see it: their ids begin with the id of that lease's claim.

    So a client that inspects the store can tell which leases cannot be released before which waiters are served.
    """

    __slots__ = ("id", "_random", "_count")

    def __init__(self, id: str, random: Random) -> None:
        self.id = id
        self._random = random
        self._count = 0

    def next_claim_id(self) -> str:
        """For a claim that is made inside the block."""
        self._count += 1
        # Beyond the maximum depth, the claim becomes a sibling of the lease that it is made under. A deadlock through
        # that lease is then not found, and no false one is reported.
        parent = self.id if self.id.count(".") < MAX_CHAIN_DEPTH else self.id[: self.id.rindex(".")]
        return f"{parent}.{_part(self._count, self._random)}"

    def new_shared_chain(self) -> Chain:
        """The one block of several leases that are acquired together inside this block."""
        return Chain(self.next_claim_id(), self._random)

    def next_member_id(self) -> str:
        """For one of several claims that share this block."""
        self._count += 1
        return f"{self.id}+{_part(self._count, self._random)}"


def is_outermost(claim_id: str) -> bool:
    """Whether the claim was made outside of any block."""
    return claim_id.count(".") == 1


def is_in(chain: Optional[Chain], claim_id: str) -> bool:
    """Whether the claim was made in this chain, or outside of any block, and shares its block with no other. Only then
    what is claimed in a block of its lease is made under this chain, too."""
    parent, _, part = claim_id.rpartition(".")
    return (is_outermost(claim_id) if chain is None else parent == chain.id) and "+" not in part


def chain_id_of(claim_id: str) -> str:
    """The id of the chain that the claim's block has or will have: its own, or the one shared with other claims."""
    last_part = claim_id.rfind(".")
    member = -1 if last_part == -1 else claim_id.find("+", last_part)
    return claim_id if member == -1 else claim_id[:member]


def chain_ids_of(claim_id: str) -> list[str]:
    """The ids of that chain and of those around it, from the innermost outwards: `a.b.c`, `a.b`, `a`. Other clients may
    use ids with more parts than ours have. Such an id is returned alone."""
    own = chain_id_of(claim_id)
    ids = [own]
    end = own.rfind(".") if own.count(".") <= MAX_CHAIN_DEPTH else -1
    while end > 0:
        ids.append(own[:end])
        end = own.rfind(".", 0, end)
    return ids


class ClaimIds:
    """The claim ids of one instance. All have one prefix."""

    __slots__ = ("_prefix", "_random", "_count")

    def __init__(self, random: Random) -> None:
        self._random = random
        self._prefix = random.id()[:_PREFIX_LENGTH]
        self._count = 0

    def next(self) -> str:
        self._count += 1
        return f"{self._prefix}.{_part(self._count, self._random)}"

    def new_chain(self) -> Chain:
        """For leases that are acquired together, outside of any block."""
        return Chain(self.next(), self._random)
