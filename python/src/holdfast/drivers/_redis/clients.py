"""From a client of redis-py, or a URL, to the servers."""

from __future__ import annotations

import importlib
from typing import Any, Mapping, Optional, Protocol

from ...errors import InvalidArgumentError, MissingClientError
from .cluster_link import ClusterLink, seeds_of
from .dial import Dial
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
        return ServerLink(Dial(pool.connection_class, pool.connection_kwargs, pool), timeout_seconds)
    manager = getattr(client, "nodes_manager", None)
    if manager is not None and hasattr(manager, "startup_nodes"):
        nodes = manager.startup_nodes
        dial = _cluster_dial(client, manager)
        return ClusterLink(dial, seeds_of(nodes), timeout_seconds, getattr(manager, "address_remap", None))
    rule = "a client of redis-py: Redis or RedisCluster, of redis.asyncio or of redis"
    raise InvalidArgumentError(argument, client, rule)


def _cluster_dial(client: Any, manager: Any) -> Dial:
    settings = dict(manager.connection_kwargs)
    node = next(iter(manager.startup_nodes.values()))
    connection_class = getattr(node, "connection_class", None)
    if connection_class is None:
        # A synchronous node is a client of one server, which it makes with the first command.
        single = getattr(node, "redis_connection", None) or manager.create_redis_node(node.host, node.port, **settings)
        pool = single.connection_pool
        return Dial(pool.connection_class, _as_a_master(client, pool.connection_kwargs))
    return Dial(connection_class, _as_a_master(client, {**getattr(node, "connection_kwargs", {}), **settings}))


def _as_a_master(client: Any, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Without the client's own function for new connections. With `read_from_replicas` it sends READONLY: a master that
    was demoted would then answer from its old data, and never say that the slot is elsewhere."""
    mine: Any = getattr(client, "user_on_connect_func", None)
    kept = {name: value for name, value in settings.items() if name != "redis_connect_func"}
    if mine is None:
        return kept

    def connected(connection: Any) -> None:
        connection.on_connect()
        mine(connection)

    return {**kept, "redis_connect_func": connected}


def open_link(target: RedisTarget, timeout_seconds: float) -> Link:
    """With connections of `redis.asyncio`. Nothing is connected before the first command."""
    asyncio_redis = import_redis()
    first = target.hosts[0]
    settings: dict[str, Any] = {"host": first.host, "port": first.port, "db": target.database}
    if target.username is not None:
        settings["username"] = target.username
    if target.password is not None:
        settings["password"] = target.password
    connection_class = asyncio_redis.Connection
    if target.tls:
        connection_class = asyncio_redis.SSLConnection
        settings["ssl_check_hostname"] = True
    dial = Dial(connection_class, settings)
    if not target.cluster:
        return ServerLink(dial, timeout_seconds)
    return ClusterLink(dial, [(each.host, each.port) for each in target.hosts], timeout_seconds)


def import_redis(used_by: str = "the redis driver") -> Any:
    missing: Optional[ImportError] = None
    try:
        return importlib.import_module("redis.asyncio")
    except ImportError as error:
        missing = error
    raise MissingClientError(used_by, ["redis"]) from missing
