"""A lock on several independent Redis servers. It survives the loss of any minority of them."""

from __future__ import annotations

import math
from typing import Callable, Optional, Sequence

from ..core.arguments import Seconds, check_seconds
from ..errors import InvalidArgumentError
from ._redis.checks import RedisWarning, harmless, warn
from ._redis.clients import RedisClient, link_of, open_link
from ._redis.driver import RedisDriver
from ._redis.keys import check_prefix
from ._redis.link import Link
from ._redis.url import redlock_url
from ._redlock.driver import CAPABILITIES, RedlockDriver
from ._redlock.node import VotingNode
from ._redlock.quorum import NodeError

__all__ = ["NodeError", "RedisWarning", "RedlockDriver", "capabilities", "open_redlock", "redlock_driver"]

capabilities = CAPABILITIES

_COMMAND_TIMEOUT_SECONDS = 4.5
"""After this, the connection to a node is closed. Its vote counts as failed much sooner."""


def redlock_driver(
    clients: Sequence[RedisClient],
    *,
    prefix: str = "lock:",
    quorum: Optional[int] = None,
    node_timeout_seconds: Seconds = 1,
    longest_ttl_seconds: Seconds = 60,
    persistent: bool = False,
    on_node_error: Optional[Callable[[NodeError], None]] = None,
    on_warning: Optional[Callable[[RedisWarning], None]] = None,
) -> RedlockDriver:
    """A driver with the settings of clients of independent servers, none a replica of another.

    A claim is granted when a quorum of nodes grants it, by default the majority and never less. The nodes agree on the
    fencing token in the same round trip. A node that does not answer within `node_timeout_seconds` counts as failed.

    `longest_ttl_seconds` is the longest time to live that any client uses; use the same value for all of them. A node
    that may have forgotten leases, because it was started, emptied or never asked before, does not vote for this long.
    `persistent`: the nodes never forget anything (`appendonly yes` and `appendfsync always`, no eviction, no FLUSHALL).
    Then they vote at once, and a time to live has no bound here. `on_node_error` is called each time a node fails.
    `on_warning` is called once for each node that has replicas, or is one. Without it, that is a warning of Python
    (`RuntimeWarning`).
    """
    if not isinstance(clients, (list, tuple)) or not clients:
        raise InvalidArgumentError("clients", clients, "a list of at least one Redis client")
    for at, client in enumerate(clients):
        first = next(place for place, each in enumerate(clients) if each is client)
        if first != at:
            rule = f"a different server each: node {at + 1} has the client of node {first + 1}"
            raise InvalidArgumentError("clients", clients, rule)
    links = [link_of(each, _COMMAND_TIMEOUT_SECONDS, f"clients[{at}]") for at, each in enumerate(clients)]
    return _driver(
        links,
        "clients",
        prefix=prefix,
        quorum=quorum,
        node_timeout_seconds=node_timeout_seconds,
        longest_ttl_seconds=longest_ttl_seconds,
        persistent=persistent,
        on_node_error=on_node_error,
        on_warning=on_warning,
    )


async def open_redlock(url: str) -> RedlockDriver:
    """A driver for `redlock://host:port,host:port,…`, with `user:password@` before the hosts and `/database` behind
    them. The parameters are `prefix`, `tls=true`, `longestTtlSeconds` and `persistent=true`."""
    parsed = redlock_url(url)
    longest = 60 if parsed.longest_ttl_seconds is None else parsed.longest_ttl_seconds
    return _driver(
        [open_link(target, _COMMAND_TIMEOUT_SECONDS) for target in parsed.targets],
        "url",
        prefix=parsed.prefix,
        quorum=None,
        node_timeout_seconds=1,
        longest_ttl_seconds=longest,
        persistent=parsed.persistent,
        on_node_error=None,
        on_warning=None,
    )


def _driver(
    links: Sequence[Link],
    argument: str,
    *,
    prefix: str,
    quorum: Optional[int],
    node_timeout_seconds: Seconds,
    longest_ttl_seconds: Seconds,
    persistent: bool,
    on_node_error: Optional[Callable[[NodeError], None]],
    on_warning: Optional[Callable[[RedisWarning], None]],
) -> RedlockDriver:
    check_prefix(prefix)
    majority = len(links) // 2 + 1
    needed = majority if quorum is None else quorum
    if type(needed) is not int or not majority <= needed <= len(links):
        bounds = f"from the majority ({majority}) to all {len(links)} nodes"
        raise InvalidArgumentError("quorum", quorum, f"{bounds}: with fewer, two clients can hold one lock")
    for at, link in enumerate(links):
        if link.cluster:
            rule = f"single servers: node {at + 1} is a Redis Cluster, whose failovers forget leases unnoticed"
            raise InvalidArgumentError(argument, link, rule)
    timeout_seconds = check_seconds("node_timeout_seconds", node_timeout_seconds, 0.001, 3_600)
    longest_seconds = check_seconds("longest_ttl_seconds", longest_ttl_seconds, 0.001, 1_000_000_000)
    servers: dict[str, str] = {}
    report = harmless(on_warning or warn)
    nodes = [VotingNode(_node(link, prefix), f"node {at + 1}", servers, report) for at, link in enumerate(links)]
    return RedlockDriver(
        nodes,
        quorum=needed,
        timeout_seconds=timeout_seconds,
        longest_ttl_ms=None if persistent else math.ceil(longest_seconds * 1_000),
        on_node_error=on_node_error,
    )


def _node(link: Link, prefix: str) -> RedisDriver:
    def ignore(warning: RedisWarning) -> None:
        """A node is never asked for its settings: only `acquire` of its own driver does that."""

    timeout_ms = _COMMAND_TIMEOUT_SECONDS * 1_000
    return RedisDriver(link, prefix=prefix, timeout_ms=timeout_ms, replicas=None, on_warning=ignore)
