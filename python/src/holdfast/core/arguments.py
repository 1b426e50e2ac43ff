"""Checks of public arguments, before anything is sent.

Every function raises an `InvalidArgumentError` that names the argument, the value and the rule.
"""

from __future__ import annotations

import difflib
import json
import math
from collections import abc
from datetime import timedelta
from typing import Any, Iterable, Mapping, Optional, Sequence, TypeGuard, Union

from ..errors import InvalidArgumentError
from .driver import InspectQuery
from .limits import (
    MAX_HOLDER_ID_LENGTH,
    MAX_METADATA_BYTES,
    MAX_METADATA_DEPTH,
    MAX_NAME_LENGTH,
    MAX_PAGE_SIZE,
    MAX_SAFE_INTEGER,
    MAX_TTL_MS,
    MAX_WAIT_MS,
    MIN_TTL_MS,
)

Seconds = Union[float, timedelta]
"""A duration: an int, a float or a timedelta. Decimal and Fraction are refused, like bool, nan and infinity."""


def check_lock_name(value: object, argument: str = "lock_name") -> str:
    """1 to 255 UTF-16 code units of well-formed text without NUL. A name is valid on every store or on none."""
    return check_text(argument, value, MAX_NAME_LENGTH)


def check_holder_id(value: object) -> str:
    return check_text("holder_id", value, MAX_HOLDER_ID_LENGTH)


def check_text(argument: str, value: object, max_length: int) -> str:
    """Use what it returns, and not the caller's object."""
    text = text_of(value)
    if text is not None and 0 < len(text) <= max_length and is_storable(text):
        if text.isascii() or len(text.encode("utf-16-le")) <= 2 * max_length:
            return text
    rule = f"a string of 1 to {max_length} characters, without NUL and without lone surrogates"
    raise InvalidArgumentError(argument, value, rule)


def text_of(value: object) -> Optional[str]:
    """The characters of a string, in a plain `str`. None for anything else.

    Every name, key, resource and id of a caller passes through here once. The member of a `(str, Enum)` is formatted as
    its own name: half of the statements would then name another lock than the other half.
    """
    return str.__str__(value) if isinstance(value, str) else None


def is_storable(text: str) -> bool:
    """PostgreSQL cannot store NUL. A lone surrogate has no UTF-8 form, so two different names would become one."""
    if "\0" in text:
        return False
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def ttl_ms_from(argument: str, seconds: object) -> int:
    return _ms_from(argument, seconds, MIN_TTL_MS, MAX_TTL_MS)


def wait_ms_from(argument: str, seconds: object) -> int:
    return _ms_from(argument, seconds, 0, MAX_WAIT_MS)


def blocking_ms_from(blocking: Optional[bool], seconds: Optional[Seconds]) -> int:
    """How long a call waits: not at all, unless it is asked to."""
    wait_ms = wait_ms_from("blocking_timeout_seconds", 10 if seconds is None else seconds)
    waits = seconds is not None if blocking is None else check_bool("blocking", blocking)
    return wait_ms if waits else 0


