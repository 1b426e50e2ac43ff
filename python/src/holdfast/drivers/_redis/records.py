"""How claims, leases and waiters are written to Redis and read back. The header of leases.lua has the format."""

from __future__ import annotations

import hashlib
import hmac
import json
import math
from dataclasses import dataclass
from typing import Any, Optional, Sequence, Union

from ...core.driver import ANY_TOKEN, Claim, Grant, LeaseRecord, LeaseRef, Metadata, Refusal, Renewal, WaiterRecord
from ...errors import StoreError, UnsupportedError
from .._shared.groups import left_over
from .failures import entry_error

SHARED = "holdfast:shared"
_MOST_TOKEN = 2**53 - 1
_MOST_NUMBER = 1e300
REPAIRS = -1
"""Like `most_ahead_us`: the proposals are leases that a quorum of the nodes has, for a node that lacks them. The node
grants them also below its mark, unless it has a lease of another claim, or is silent."""


@dataclass(frozen=True)
class Proposal:
    """A claim with the token that its client chooses (Redlock)."""

    claim: Claim
    token: int

    @property
    def lock_name(self) -> str:
        return self.claim.lock_name


@dataclass(frozen=True)
class TokenRefusal:
    """A node refuses the token that a client proposed."""

    now_ms: float
    """The node's clock."""
    mark: Optional[int] = None
    """The largest token that the node has granted. None if the proposal was too far ahead of the node's clock."""


def json_text(value: Any) -> str:
    """The same text as JavaScript's `JSON.stringify`: ids are compared byte by byte."""
    return _encode(value)


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def text_of(reply: Any) -> str:
    """The value of another client's lock may be any bytes."""
    return reply.decode("utf-8", "replace") if isinstance(reply, bytes) else str(reply)


def acquire_args(claims: Sequence[Claim], spares: bool = False) -> list[str]:
    """The arguments of leases.lua from the fourth on. `spares`: a claim with force takes no key that is not a lock of
    Holdfast."""
    ids = "\n".join(json_text(claim.claim_id) for claim in claims)
    return [ids, *_once([_terms(claim, spares) for claim in claims])]


def ballot_args(
    proposals: Sequence[Proposal], most_ahead_us: int, longest_ttl_ms: Optional[int]
) -> list[str]:
    """The arguments of ballot.lua. `most_ahead_us`: how far ahead of a server's clock a token may be, or `REPAIRS`."""
    longest = "" if longest_ttl_ms is None else str(longest_ttl_ms)
    entries = "\n".join(f"{json_text(each.claim.claim_id)},{each.token}" for each in proposals)
    return [longest, str(most_ahead_us), entries, *_once([_ballot_terms(each.claim) for each in proposals])]


def _once(terms: Sequence[tuple[str, str, str]]) -> list[str]:
    """Terms that are the same for all claims, as is usual, are sent once."""
    if all(each == terms[0] for each in terms):
        return list(terms[0])
    return [part for each in terms for part in each]


def renew_args(renewals: Sequence[Renewal]) -> list[str]:
    ttls = [ttl_text(renewal.ttl_ms) for renewal in renewals]
    return [_entries(renewals), *(ttls[:1] if len(set(ttls)) == 1 else ttls)]


def release_args(leases: Sequence[LeaseRef]) -> list[str]:
    return [_entries(leases)]


def ttl_text(ttl_ms: float) -> str:
    """Rounded up to milliseconds. A lease that lasts longer than its holder believes is safe. A shorter one is not."""
    return str(math.ceil(ttl_ms))


def entry_of(lease: Union[LeaseRef, Renewal]) -> str:
    """Without a token: any lease of the claim, and its place in the queue."""
    entry = json_text(lease.claim_id)
    return entry if lease.fencing_token is None else f"{entry},{lease.fencing_token}"


def _entries(leases: Sequence[Union[LeaseRef, Renewal]]) -> str:
    return "\n".join(entry_of(lease) for lease in leases)


def _terms(claim: Claim, spares: bool) -> tuple[str, str, str]:
    tail = _tail(claim)
    ttl = ttl_text(claim.ttl_ms)
    if claim.group is not None:
        return ttl, tail, f"g{claim.group}"
    if claim.mode == "exclusive" and claim.waiter_ttl_ms == 0 and claim.force_up_to is None:
        return ttl, tail, ""
    if claim.force_up_to is not None:
        up_to = "true" if claim.force_up_to == ANY_TOKEN else str(claim.force_up_to)
        end = f"0,{up_to}{',0,true' if spares else ''}"
    else:
        end = "0"
    mode = 0 if claim.mode == "exclusive" else 1
    return ttl, tail, f"[{mode},{claim.limit or 0},{claim.permits},{math.ceil(claim.waiter_ttl_ms)},{end}]"


