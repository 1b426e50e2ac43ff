"""`postgres://user:password@host:port/database?…`

The URL must identify the database completely. A client would take a missing part from its environment, which may differ
from process to process. Every parameter is understood or refused.
"""

from __future__ import annotations

import math
import ssl
from dataclasses import dataclass, field
from typing import Any, Literal, Mapping, Optional, Sequence, cast

from ...errors import InvalidArgumentError
from .._shared.url import (
    HostPort,
    Parameter,
    UrlParts,
    boolean_parameter,
    check_port,
    decoded,
    host_port,
    known_parameters,
    seconds_parameter,
    url_parts,
)

Durability = Literal["crash-safe", "relaxed"]

_DEFAULT_PORT = 5432
_OURS = ("holdfast_schema", "holdfast_durability", "holdfast_migrate", "connect_timeout", "host", "port")
_SERVER_SETTINGS = (
    "application_name",
    "options",
    "statement_timeout",
    "lock_timeout",
    "idle_in_transaction_session_timeout",
)
_SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full", "no-verify")
_COMMON: Mapping[str, Optional[Sequence[str]]] = {
    **{name: None for name in _SERVER_SETTINGS},
    "fallback_application_name": None,
    "sslmode": _SSL_MODES,
    "ssl": ("true", "false", "no-verify"),
    "sslcert": None,
    "sslkey": None,
    "sslrootcert": None,
    "prepare": ("true", "false"),
    # Without it, pg for Node verifies more than libpq does for some modes. Here all modes are those of libpq.
    "uselibpqcompat": ("true",),
}
"""The parameters of both clients, with the values that they may have. None: any value."""


@dataclass(frozen=True)
class PostgresTarget:
    """The database that a URL names, and the parameters for the client."""

    host: str
    """A host name, an address, or the folder of a Unix socket."""
    port: int
    database: str
    user: Optional[str] = None
    password: Optional[str] = field(default=None, repr=False)
    connect_seconds: Optional[float] = None
    parameters: Sequence[Parameter] = ()
    """Parameters of the client. Which ones it knows depends on the client."""

    @property
    def prepares(self) -> Optional[bool]:
        """Whether statements are prepared. None: unless a pooler is in between."""
        return {"true": True, "false": False}.get(self.values.get("prepare", ""))

    @property
    def values(self) -> Mapping[str, str]:
        return {parameter.name: parameter.value for parameter in self.parameters}


@dataclass(frozen=True)
class UrlOptions:
    schema: str = "public"
    durability: Durability = "crash-safe"
    migrate: bool = True


def postgres_url(url: str) -> tuple[PostgresTarget, UrlOptions]:
    parts = url_parts(url, "postgres://user:password@host:5432/database")
    ours = [each for each in parts.parameters if each.name in _OURS or each.name.startswith("holdfast_")]
    values = known_parameters(ours, _OURS)
    migrate = boolean_parameter("holdfast_migrate", values.get("holdfast_migrate"))
    place = _place_of(parts, values)
    target = PostgresTarget(
        host=place.host,
        port=place.port,
        database=_database_of(parts),
        user=parts.username,
        password=parts.password,
        connect_seconds=seconds_parameter("connect_timeout", values.get("connect_timeout"), 3_600),
        parameters=[each for each in parts.parameters if each not in ours],
    )
    options = UrlOptions(
        schema=values.get("holdfast_schema", "public"),
        # Checked together with the options of a caller.
        durability=cast(Durability, values.get("holdfast_durability", "crash-safe")),
        migrate=True if migrate is None else migrate,
    )
    return target, options


def _place_of(parts: UrlParts, values: Mapping[str, str]) -> HostPort:
    """In front of the path or, for a Unix socket, in parameters: `postgres:///database?host=/var/run/postgresql`."""
    first, host, port = parts.hosts[0], values.get("host"), values.get("port")
    if len(parts.hosts) > 1:
        rule = "one host: which of several is used may differ from client to client. Pass a client of your own instead"
        raise InvalidArgumentError("url host", f"{len(parts.hosts)} hosts", rule)
    if first == "" and host is not None and host.startswith("/"):
        return HostPort(host, _DEFAULT_PORT if port is None else check_port(port))
    if host is not None or port is not None:
        rule = "the folder of a Unix socket, where the URL names no host before its path"
        raise InvalidArgumentError("url parameter host", host, rule)
    if first[:3].lower() != "%2f":
        return host_port(first, _DEFAULT_PORT)
    folder, colon, socket_port = first.partition(":")
    return HostPort(decoded("url host", folder), _DEFAULT_PORT if colon == "" else check_port(socket_port))


def _database_of(parts: UrlParts) -> str:
    if parts.path is None:
        rule = "named: without it, a client takes the name of its user, or what its environment says"
        raise InvalidArgumentError("url database", "", rule)
    database = decoded("url database", parts.path)
    if "/" not in parts.path and not any(each in database for each in "?#\0"):
        return database
    rule = "the name of a database, without ? and #, and with / as %2F"
    raise InvalidArgumentError("url database", parts.shown_path, rule)


def postgres_place(target: PostgresTarget) -> str:
    """The database, as errors name it."""
    if target.host.startswith("/"):
        return f"postgres:///{target.database}?host={target.host}"
    host = f"[{target.host}]" if ":" in target.host else target.host
    return f"postgres://{host}:{target.port}/{target.database}"


