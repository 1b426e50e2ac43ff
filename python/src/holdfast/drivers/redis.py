"""Keeps leases in Redis or Valkey: on one server, behind Sentinel, or on a Cluster."""

from __future__ import annotations

from typing import Callable, Optional

from ..core.arguments import Seconds, check_seconds
from ..errors import InvalidArgumentError, UnsupportedError
from ._redis.checks import RedisWarning, harmless, warn
from ._redis.clients import RedisClient, link_of, open_link
from ._redis.driver import CAPABILITIES, RedisDriver
from ._redis.fence import RedisFence, redis_fence
from ._redis.keys import check_prefix
from ._redis.link import Link
from ._redis.replicas import ReplicaWait
from ._redis.url import redis_url

__all__ = [
    "RedisClient",
    "RedisDriver",
    "RedisFence",
    "RedisWarning",
    "capabilities",
    "open_redis",
    "redis_driver",
    "redis_fence",
]

capabilities = CAPABILITIES

_COMMAND_TIMEOUT_SECONDS = 4.5
"""Less than the core waits for a call, so that the error says what is wrong."""


def redis_driver(
    client: RedisClient,
    *,
    prefix: str = "lock:",
    replicas: Optional[int] = None,
    replica_wait_seconds: Seconds = 1,
    command_timeout_seconds: Seconds = _COMMAND_TIMEOUT_SECONDS,
    on_warning: Optional[Callable[[RedisWarning], None]] = None,
) -> RedisDriver:
    """A driver with the settings of a client that you have: `Redis` or `RedisCluster`, of `redis.asyncio` or `redis`.

    The driver opens connections of its own, one for commands and one for messages, and `close` ends them. It neither
    uses nor changes those of the client. It sends nothing before the first call.

    `prefix` is the text before every lock name in a key. It may be empty. All clients of a lock need the same.
    With `replicas`, a grant or a renewal counts only when so many replicas have confirmed it (`WAIT`) within
    `replica_wait_seconds`. With fewer than all replicas, a failover may still lose a lease: it may promote one that has
    not confirmed.
    `on_warning` is called for each problem of the server: an eviction policy, a replica, an old version. Without it,
    they are warnings of Python (`RuntimeWarning`).
    """
    timeout_seconds = check_seconds("command_timeout_seconds", command_timeout_seconds, 0.001, 3_600)
    return _driver(
        link_of(client, timeout_seconds),
        prefix,
        timeout_seconds,
        _replica_wait(replicas, replica_wait_seconds),
        on_warning,
    )


async def open_redis(url: str) -> RedisDriver:
    """A driver for a `redis://`, `rediss://`, `redis+cluster://` or `rediss+cluster://` URL. `valkey` and `valkeys`
    mean the same as `redis` and `rediss`. Every part of the URL is understood or refused."""
    parsed = redis_url(url)
    link = open_link(parsed.target, _COMMAND_TIMEOUT_SECONDS)
    return _driver(link, parsed.prefix, _COMMAND_TIMEOUT_SECONDS, None, None)


def _driver(
    link: Link,
    prefix: str,
    timeout_seconds: float,
    replicas: Optional[ReplicaWait],
    on_warning: Optional[Callable[[RedisWarning], None]],
) -> RedisDriver:
    if replicas is not None and link.cluster:
        raise UnsupportedError(
            "redis: the option replicas does not work on a Cluster, because WAIT names no key and so no node; set "
            "min-replicas-to-write on the servers instead"
        )
    return RedisDriver(
        link,
        prefix=check_prefix(prefix),
        timeout_ms=timeout_seconds * 1_000,
        replicas=replicas,
        on_warning=harmless(on_warning or warn),
    )


def _replica_wait(count: Optional[int], wait_seconds: Seconds) -> Optional[ReplicaWait]:
    if count is None:
        return None
    if type(count) is not int or count < 1:
        raise InvalidArgumentError("replicas", count, "a whole number from 1")
    return ReplicaWait(count, max(1, round(check_seconds("replica_wait_seconds", wait_seconds, 0.001, 3_600) * 1_000)))