def _ballot_terms(claim: Claim) -> tuple[str, str, str]:
    permits = "" if claim.mode == "exclusive" else str(claim.permits)
    return ttl_text(claim.ttl_ms), _tail(claim), permits


def _tail(claim: Claim) -> str:
    """The holder and the metadata, as they are stored with the lease."""
    holder = json_text(claim.holder_id)
    return holder if claim.metadata is None else f"{holder},{json_text(claim.metadata)}"


AcquireReply = Union[Grant, Refusal, TokenRefusal, Exception]


def read_acquire(claim: Claim, now_ms: float, reply: Any) -> AcquireReply:
    error = reply if isinstance(reply, Exception) else entry_error("acquire", reply)
    if error is not None:
        return error
    if isinstance(reply, int):
        # A proxy or another server may answer anything. It must not grant a lock.
        if not 0 < reply <= _MOST_TOKEN:
            return unexpected_reply("acquire", reply)
        return Grant(reply, claim.ttl_ms, now_ms)
    if not isinstance(reply, list) or not reply:
        return unexpected_reply("acquire", reply)
    kind = text_of(reply[0])
    if kind == "y" and len(reply) == 2:
        parts = _parse_list(text_of(reply[1]))
        if parts is None or len(parts) < 3 or not _is_token(parts[1]) or not _is_number(parts[2]):
            return unexpected_reply("acquire", reply)
        return Grant(parts[1], claim.ttl_ms, parts[2])
    if kind == "n" and len(reply) == 5:
        return _read_refusal(claim.lock_name, now_ms, reply)
    if kind == "x":
        return Refusal(free=True, answered_at_ms=now_ms)
    if kind == "k":
        return left_over(claim.lock_name)
    if kind == "o":
        return UnsupportedError(
            f'"{claim.lock_name}" cannot be taken by force: it is not a lock of Holdfast, and without a prefix the key '
            "may be anything. If you know that it is the lock of another client, delete the key"
        )
    if kind in ("b", "f") and len(reply) == 2:
        # A mark that is no number would become the next proposal to all nodes.
        number = _number_in(reply[1])
        if number is None or not 0 <= number <= _MOST_TOKEN:
            return unexpected_reply("acquire", reply)
        return TokenRefusal(now_ms, int(number)) if kind == "b" else TokenRefusal(number)
    return unexpected_reply("acquire", reply)


def _read_refusal(lock_name: str, now_ms: float, reply: Sequence[Any]) -> Union[Refusal, StoreError]:
    holder_text = text_of(reply[1])
    end_ms, ahead, ask_again_ms = (_number_in(each) for each in reply[2:5])
    if end_ms is None or ahead is None or ask_again_ms is None:
        return unexpected_reply("acquire", reply)
    is_shown = holder_text != "" or end_ms != -1
    return Refusal(
        holder=read_lease(lock_name, holder_text, end_ms) if is_shown else None,
        ahead=int(ahead) if ahead >= 0 else None,
        ask_again_ms=ask_again_ms if ask_again_ms >= 0 else None,
        answered_at_ms=now_ms,
    )


def read_lease(lock_name: str, text: str, end_ms: float) -> LeaseRecord:
    """Reads a lease of either mode. Any other text is the lock of another client, of which only the value of the key
    is known."""
    expires_at_ms = end_ms if end_ms >= 0 else None
    parts = _parse_list(text) or []
    if _is_exclusive(parts):
        return LeaseRecord(
            lock_name=lock_name,
            claim_id=parts[0],
            holder_id=parts[4],
            mode="exclusive",
            permits=1,
            fencing_token=int(parts[1]),
            acquired_at_ms=parts[2],
            expires_at_ms=expires_at_ms,
            metadata=_metadata(parts, 5),
        )
    if _is_shared(parts):
        return LeaseRecord(
            lock_name=lock_name,
            claim_id=parts[0],
            holder_id=parts[6],
            mode="shared",
            permits=int(parts[4]),
            fencing_token=int(parts[1]),
            acquired_at_ms=parts[2],
            expires_at_ms=expires_at_ms,
            limit=int(parts[3]) if parts[3] > 0 else None,
            metadata=_metadata(parts, 7),
        )
    return LeaseRecord(
        lock_name=lock_name,
        claim_id=text[:255],
        holder_id="another client",
        mode="exclusive",
        permits=1,
        fencing_token=0,
        acquired_at_ms=0,
        expires_at_ms=expires_at_ms,
    )


