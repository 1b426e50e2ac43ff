"""The keys of locks and limits. `protocol/redis/README.md` has the rules."""

from __future__ import annotations

import binascii
from typing import NamedTuple, Optional, Sequence

from ...core.arguments import is_storable, text_of
from ...errors import InvalidArgumentError

COUNTER = "holdfast:token"
VOTER = "holdfast:voter"
"""Says since when a Redlock node has forgotten nothing."""
FORCED_CHANNEL = "holdfast:forced"
RELEASED_CHANNEL = "holdfast:released"
SLOTS = 16_384

_OWN_KEYS = "holdfast:"


class LockKeys(NamedTuple):
    plain: str
    """The lock's own key, which other lock clients use, too."""
    data: str
    order: str


def lock_keys(prefix: str, lock_name: str) -> LockKeys:
    plain = prefix + lock_name
    return LockKeys(plain, sibling_key(plain, "d"), sibling_key(plain, "o"))


def ballot_keys(prefix: str, lock_names: Sequence[str], are_repairs: bool) -> list[str]:
    """The keys of ballot.lua."""
    keys = [lock_keys(prefix, name) for name in lock_names]
    counters = [slot_counter(slot_of(each.plain)) for each in keys]
    # A lease that was ended by force is not repaired: see bar.lua.
    bars = [bar_key(prefix, name) for name in lock_names] if are_repairs else []
    return [*counters, *(k.plain for k in keys), *(k.data for k in keys), *(k.order for k in keys), VOTER, *bars]


def bar_key(prefix: str, lock_name: str) -> str:
    return sibling_key(lock_keys(prefix, lock_name).plain, "b")


def is_own_key(key: str) -> bool:
    """All keys of the driver's own begin so. A lock named `holdfast:token` would be the token counter."""
    return key.startswith(_OWN_KEYS)


def own_key_error(prefix: str, lock_name: str) -> Optional[InvalidArgumentError]:
    """None if the name is allowed under this prefix."""
    if not is_own_key(prefix + lock_name):
        return None
    rule = f'a name whose key does not begin with "{_OWN_KEYS}", which is reserved for the driver\'s own keys'
    return InvalidArgumentError("lock_name", lock_name, rule)


def check_prefix(prefix: object) -> str:
    text = text_of(prefix)
    if text is not None and is_storable(text) and not is_own_key(text):
        return text
    rule = f'a string without NUL and lone surrogates that does not begin with "{_OWN_KEYS}", which is reserved'
    raise InvalidArgumentError("prefix", prefix, rule)


def sibling_key(key: str, kind: str) -> str:
    """Another key of the same slot. No two keys have the same sibling."""
    if "}" not in key:
        return f"holdfast:{{{key}}}:{kind}"
    # The key has a hash tag, or its closing brace would end ours early. Then the key follows behind the tag.
    tag = _hash_tag(key)
    return f"holdfast:{{{slot_tag(slot_of(key)) if tag is None else tag}}}:{kind}:{key}"


def plain_of_data(data: str) -> Optional[str]:
    """The plain key that a data key belongs to."""
    if not data.startswith("holdfast:{"):
        return None
    tag, brace, rest = data[len("holdfast:{") :].partition("}")
    if not tag or not brace:
        return None
    if rest == ":d":
        return tag
    return rest[len(":d:") :] if rest.startswith(":d:") and len(rest) > len(":d:") else None


def slot_counter(slot: int) -> str:
    """On a Cluster each slot has its own counter, because a script can only use the keys of one slot."""
    return f"holdfast:{{{slot_tag(slot)}}}:token"


def wake_channel(client_id: str, slot: Optional[int] = None) -> str:
    """The channel for the grants of one client. Sharded publishing needs a channel in the slot of the lock."""
    return f"holdfast:wake:{client_id}" if slot is None else f"holdfast:{{{slot_tag(slot)}}}:wake:{client_id}"


def rate_key(prefix: str, name: str, limit_id: str) -> str:
    """All limits of one name are in one slot, so that one script can charge them together."""
    return sibling_key(prefix + name, f"r{limit_id}")


def slot_of(key: str) -> int:
    tag = _hash_tag(key)
    return _crc16((key if tag is None else tag).encode()) % SLOTS


def slot_tag(slot: int) -> str:
    """The smallest whole number whose decimal digits hash to the slot."""
    if not _tags:
        _tags.extend(_make_tags())
    return _tags[slot]


def _hash_tag(key: str) -> Optional[str]:
    """What Redis Cluster hashes instead of the key: between the first `{` and the next `}`, unless empty."""
    _, brace, rest = key.partition("{")
    tag, closed, _ = rest.partition("}")
    return tag if brace and closed and tag else None


_tags: list[str] = []


def _make_tags() -> list[str]:
    found: dict[int, str] = {}
    number = 0
    while len(found) < SLOTS:
        text = str(number)
        found.setdefault(_crc16(text.encode()) % SLOTS, text)
        number += 1
    return [found[slot] for slot in range(SLOTS)]


def _crc16(data: bytes) -> int:
    """CRC-16/XMODEM, as Redis Cluster defines it."""
    return binascii.crc_hqx(data, 0)