def _ms_from(argument: str, seconds: object, min_ms: int, max_ms: int) -> int:
    number = number_of(seconds)
    if is_finite_number(number):
        ms = math.floor(number * 1_000 + 0.5)
        if min_ms <= ms <= max_ms:
            return ms
    raise InvalidArgumentError(argument, seconds, _rule_of_seconds(min_ms / 1_000, max_ms // 1_000))


def check_seconds(argument: str, seconds: object, least: float, most: float) -> float:
    """For a duration that is not rounded to milliseconds."""
    number = number_of(seconds)
    if is_finite_number(number) and least <= number <= most:
        return float(number)
    raise InvalidArgumentError(argument, seconds, _rule_of_seconds(least, most))


def number_of(seconds: object) -> object:
    """A timedelta as a number of seconds. Anything else as it is."""
    return seconds.total_seconds() if isinstance(seconds, timedelta) else seconds


def _rule_of_seconds(least: float, most: float) -> str:
    return f"a number of seconds (int or float) from {least:g} to {most:.0f}, or a timedelta of such a length"


def is_finite_number(value: object) -> TypeGuard[float]:
    """A bool is an int for Python, but `timeout_seconds=True` is a mistake. A whole number may be too large for any
    float."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def check_bool(argument: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidArgumentError(argument, value, "True or False")
    return value


def check_options(argument: str, options: Iterable[object], known: Iterable[str]) -> None:
    """Rejects unknown names, and suggests the nearest one. A mistake would otherwise be silent: `ttl=60` would hold a
    lock for the default time."""
    names = sorted(known)
    for name in options:
        if name in names:
            continue
        # The error shows the name and not the value, which may contain a password.
        text = text_of(name) or f"an object ({type(name).__name__})"
        near = _SYNONYMS.get(text.lower()) or next(iter(difflib.get_close_matches(text, names, 1)), None)
        hint = f": did you mean {near}?" if near in names else ""
        listed = ", ".join(names)
        message = f"{argument} has no option {json.dumps(text[:60])}{hint} (known: {listed})"
        raise InvalidArgumentError(argument, name, f"made of {listed}", message)


_SYNONYMS = {
    "ttl": "timeout_seconds",
    "expire": "timeout_seconds",
    "ex": "timeout_seconds",
    "lease_time": "timeout_seconds",
    "wait": "blocking_timeout_seconds",
    "wait_seconds": "blocking_timeout_seconds",
    "acquire_timeout": "blocking_timeout_seconds",
    "auto_renewal": "heartbeat",
    "holder": "holder_id",
    "id": "holder_id",
}
"""What other libraries call these options."""


def check_callable(argument: str, value: object) -> None:
    if not callable(value):
        raise InvalidArgumentError(argument, value, "a function")


def check_one_of(argument: str, value: object, allowed: Sequence[str]) -> str:
    text = text_of(value)
    if text is not None and text in allowed:
        return text
    raise InvalidArgumentError(argument, value, "one of " + ", ".join(f"'{each}'" for each in allowed))


def check_whole(argument: str, value: object, minimum: int, maximum: int) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum:
        # The member of an IntEnum is formatted as its name.
        return int(value)
    raise InvalidArgumentError(argument, value, f"a whole number from {minimum} to {maximum}")


def check_inspect_query(query: InspectQuery) -> InspectQuery:
    """Every driver calls this before it sends anything. Without it, a negative page size would return everything on one
    store and fail on another."""
    if query.lock_name is not None:
        check_lock_name(query.lock_name)
    prefix = query.prefix
    if prefix is not None and prefix != "":
        check_text("prefix", prefix, MAX_NAME_LENGTH)
    after = query.after
    if after is not None and (not isinstance(after, str) or after == "" or not is_storable(after)):
        raise InvalidArgumentError("after", after, "`next` of the previous page")
    check_whole("page_size", query.page_size, 1, MAX_PAGE_SIZE)
    return query


def check_metadata(value: object) -> Optional[Mapping[str, Any]]:
    """Every store returns metadata exactly as it was passed in. So only values that JSON keeps are accepted."""
    if value is None:
        return None
    if not isinstance(value, abc.Mapping):
        raise InvalidArgumentError("metadata", value, "a dict, or another mapping, of JSON values")
    copy = _json_copy("metadata", value, MAX_METADATA_BYTES)
    assert isinstance(copy, dict)
    return copy


def check_json(argument: str, value: object) -> Any:
    """For a single value that a primitive stores in a lease's metadata, under a name of its own."""
    return _json_copy(argument, value, MAX_METADATA_BYTES - _WRAPPING_BYTES)


_WRAPPING_BYTES = 16
"""For the name and the braces around the value."""


def _json_copy(argument: str, value: object, max_bytes: int) -> Any:
    """A copy, so that later changes to the caller's object do not change what is stored."""
    text = json.dumps(_plain(value, argument, 0), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    size = len(text.encode())
    if size > max_bytes:
        raise InvalidArgumentError(argument, value, f"at most {max_bytes} bytes as JSON (it has {size})")
    return json.loads(text)


_JSON_RULE = (
    "a value that JSON keeps unchanged (None, bool, int of at most 53 bits, finite float, str without NUL or lone "
    "surrogates, list, mapping with str keys)"
)


def _plain(value: object, path: str, depth: int) -> object:
    """The same value of dicts, lists and plain values."""
    if depth > MAX_METADATA_DEPTH:
        rule = f"nested at most {MAX_METADATA_DEPTH} levels deep, without circular references"
        raise InvalidArgumentError(path, value, rule)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) <= MAX_SAFE_INTEGER:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, str) and is_storable(value):
        return value
    if isinstance(value, list):
        return [_plain(each, f"{path}[{index}]", depth + 1) for index, each in enumerate(value)]
    if isinstance(value, abc.Mapping):
        copy: dict[str, object] = {}
        for name, each in value.items():
            if not isinstance(name, str) or not is_storable(name):
                raise InvalidArgumentError(f"{path} property name", name, _JSON_RULE)
            copy[name] = _plain(each, f"{path}.{name}", depth + 1)
        return copy
    raise InvalidArgumentError(path, value, _JSON_RULE)