def asyncpg_settings(target: PostgresTarget) -> dict[str, Any]:
    """The arguments of `asyncpg.connect`."""
    values = _client_values(target, "asyncpg", {**_COMMON, "sslnegotiation": ("postgres",)})
    settings: dict[str, Any] = {"host": target.host, "port": target.port, "database": target.database}
    if target.user is not None:
        settings["user"] = target.user
    if target.password is not None:
        settings["password"] = target.password
    if target.connect_seconds is not None:
        settings["timeout"] = target.connect_seconds
    server_settings = {name: values[name] for name in _SERVER_SETTINGS if name in values}
    if "fallback_application_name" in values:
        server_settings.setdefault("application_name", values["fallback_application_name"])
    if server_settings:
        settings["server_settings"] = server_settings
    mode = _ssl_mode(values)
    if mode is not None:
        settings["ssl"] = _ssl_setting(mode, values)
    return settings


def _ssl_setting(mode: str, values: Mapping[str, str]) -> Any:
    """What asyncpg takes as `ssl`. Its own modes have no way to name files."""
    if mode == "disable":
        return False
    root, certificate = values.get("sslrootcert"), values.get("sslcert")
    if mode in ("allow", "prefer"):
        if root is not None or certificate is not None:
            rule = "require, verify-ca or verify-full where a certificate is given, for asyncpg"
            raise InvalidArgumentError("url parameter sslmode", mode, rule)
        return mode
    context = _context(root)
    verifies = mode in ("verify-ca", "verify-full") or (mode == "require" and root is not None)
    context.check_hostname = mode == "verify-full"
    context.verify_mode = ssl.CERT_REQUIRED if verifies else ssl.CERT_NONE
    if certificate is not None:
        try:
            context.load_cert_chain(certificate, values.get("sslkey"))
            return context
        except OSError as error:
            reason = error.strerror
        raise InvalidArgumentError("url parameter sslcert", certificate, f"a certificate and its key ({reason})")
    return context


def _context(root: Optional[str]) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=None if root in (None, "system") else root)
    except OSError as error:
        reason = error.strerror
    raise InvalidArgumentError("url parameter sslrootcert", root, f"a file with certificates ({reason})")


def psycopg_settings(target: PostgresTarget) -> dict[str, Any]:
    """The arguments of psycopg's `connect`."""
    values = _client_values(target, "psycopg", {**_COMMON, "sslnegotiation": ("postgres", "direct")})
    settings: dict[str, Any] = {"host": target.host, "port": target.port, "dbname": target.database}
    if target.user is not None:
        settings["user"] = target.user
    if target.password is not None:
        settings["password"] = target.password
    if target.connect_seconds is not None:
        settings["connect_timeout"] = math.ceil(target.connect_seconds)
    for name in ("application_name", "fallback_application_name", "sslcert", "sslkey", "sslrootcert"):
        if name in values:
            settings[name] = values[name]
    options = [values["options"]] if "options" in values else []
    for name in _SERVER_SETTINGS[2:]:
        if name in values:
            options.append(f"-c {name}=" + values[name].replace("\\", "\\\\").replace(" ", "\\ "))
    if options:
        settings["options"] = " ".join(options)
    mode = _ssl_mode(values)
    if mode is not None:
        settings["sslmode"] = "require" if mode == "no-verify" else mode
    if values.get("sslnegotiation") == "direct":
        settings["sslnegotiation"] = "direct"
    return settings


def _ssl_mode(values: Mapping[str, str]) -> Optional[str]:
    if "ssl" in values:
        return {"true": "verify-full", "false": "disable"}.get(values["ssl"], values["ssl"])
    return values.get("sslmode")


_IGNORED = frozenset(
    "schema connection_limit pool_timeout socket_timeout statement_cache_size pgbouncer sslaccept channel_binding supa "
    "workaround gssencmode krbsrvname client_encoding keepalives keepalives_idle "
    "keepalives_interval keepalives_count tcp_user_timeout".split()
)
"""What hosts and other clients put into a URL, and what changes neither the database nor how the server is verified:
settings of Prisma, of poolers, and of libpq."""


def _client_values(
    target: PostgresTarget, client: str, rules: Mapping[str, Optional[Sequence[str]]]
) -> Mapping[str, str]:
    """Refuses parameters that the client would ignore, and values that it does not know."""
    for parameter in target.parameters:
        if parameter.name in _IGNORED:
            continue
        if parameter.name not in rules:
            known = ", ".join((*_OURS, *rules))
            rule = f"one that is known here or to {client}: {known}"
            raise InvalidArgumentError("url parameter", parameter.shown_name, rule)
        allowed = rules[parameter.name]
        if allowed is not None and parameter.value not in allowed:
            rule = f"one of {', '.join(allowed)}, for {client}"
            raise InvalidArgumentError(f"url parameter {parameter.name}", parameter.value, rule)
    values = target.values
    if "ssl" in values and "sslmode" in values:
        raise InvalidArgumentError("url parameter ssl", "beside sslmode", "left out where sslmode is given")
    if "sslkey" in values and "sslcert" not in values:
        raise InvalidArgumentError("url parameter sslkey", "without sslcert", "left out where sslcert is not given")
    return values
