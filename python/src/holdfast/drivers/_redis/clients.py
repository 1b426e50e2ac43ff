"""From a client of redis-py, or a URL, to the servers."""

from __future__ import annotations

import ssl
from functools import cache
from typing import Any, Protocol

from ...errors import InvalidArgumentError
from .cluster_link import ClusterLink, seeds_of
from .dial import Dial, dial_of
from .link import Link, ServerLink
from .url import RedisTarget


class RedisClient(Protocol):
    """`Redis` or `RedisCluster`, of `redis.asyncio` or of `redis`, or a master that a `Sentinel` of either returns.

    The driver takes the settings from it and opens connections of its own. It neither uses nor closes those of the
    client.
    """

    execute_command: Any


def link_of(client: RedisClient, timeout_seconds: float, argument: str = "client") -> Link:
    pool = getattr(client, "connection_pool", None)
    if pool is not None and hasattr(pool, "connection_class") and hasattr(pool, "connection_kwargs"):
        dial = dial_of(pool.connection_class, pool.connection_kwargs, pool, client, argument)
        return ServerLink(dial, timeout_seconds)
    manager = getattr(client, "nodes_manager", None)
    if manager is not None and hasattr(manager, "startup_nodes"):
        nodes = manager.startup_nodes
        dial = _cluster_dial(client, manager, argument)
        return ClusterLink(dial, seeds_of(nodes), timeout_seconds, getattr(manager, "address_remap", None))
    rule = "a client of redis-py: Redis or RedisCluster, of redis.asyncio or of redis"
    raise InvalidArgumentError(argument, client, rule)


def _cluster_dial(client: Any, manager: Any, argument: str) -> Dial:
    settings = dict(manager.connection_kwargs)
    node = next(iter(manager.startup_nodes.values()))
    connection_class = getattr(node, "connection_class", None)
    if connection_class is None:
        # A synchronous node is a client of one server, which it makes with the first command.
        single = getattr(node, "redis_connection", None) or manager.create_redis_node(node.host, node.port, **settings)
        connection_class, settings = single.connection_pool.connection_class, single.connection_pool.connection_kwargs
    else:
        settings = {**getattr(node, "connection_kwargs", {}), **settings}
    # Not the client's own function for new connections. With `read_from_replicas` it sends READONLY: a master that was
    # demoted would then answer from its old data, and never say that the slot is elsewhere.
    theirs = getattr(client, "user_on_connect_func", None)
    return dial_of(connection_class, {**settings, "redis_connect_func": theirs}, None, client, argument)


def open_link(target: RedisTarget, timeout_seconds: float) -> Link:
    """Nothing is connected before the first command."""
    first = target.hosts[0]
    dial = Dial(
        host=first.host,
        port=first.port,
        database=target.database,
        username=target.username,
        password=target.password,
        tls=cache(ssl.create_default_context) if target.tls else None,
    )
    if not target.cluster:
        return ServerLink(dial, timeout_seconds)
    return ClusterLink(dial, [(each.host, each.port) for each in target.hosts], timeout_seconds)