def is_ours(text: str) -> bool:
    parts = _parse_list(text) or []
    return _is_exclusive(parts) or _is_shared(parts)


def read_waiter(lock_name: str, id_text: str, text: str) -> WaiterRecord:
    """A waiter whose text is not ours is shown with what is known of it."""
    parts = _list_in(text)
    if len(parts) < 9 or not all(_is_number(each) for each in parts[1:5]):
        parts = [0, 0, 0, 0, 1, 0, 0, "", ""]
    _, since_ms, mode, limit, permits, _, _, _, tail = parts[:9]
    claim_id = _parsed(id_text)
    holder = next(iter(_list_in(f"[{tail}]")), None)
    return WaiterRecord(
        lock_name=lock_name,
        claim_id=claim_id if isinstance(claim_id, str) else id_text,
        holder_id=holder if isinstance(holder, str) else "another client",
        mode="exclusive" if mode == 0 else "shared",
        permits=int(permits),
        waiting_since_ms=since_ms,
        limit=int(limit) if limit > 0 else None,
    )


@dataclass(frozen=True)
class WakeMessage:
    """A message to a waiter: its grant, or without a grant, a hint to ask again."""

    claim_id: str
    grant: Optional[Grant] = None
    proved: str = ""
    """What the proof is made of, besides the secret."""
    proof: str = ""

    def is_proved_by(self, secret: str) -> bool:
        """Whether leases.lua published it for the request with this secret. Any client can publish on the channel."""
        made = hashlib.sha1(f"{secret}{self.proved}{secret}".encode(), usedforsecurity=False).hexdigest()
        return self.grant is not None and hmac.compare_digest(made.encode(), self.proof.encode("utf-8", "replace"))


def read_message(text: str) -> Optional[WakeMessage]:
    """None if the message has another format."""
    parts = _parse_list(text)
    if not parts or not isinstance(parts[0], str):
        return None
    if len(parts) == 1:
        return WakeMessage(parts[0])
    if len(parts) != 5 or not all(_is_token(each) for each in parts[1:4]) or not isinstance(parts[4], str):
        return None
    claim_id, token, acquired_at_ms, ttl_ms, proof = parts
    told = text[1 : -len(f',"{proof}"]')]
    return WakeMessage(claim_id, Grant(token, ttl_ms, acquired_at_ms), told, proof)


def read_forced(text: str) -> tuple[Sequence[str], str]:
    """The claims whose leases were ended by force, and who did it. Nothing if the message has another format."""
    try:
        message = json.loads(text)
        lost, by = message["lost"], message["by"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return [], ""
    if not isinstance(lost, list) or not isinstance(by, str):
        return [], ""
    return [each for each in lost if isinstance(each, str)], by


def unexpected_reply(what: str, reply: Any) -> StoreError:
    return StoreError(f"the redis server sent an unexpected reply to {what}: {repr(reply)[:200]}")


def _metadata(parts: Sequence[Any], at: int) -> Optional[Metadata]:
    return parts[at] if len(parts) > at and isinstance(parts[at], dict) else None


def _is_token(value: Any) -> bool:
    return type(value) is int and 0 < value <= _MOST_TOKEN


def _is_number(value: Any) -> bool:
    """Another client's value may have numbers that are infinite or none, which no other number can be made of."""
    return type(value) in (int, float) and -_MOST_NUMBER < value < _MOST_NUMBER


def _is_exclusive(parts: Sequence[Any]) -> bool:
    return (
        len(parts) > 4
        and isinstance(parts[0], str)
        and all(_is_number(each) for each in parts[1:4])
        and isinstance(parts[4], str)
    )


def _is_shared(parts: Sequence[Any]) -> bool:
    return (
        len(parts) > 6
        and isinstance(parts[0], str)
        and all(_is_number(each) for each in parts[1:6])
        and isinstance(parts[6], str)
    )


def _parse_list(text: str) -> Optional[list[Any]]:
    if not text.startswith('["'):
        return None
    parsed = _parsed(text)
    return parsed if isinstance(parsed, list) else None


def _list_in(text: str) -> list[Any]:
    """Empty for a text that is no list."""
    parsed = _parsed(text)
    return parsed if isinstance(parsed, list) else []


def _parsed(text: str) -> Any:
    """None for a text that is no JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _number_in(reply: Any) -> Optional[float]:
    """A whole number stays one: a mark has more digits than a float keeps. None for anything that is no number."""
    if type(reply) is int:
        return reply
    try:
        number = float(text_of(reply))
    except ValueError:
        return None
    return int(number) if number.is_integer() else None if math.isnan(number) or math.isinf(number) else number
