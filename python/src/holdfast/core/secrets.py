"""Keeps passwords out of errors. Errors are logged, and a log must not contain a password."""

from __future__ import annotations

import re
from typing import Any, Optional

from ..errors import HoldfastError


def redacted_url(url: object) -> object:
    """A URL that an error message may contain.

    A password may contain any character. So everything before the last `@` is hidden, and everything whose role is
    uncertain: a URL without `@host` may end with the password, and what looks like a path may be a part of it.
    """
    if not isinstance(url, str) or url == "":
        return url
    match = re.match(r"(?is)^([a-z][a-z\d+.-]*:)?(//)?(.*)$", url)
    scheme, slashes, rest = ("" if part is None else part for part in match.groups()) if match else ("", "", url)
    is_path = slashes == "" or rest.startswith("/") or not re.search(r"[@:]", rest)
    if scheme.lower() == "sqlite:" and is_path:
        return scheme + slashes + re.sub(r"(?s)[?#].*$", "?…", rest)
    at = rest.rfind("@")
    authority = re.split(r"[/?#]", rest[at + 1 :], maxsplit=1)[0]
    host = re.match(r"(?i)^(\[[\da-f:.]+\]|[\w.-]+)(:\d{1,5})?$", authority)
    if at != -1:
        return f"{scheme}{slashes}…@{'…' if host is None else host[0]}"
    return f"{scheme}{slashes}{'…' if slashes == '' or host is None else host[1]}"


def without_secrets(text: str) -> str:
    """Removes user name and password from all URLs in a text, with the parameters of such a URL, and parameters that
    name a password from every URL. Also what a Redis server quotes of an AUTH command."""
    text = re.sub(r"(?i)\b([a-z][a-z\d+.-]*://)(?!user:password@\w+(?!\S*@))\S*@", r"\1…@", text)
    text = re.sub(r"(://…@[^\s?#]*)[?#]\S*?(?=[\"']?(?:\s|$))", r"\1?…", text)
    text = re.sub(r"(?i)([?&;]\w*(?:pass|pwd|secret)\w*=)[^&;\s]*?(?=[\"']?(?:[&;\s]|$))", r"\1…", text)
    return re.sub(r"(?i)(args beginning with: ).*", r"\1…", text)


def message_of(error: BaseException) -> str:
    """The message of a client's error, never empty, in one line."""
    try:
        text = str(error)
    except Exception:  # Its class may format fields that are missing.
        text = ""
    return without_secrets(" ".join(text.split())) or type(error).__name__


def safe_cause(error: BaseException, depth: int = 0) -> BaseException:
    """A copy of a client's error that is safe as a `__cause__`.

    The original may refer to more than its message: a connection with its settings, the arguments of a command, frames
    with a password among their variables. The copy has the message, the class, and the fields that identify a failure.

    Raise outside the `except` block in which the original was caught. Otherwise Python attaches it as `__context__`.
    """
    if isinstance(error, HoldfastError):
        return error
    copy = _copy_of(error)
    if error.__cause__ is not None and depth < _MAX_DEPTH:
        copy.__cause__ = safe_cause(error.__cause__, depth + 1)
    return copy


_MAX_DEPTH = 5
_KEPT_FIELDS = (
    "errno",
    "strerror",
    "sqlstate",
    "pgcode",
    "code",
    "reason",
    "severity",
    "detail",
    "hint",
    "verify_code",
)


def _copy_of(error: BaseException) -> BaseException:
    message = message_of(error)
    kept: dict[str, Any] = {}
    for name in _KEPT_FIELDS:
        value = _field(error, name)
        if isinstance(value, int):
            kept[name] = value
        elif isinstance(value, str):
            kept[name] = without_secrets(value)
    kind: Any = type(error)
    try:
        copy: BaseException = kind.__new__(kind, message)
        copy.args = (message,)
        # Some classes need what their constructor sets: those of redis-py 8 to be shown at all.
        if message not in str(copy) or not repr(copy):
            raise ValueError("its class formats other fields")
    except Exception:
        copy = Exception(f"{type(error).__name__}: {message}")
    for name, value in kept.items():
        try:
            setattr(copy, name, value)
        except Exception:  # A read-only property of the class, which keeps its own value.
            continue
    return copy


def _field(error: BaseException, name: str) -> Optional[object]:
    try:
        return getattr(error, name, None)
    except Exception:  # A property of the client that fails.
        return None
