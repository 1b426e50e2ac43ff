"""Keeps passwords out of error messages, because errors are logged."""

from __future__ import annotations

import re
from typing import Optional

_URL = re.compile(r"^([a-z][a-z\d+.-]*:)?(//)?(.*)$", re.I | re.S)
_HOST = re.compile(r"^(\[[\da-f:.]+\]|[\w.-]+)(:\d{1,5})?$", re.I)
_LOGIN = re.compile(r"\b([a-z][a-z\d+.-]*://)(?!user:password@\w+(?!\S*@))\S*@", re.I)
_AUTH_ARGUMENTS = re.compile(r"(args beginning with: ).*", re.I)


def redacted_url(url: object) -> object:
    """A URL that an error message may contain. A password may contain any character, so everything before the last `@`
    is hidden, and everything whose role is uncertain: a URL without `@host` may end with the password."""
    if not isinstance(url, str) or url == "":
        return url
    found = _URL.match(url)
    assert found is not None
    scheme, slashes, rest = found[1] or "", found[2] or "", found[3]
    is_path = slashes == "" or rest.startswith("/") or not re.search("[@:]", rest)
    if scheme.lower() == "sqlite:" and is_path:
        return scheme + slashes + re.sub(r"[?#].*$", "?…", rest, flags=re.S)
    at = rest.rfind("@")
    host = _HOST.match(re.split("[/?#]", rest[at + 1 :], maxsplit=1)[0])
    if at != -1:
        return f"{scheme}{slashes}…@{'…' if host is None else host[0]}"
    return f"{scheme}{slashes}{'…' if slashes == '' or host is None else host[1]}"


def without_secrets(text: str) -> str:
    """Removes user names and passwords from all URLs in a text, and the arguments that a Redis server quotes when it
    does not know a command: for AUTH, they are the password."""
    return _AUTH_ARGUMENTS.sub(r"\1…", _LOGIN.sub(r"\1…@", text))


def message_of(error: BaseException) -> str:
    """Never empty."""
    return without_secrets(str(error)) or type(error).__name__


def safe_cause(error: BaseException) -> Optional[BaseException]:
    """The error itself if its text shows no secret, to be used as `__cause__`."""
    text = str(error)
    return error if without_secrets(text) == text else None
