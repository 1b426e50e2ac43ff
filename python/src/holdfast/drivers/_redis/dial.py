"""How to connect to one server: the settings of a redis-py client, without its habits that are wrong for locks."""

from __future__ import annotations

import inspect
import socket
from dataclasses import dataclass, field
from typing import Any, Mapping


@dataclass(frozen=True)
class Dial:
    """Makes connections of redis-py to one server.

    The driver has connections of its own, also if you pass a client. So locks neither wait for a free connection of
    the application nor take one away from it, and the connections belong to the driver's event loop, wherever the
    client is used.
    """

    connection_class: Any
    settings: Mapping[str, Any] = field(repr=False)
    pool: Any = field(default=None, repr=False)
    """The caller's. Behind Sentinel, the settings have only a weak reference to it, and it finds the master."""

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.connection_class.connect)

    @property
    def is_for_loop(self) -> bool:
        """Whether an event loop can read and write its connections: all of `redis.asyncio`, and of the synchronous ones
        those with a plain socket. One that encrypts, and one of a class that we do not know, needs a thread."""
        name, module = self.connection_class.__name__, self.connection_class.__module__
        return self.is_async or (module in ("redis.connection", "redis.sentinel") and "SSL" not in name)

    @property
    def place(self) -> str:
        """A URL without user name and password."""
        path = self.settings.get("path")
        if path:
            return str(path)
        if "connection_pool" in self.settings:
            return "the master that Sentinel names"
        scheme = "rediss" if "SSL" in self.connection_class.__name__ else "redis"
        return f"{scheme}://{self.address}"

    @property
    def address(self) -> str:
        host = str(self.settings.get("host", "localhost"))
        return f"{f'[{host}]' if ':' in host else host}:{self.settings.get('port', 6379)}"

    def at(self, host: str, port: int) -> Dial:
        return Dial(self.connection_class, {**self.settings, "host": host, "port": port}, self.pool)

    def connection(self, connect_seconds: float, answer_seconds: float | None) -> Any:
        """A connection, not yet open.

        Without retries: redis-py would send a release again after a lost reply, and return the answer to the second
        copy, which says that there was no lease. And replies stay bytes, because the value of another client's lock
        need not be UTF-8.
        """
        settings = {name: value for name, value in self.settings.items() if name not in _LEFT_OUT}
        settings.update(encoding="utf-8", decode_responses=False, socket_timeout=answer_seconds)
        # Not of the Unix socket of older versions, which connects at once.
        if _accepts(self.connection_class, "socket_connect_timeout"):
            mine = settings.get("socket_connect_timeout")
            settings["socket_connect_timeout"] = connect_seconds if mine is None else min(mine, connect_seconds)
        if "path" not in settings:
            settings["socket_keepalive"] = True
            # A subscription sends nothing. Only keep-alives notice that its server is gone, by default after two hours.
            if not settings.get("socket_keepalive_options"):
                settings["socket_keepalive_options"] = _KEEP_ALIVE
        # With RESP3, which new versions of redis-py prefer, messages arrive another way.
        accepts_protocol = _accepts(self.connection_class, "protocol")
        return self.connection_class(**settings, **({"protocol": 2} if accepts_protocol else {}))


_KEEP_ALIVE = {
    getattr(socket, name): value
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
}

_LEFT_OUT = frozenset(
    {
        "retry",
        "retry_on_error",
        "retry_on_timeout",
        "health_check_interval",
        "protocol",
        "maint_notifications_config",
        "max_connections",
        "timeout",
        "response_callbacks",
        "connection_class",
    }
)


def _accepts(connection_class: Any, name: str) -> bool:
    """Whether the class, or one that it passes its settings on to, has this setting."""
    for each in connection_class.__mro__:
        parameters = inspect.signature(each.__init__).parameters
        if name in parameters:
            return True
        if all(parameter.kind is not inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
            return False
    return False
