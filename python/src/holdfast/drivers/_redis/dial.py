"""How to connect to one server, and how a client of redis-py does it."""

from __future__ import annotations

import asyncio
import inspect
import os
import socket
import ssl
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Callable, Mapping, Optional, Union

from ...errors import InvalidArgumentError
from .._shared.worker_threads import WorkerThreads


# A subscription sends nothing. Only keep-alives notice that its server is gone, by default after two hours.
_KEEP_ALIVE: Mapping[int, Any] = {
    getattr(socket, name): value
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
}


@dataclass(frozen=True)
class Dial:
    """The driver opens connections of its own, also if you pass a client. So locks neither wait for a free connection
    of the application nor take one away from it, and the connections belong to the driver's event loop, wherever the
    client is used."""

    host: str = "localhost"
    port: int = 6379
    path: Optional[str] = None
    """Of a Unix socket."""
    database: int = 0
    username: Optional[str] = None
    password: Union[str, bytes, None] = field(default=None, repr=False)
    credential_provider: Any = field(default=None, repr=False)
    client_name: Optional[str] = None
    tls: Optional[Callable[[], ssl.SSLContext]] = None
    connect_seconds: float = 3_600
    keep_alive: Mapping[int, Any] = field(default_factory=lambda: _KEEP_ALIVE)
    sentinel_pool: Any = field(default=None, repr=False)
    """Of redis-py. It finds the master."""

    @property
    def place(self) -> str:
        """A URL without user name and password."""
        if self.path is not None:
            return self.path
        if self.sentinel_pool is not None:
            return "the master that Sentinel names"
        return f"{'redis' if self.tls is None else 'rediss'}://{self.address}"

    @property
    def address(self) -> str:
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def at(self, host: str, port: int) -> Dial:
        return replace(self, host=host, port=port)

    async def connect(self, connection: asyncio.Protocol) -> None:
        loop = asyncio.get_running_loop()
        try:
            if self.path is not None:
                await loop.create_unix_connection(lambda: connection, self.path)
                return
            host, port = (self.host, self.port) if self.sentinel_pool is None else await self._master()
            tls = None if self.tls is None else self.tls()
            transport, _ = await loop.create_connection(lambda: connection, host, port, ssl=tls)
            sock = transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in self.keep_alive.items():
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
            return
        except (ssl.SSLError, TimeoutError):
            raise
        except OSError as error:
            # asyncio's own text repeats the address.
            is_plain = error.errno is not None and not isinstance(error, socket.gaierror)
            reason = os.strerror(error.errno or 0) if is_plain else error.strerror or str(error)
        raise ConnectionError(f"cannot connect: {reason}")

    async def login(self) -> list[list[str]]:
        """The commands with which a connection begins."""
        username, password = self.username, self.password
        if self.credential_provider is not None:
            found = await self._in_thread(self.credential_provider.get_credentials)
            username, password = found if len(found) > 1 else (None, *found)
        commands = []
        if username or password:
            commands.append(["AUTH", *([username] if username else []), _text(password or "")])
        if self.client_name:
            commands.append(["CLIENT", "SETNAME", self.client_name])
        if self.database:
            commands.append(["SELECT", str(self.database)])
        return commands

    async def _master(self) -> tuple[str, int]:
        find = self.sentinel_pool.get_master_address
        host, port = await (find() if inspect.iscoroutinefunction(find) else self._in_thread(find))
        return host, int(port)

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        """What may block. The thread is a daemon: a server that does not answer must not keep the process from
        ending."""
        threads = WorkerThreads("holdfast-redis", 1)
        try:
            return await threads.run(work, timeout_seconds=None)
        finally:
            threads.close()


def dial_of(connection_class: Any, settings: Mapping[str, Any], pool: Any, client: Any, argument: str) -> Dial:
    """With the settings of a client of redis-py, as its pool has them."""
    name = connection_class.__name__
    if connection_class.__module__.partition(".")[0] != "redis":
        # It may lead elsewhere, as that of fakeredis does.
        rule = f"a client with connections of redis-py. {name} is a class of its own: pass a URL, or another client"
        raise InvalidArgumentError(argument, client, rule)
    for unknown in ("redis_connect_func", "ssl_validate_ocsp", "ssl_validate_ocsp_stapled"):
        if settings.get(unknown):
            raise InvalidArgumentError(argument, client, f"a client without {unknown}, which only redis-py can use")
    return Dial(
        host=str(settings.get("host") or "localhost"),
        port=int(settings.get("port") or 6379),
        path=settings.get("path"),
        database=int(settings.get("db") or 0),
        username=settings.get("username"),
        password=settings.get("password"),
        credential_provider=settings.get("credential_provider"),
        client_name=settings.get("client_name"),
        tls=cache(lambda: _tls_context(connection_class, settings)) if "SSL" in name else None,
        connect_seconds=settings.get("socket_connect_timeout") or Dial.connect_seconds,
        keep_alive=settings.get("socket_keepalive_options") or _KEEP_ALIVE,
        # The settings have only a weak reference to it.
        sentinel_pool=pool if "connection_pool" in settings else None,
    )


def _tls_context(connection_class: Any, settings: Mapping[str, Any]) -> ssl.SSLContext:
    get = settings.get
    context = ssl.create_default_context()
    # The default depends on the version of redis-py.
    checks = settings.get("ssl_check_hostname", _default_of(connection_class, "ssl_check_hostname"))
    context.check_hostname = bool(checks)
    required = get("ssl_cert_reqs", "required")
    if required in (None, "none", ssl.CERT_NONE):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif required in ("optional", ssl.CERT_OPTIONAL):
        context.verify_mode = ssl.CERT_OPTIONAL
    if get("ssl_certfile") or get("ssl_keyfile"):
        context.load_cert_chain(settings["ssl_certfile"], get("ssl_keyfile"), get("ssl_password"))
    if get("ssl_ca_certs") or get("ssl_ca_path") or get("ssl_ca_data"):
        context.load_verify_locations(get("ssl_ca_certs"), get("ssl_ca_path"), get("ssl_ca_data"))
    if get("ssl_min_version") is not None:
        context.minimum_version = settings["ssl_min_version"]
    if get("ssl_ciphers") is not None:
        context.set_ciphers(settings["ssl_ciphers"])
    return context


def _default_of(connection_class: Any, name: str) -> Any:
    for each in connection_class.__mro__:
        parameter = inspect.signature(each.__init__).parameters.get(name)
        if parameter is not None:
            return parameter.default
    return None


def _text(password: Union[str, bytes]) -> str:
    return password if isinstance(password, str) else password.decode("utf-8", "surrogateescape")
