"""The parts of a store's URL.

A part that a driver does not understand is refused. If it were ignored, two clients could lock in two places. No error
shows a part that may be a password.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
import socket
from dataclasses import dataclass
from typing import Optional, Sequence

from ...core.secrets import redacted_url
from ...errors import InvalidArgumentError


@dataclass(frozen=True)
class Parameter:
    name: str
    value: str
    raw: str
    """As the caller wrote it."""

    @property
    def shown_name(self) -> str:
        """Hides what may be a password: one with a question mark ends up here if it is not encoded."""
        is_plain = "=" in self.raw and re.fullmatch(r"\w+", self.name, re.ASCII) is not None
        return self.name if self.name == "" or is_plain else "…"


@dataclass(frozen=True)
class UrlParts:
    scheme: str
    username: Optional[str]
    """Decoded. An empty one counts as none."""
    password: Optional[str]
    hosts: Sequence[str]
    """The hosts between `@` and the path, not decoded, at least one. A missing one is the empty string."""
    path: Optional[str]
    """The text after the first slash, not decoded. An empty one counts as none."""
    shown_path: str
    """The path as an error may show it. If `@host` was forgotten, it may be the end of a password."""
    parameters: Sequence[Parameter]

    def __repr__(self) -> str:
        return f"UrlParts(scheme={self.scheme!r}, hosts={self.hosts!r})"


@dataclass(frozen=True)
class HostPort:
    host: str
    """In the form that every client takes: an IPv6 address without brackets, a name in lower case."""
    port: int


def url_parts(url: str, example: str) -> UrlParts:
    """Splits `scheme://user:password@host,host/path?name=value`. Raises `InvalidArgumentError`."""
    refuse_control_characters(url)
    match = re.match(r"(?s)^([^:]+)://([^/?#]*)(?:/([^?#]*))?(?:\?([^#]*))?(#.*)?$", url)
    if match is None:
        raise InvalidArgumentError("url", redacted_url(url), f"a URL such as {example}")
    scheme, authority, path, search, fragment = (part or "" for part in match.groups())
    # Checked before an error names any of these parts: a password with a slash in it ends up here.
    if "@" in path or "@" in search or fragment != "":
        rule = "percent-encoded wherever a user name, password, path or parameter contains one of / ? # @"
        raise InvalidArgumentError("url", redacted_url(url), rule)
    login, at, hosts = authority.rpartition("@")
    username, _, password = login.partition(":")
    return UrlParts(
        scheme=scheme.lower(),
        username=decoded("url user name", username) or None,
        password=decoded("url password", password) or None,
        hosts=hosts.split(","),
        path=path or None,
        shown_path="…" if at == "" and ":" in authority else path,
        parameters=url_parameters(search),
    )


def url_parameters(search: str) -> Sequence[Parameter]:
    """The parameters after the question mark. Each name may occur once."""
    parameters = [_parameter(raw) for raw in search.split("&")] if search != "" else []
    seen = set()
    for parameter in parameters:
        if parameter.name in seen:
            raise InvalidArgumentError(f"url parameter {parameter.shown_name}", "given twice", "given only once")
        seen.add(parameter.name)
    return parameters


def _parameter(raw: str) -> Parameter:
    raw_name, _, raw_value = raw.partition("=")
    name = decoded("the name of a url parameter", raw_name)
    shown = Parameter(name, "", raw).shown_name
    return Parameter(name, decoded(f"url parameter {shown}", raw_value), raw)


def known_parameters(parameters: Sequence[Parameter], known: Sequence[str]) -> dict[str, str]:
    """The values of our parameters, by name. Raises for an unknown one."""
    values: dict[str, str] = {}
    for parameter in parameters:
        name = parameter.name
        if name not in known:
            rule = f"one of {', '.join(known)}" if known else "left out: this URL takes none"
            meant = difflib.get_close_matches(name, known, 1)
            hint = f"{rule} (did you mean {meant[0]}?)" if meant else rule
            raise InvalidArgumentError("url parameter", parameter.shown_name, hint)
        # In a form, a plus sign means a space; in a URL it does not. Clients that disagree would lock in two places.
        if "+" in parameter.raw:
            raise InvalidArgumentError(f"url parameter {name}", parameter.value, "without +: write %2B or %20")
        values[name] = parameter.value
    return values


def boolean_parameter(name: str, value: Optional[str]) -> Optional[bool]:
    if value is None:
        return None
    if value in ("true", "1"):
        return True
    if value in ("false", "0"):
        return False
    raise InvalidArgumentError(f"url parameter {name}", value, "true, false, 1 or 0")


def seconds_parameter(name: str, value: Optional[str], most: float) -> Optional[float]:
    if value is None:
        return None
    if re.fullmatch(r"\d+(?:\.\d+)?", value, re.ASCII) and 0.001 <= float(value) <= most:
        return float(value)
    raise InvalidArgumentError(f"url parameter {name}", value, f"a number of seconds from 0.001 to {most:g}")


def host_port(text: str, default_port: int) -> HostPort:
    """`name`, `name:port`, `192.0.2.1:port`, `[::1]:port`."""
    match = re.match(r"^(\[[\da-fA-F:.]+\]|[^:[\]%@\s]+)(?::(.*))?$", text)
    host = None if match is None else _canonical_host(match[1])
    if match is None or host is None:
        raise InvalidArgumentError("url host", _unless_secret(text), "a host name or an address, IPv6 in brackets")
    return HostPort(host, default_port if match[2] is None else check_port(match[2]))


def check_port(port: str) -> int:
    number = int(port) if re.fullmatch(r"\d{1,5}", port, re.ASCII) else 0
    if 1 <= number <= 65_535:
        return number
    raise InvalidArgumentError("url port", _unless_secret(port), "a whole number from 1 to 65535")


def _unless_secret(text: str) -> str:
    """If `@host` was forgotten, this may be the password. A port has at most five digits; anything else is hidden."""
    return text if re.fullmatch(r"\d{0,5}", text, re.ASCII) else "…"


def _canonical_host(name: str) -> Optional[str]:
    """One spelling for each host: names in lower case, addresses in their canonical form."""
    if name.startswith("["):
        try:
            return ipaddress.IPv6Address(name[1:-1]).compressed
        except ValueError:
            return None
    try:
        encoded = name.encode("idna").decode("ascii").lower()
    except UnicodeError:
        return None
    # What ends in a number is an IPv4 address, as the URL standard has it, also in a short form such as 127.1.
    if re.fullmatch(r"\d+|0x[\da-f]*", encoded.rstrip(".").rpartition(".")[2]):
        try:
            return socket.inet_ntoa(socket.inet_aton(encoded.rstrip(".")))
        except OSError:
            return None
    return encoded if re.fullmatch(r"[^\x00-\x20\x7f\"#%/:<>?@\[\\\]^`{|}]+", encoded) else None


def decoded(what: str, text: str) -> str:
    """Percent-encoding is decoded once, and only here."""
    try:
        if re.search(r"%(?![\da-fA-F]{2})", text):
            raise ValueError("a percent sign without two digits")
        return re.sub(rb"%([\da-fA-F]{2})", lambda m: bytes([int(m[1], 16)]), text.encode("utf-8")).decode("utf-8")
    except ValueError:
        pass
    # The value may be a password, so it is not shown, and neither is the error that contains it.
    raise InvalidArgumentError(what, "…", "percent-encoded UTF-8: a percent sign itself is written %25")


def refuse_control_characters(url: object) -> None:
    """A line break at the end of an environment variable is removed by some parsers and kept by others."""
    if not isinstance(url, str):
        raise InvalidArgumentError("url", url, "a text")
    if re.search(r"[\x00-\x1f\x7f\ud800-\udfff]", url):
        raise InvalidArgumentError("url", redacted_url(url), "without control characters and lone surrogates")
