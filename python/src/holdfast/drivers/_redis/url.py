"""The URLs of Redis, Redis Cluster and Redlock."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from typing import Optional, Sequence

from ...errors import InvalidArgumentError
from .._shared.url import (
    HostPort,
    UrlParts,
    boolean_parameter,
    host_port,
    known_parameters,
    seconds_parameter,
    url_parts,
)
from .keys import check_prefix

_DEFAULT_PORT = 6379
_MAX_DATABASE = 65_535
"""Far more than a server has. The default is 16."""
_SELF = {"localhost", "127.0.0.1", "0.0.0.0", "::1", "::"}


@dataclass(frozen=True)
class RedisTarget:
    """The servers of a URL, and the login."""

    hosts: Sequence[HostPort]
    """One server, or some nodes of a Cluster, from which the driver finds the others."""
    cluster: bool
    tls: bool
    database: int
    username: Optional[str] = field(repr=False)
    password: Optional[str] = field(repr=False)


@dataclass(frozen=True)
class RedisUrl:
    target: RedisTarget
    prefix: str


@dataclass(frozen=True)
class RedlockUrl:
    targets: Sequence[RedisTarget]
    """One for each node."""
    prefix: str
    persistent: bool
    longest_ttl_seconds: Optional[float]


def redis_url(url: str) -> RedisUrl:
    """`redis://user:password@host:port/database?prefix=…`, `redis+cluster://host:port,host:port`, with `rediss` for
    TLS. `valkey` and `valkeys` mean the same as `redis` and `rediss`."""
    parts = url_parts(url, "redis://host:6379/0")
    match = re.fullmatch(r"(?:redis|valkey)(s)?(\+cluster)?", parts.scheme)
    if match is None:
        raise InvalidArgumentError("url scheme", parts.scheme, "redis, rediss, redis+cluster or rediss+cluster")
    cluster = match[2] is not None
    hosts = [host_port(host, _DEFAULT_PORT) for host in parts.hosts]
    if not cluster and len(hosts) > 1:
        rule = "one host; several are a redis+cluster:// or a redlock:// URL"
        raise InvalidArgumentError("url host", f"{len(hosts)} hosts", rule)
    prefix = check_prefix(known_parameters(parts.parameters, ["prefix"]).get("prefix", "lock:"))
    database = _database_of(parts)
    if cluster and database != 0:
        raise InvalidArgumentError("url database", database, "0 on a Cluster, which has no other database")
    username, password = _login_of(parts)
    return RedisUrl(RedisTarget(hosts, cluster, match[1] is not None, database, username, password), prefix)


def redlock_url(url: str) -> RedlockUrl:
    """`redlock://user:password@host:port,host:port/database?prefix=…&tls=true&persistent=true&longestTtlSeconds=60`."""
    parts = url_parts(url, "redlock://one:6379,two:6379,three:6379")
    if parts.scheme != "redlock":
        raise InvalidArgumentError("url scheme", parts.scheme, "redlock")
    values = known_parameters(parts.parameters, ["prefix", "tls", "longestTtlSeconds", "persistent"])
    prefix = check_prefix(values.get("prefix", "lock:"))
    hosts = [host_port(host, _DEFAULT_PORT) for host in parts.hosts]
    _refuse_twice(hosts)
    tls = boolean_parameter("tls", values.get("tls")) or False
    database = _database_of(parts)
    username, password = _login_of(parts)
    return RedlockUrl(
        targets=[RedisTarget([host], False, tls, database, username, password) for host in hosts],
        prefix=prefix,
        persistent=boolean_parameter("persistent", values.get("persistent")) or False,
        longest_ttl_seconds=seconds_parameter("longestTtlSeconds", values.get("longestTtlSeconds"), 1_000_000_000),
    )


def _database_of(parts: UrlParts) -> int:
    path = parts.path or "0"
    if re.fullmatch(r"0|[1-9]\d{0,4}", path, re.ASCII) and int(path) <= _MAX_DATABASE:
        return int(path)
    raise InvalidArgumentError("url database", parts.shown_path, f"a whole number from 0 to {_MAX_DATABASE}")


def _login_of(parts: UrlParts) -> tuple[Optional[str], Optional[str]]:
    # redis-py would send the user name with an empty password, and other clients would log in as the default user.
    if parts.username is not None and parts.password is None:
        # The value is not shown: it is often a password without the colon.
        raise InvalidArgumentError("url user name", "…", "followed by a password: user:password@, or :password@")
    return parts.username, parts.password


def _refuse_twice(hosts: Sequence[HostPort]) -> None:
    """A server with two votes could be a quorum on its own."""
    known = set()
    for each in hosts:
        server = (_comparable(each.host), each.port)
        if server in known:
            rule = "another server for each node: a server with two votes could be a quorum on its own"
            raise InvalidArgumentError("url host", f"{each.host}:{each.port}, twice", rule)
        known.add(server)


def _comparable(host: str) -> str:
    """The names of the local machine count as one host."""
    name = host.rstrip(".")
    try:
        address = ipaddress.ip_address(name)
        mapped = getattr(address, "ipv4_mapped", None)
        name = str(mapped or address)
    except ValueError:
        pass
    return "localhost" if name in _SELF else name
