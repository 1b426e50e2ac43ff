"""URL or client → driver. Imports only the driver that is needed, and no client by itself."""

from __future__ import annotations

import importlib
import os
from typing import Any, Callable, NamedTuple, cast

from .core.driver import Driver
from .core.secrets import redacted_url
from .errors import InvalidArgumentError

__all__ = ["connect"]

_OPENERS = {
    "memory": "memory:open_memory",
    "sqlite": "sqlite:open_sqlite",
    "postgres": "postgres:open_postgres",
    "postgresql": "postgres:open_postgres",
    "postgres+advisory": "postgres_advisory:open_postgres_advisory",
    "postgresql+advisory": "postgres_advisory:open_postgres_advisory",
    "redis": "redis:open_redis",
    "rediss": "redis:open_redis",
    "redis+cluster": "redis:open_redis",
    "rediss+cluster": "redis:open_redis",
    "valkey": "redis:open_redis",
    "valkeys": "redis:open_redis",
    "valkey+cluster": "redis:open_redis",
    "valkeys+cluster": "redis:open_redis",
    "redlock": "redlock:open_redlock",
}
"""Scheme → module and function in `holdfast.drivers`."""

_CLIENTS = {
    "redis": "redis:redis_driver",
    "valkey": "redis:redis_driver",
    "asyncpg": "postgres:postgres_driver",
    "psycopg": "postgres:postgres_driver",
    "psycopg_pool": "postgres:postgres_driver",
    "sqlite3": "sqlite:sqlite_driver",
    "_sqlite3": "sqlite:sqlite_driver",
    "sqlalchemy": "postgres:postgres_driver",
}
"""The top package of a client's class, or of one of its base classes → module and function that take the client."""

_DRIVER_METHODS = ("acquire", "renew", "release", "inspect", "close")


class Opened(NamedTuple):
    driver: Driver
    owned: bool
    """Whether the instance that opened the driver also closes it."""


class Prepared(NamedTuple):
    """A client of which everything that is needed is known."""

    make: Callable[[], Driver]
    kind: type


async def connect(url: str) -> Driver:
    """Opens the driver that a URL names. You close it.

    Raises `InvalidArgumentError` for an unknown scheme and for any part of the URL that the driver does not understand,
    before a connection is opened; `MissingClientError` if the driver needs a package that is not installed.
    """
    check_url(url)
    return await _made(_import(_OPENERS[_scheme_of(url)])(url))


def check_store(store: object) -> object:
    """What a constructor checks at once: the scheme of a URL, or the kind of a client. `None` selects the store of the
    environment. Returns the URL, the client or the driver."""
    if store is None:
        return default_url()
    if isinstance(store, str):
        return check_url(store)
    if is_driver(store) or isinstance(store, os.PathLike):
        return store
    if _client_entry(store) == _CLIENTS["sqlite3"]:
        # Here, because a connection of sqlite3 may be used only in the thread that opened it.
        prepare = cast("Callable[[object], Callable[[], Driver]]", _import("sqlite:beside_tables_of"))
        return Prepared(prepare(store), type(store))
    return store


async def driver_from(store: object) -> Opened:
    """The driver of a URL, of a client that the caller has, or the caller's driver itself."""
    if store is None or isinstance(store, str):
        return Opened(await connect(default_url() if store is None else store), True)
    if is_driver(store):
        return Opened(cast(Driver, store), False)
    if isinstance(store, Prepared):
        return Opened(store.make(), True)
    # The driver belongs to the instance, although the client does not: drivers never close a client they were given.
    return Opened(await _made(_import(_client_entry(store))(store)), True)


def shown_store(store: object) -> str:
    """What `repr` shows of a store. It shows no password: not the settings of a client, and of a URL only the place."""
    if isinstance(store, str):
        return str(redacted_url(store))
    if isinstance(store, os.PathLike):
        return f"sqlite:{os.fspath(store)!s}"
    if is_driver(store):
        return repr(store) if type(store).__module__.startswith(f"{__package__}.") else f"a {type(store).__qualname__}"
    kind = store.kind if isinstance(store, Prepared) else type(store)
    return f"a client ({kind.__module__}.{kind.__qualname__})"


async def _made(driver: Any) -> Driver:
    """Some drivers have to connect before they are complete, others do so with the first call."""
    return cast(Driver, await driver if hasattr(driver, "__await__") else driver)


def default_url() -> str:
    """`HOLDFAST_URL`, or else a SQLite file, which excludes the processes of this machine.

    Raises `InvalidArgumentError` if `HOLDFAST_URL` is empty. A script that copies an unset variable sets it to an empty
    text, and the default would then exclude only the processes of one machine.
    """
    url = os.environ.get("HOLDFAST_URL", "sqlite:")
    if url == "":
        raise InvalidArgumentError("HOLDFAST_URL", url, "the URL of a store, or not set")
    return check_url(url)


def check_url(url: object) -> str:
    if isinstance(url, str) and _scheme_of(url) in _OPENERS:
        return url
    known = " or ".join(f"{each}:" for each in _OPENERS)
    raise InvalidArgumentError("store", redacted_url(url), f"the URL of a store, beginning with {known}")


def is_driver(store: object) -> bool:
    return hasattr(store, "capabilities") and all(callable(getattr(store, each, None)) for each in _DRIVER_METHODS)


def _client_entry(client: object) -> str:
    """Clients are recognised by the package of their class, so that none has to be imported here."""
    for each in type(client).__mro__:
        entry = _CLIENTS.get(each.__module__.split(".")[0])
        if entry is not None:
            return entry
    if isinstance(client, os.PathLike):
        return "sqlite:sqlite_driver"
    if isinstance(client, (list, tuple)) and client and all(_is_redis(each) for each in client):
        return "redlock:redlock_driver"
    if callable(getattr(client, "execute", None)):
        return "plain_functions:plain_functions_driver"
    rule = (
        "the URL of a store, a driver, or a client: of redis, asyncpg, psycopg, sqlite3 or SQLAlchemy, a list of Redis "
        "clients, or a handle with an awaitable execute(sql, *args)"
    )
    raise InvalidArgumentError("store", client, rule)


def _is_redis(client: object) -> bool:
    return any(each.__module__.split(".")[0] in ("redis", "valkey") for each in type(client).__mro__)


def _import(entry: str) -> Callable[[Any], Any]:
    module, function = entry.split(":")
    found: Callable[[Any], Any] = getattr(importlib.import_module(f".drivers.{module}", __package__), function)
    return found


def _scheme_of(url: str) -> str:
    """In lower case, or empty."""
    scheme, colon, _ = url.partition(":")
    return scheme.lower() if colon else ""


