"""Fencing guards: they refuse a write of a holder that has lost its lock without noticing it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Optional

from .core.arguments import Seconds, check_whole
from .core.fencing import FencingGuard, Token, check_resource, token_of
from .errors import OverloadError, StaleTokenError

if TYPE_CHECKING:
    from .drivers._postgres.fence import PostgresFence, SyncPostgresFence
    from .drivers._redis.fence import RedisFence
    from .sync.fence import SyncRedisFence

__all__ = ["Fence", "FencingGuard", "Token", "postgres_fence", "redis_fence", "sync_postgres_fence", "sync_redis_fence"]


class Fence:
    """Protects a resource that only one process writes to, such as a file, a device or another service.

    It remembers the largest fencing token of each resource in memory, and refuses a smaller one. Call `accept` before
    the first read that the write depends on, and again in the same step as the write, with nothing awaited in between:

        fence = Fence()
        async with lock.lock("report") as lease:
            fence.accept("report.csv", lease)
            rows = await read_report()
            fence.accept("report.csv", lease)
            write_report(rows)

    Its memory ends with the process. If the data outlives the process, keep the token with the data: use
    `postgres_fence`, `redis_fence` or a column of your own.

    It never forgets a resource by itself: a stale token would then be accepted, and the tokens of other resources say
    nothing about this one. So it has a bound. Beyond it, a new resource raises `OverloadError` until you `reset`
    another. It may be used from several threads.
    """

    def __init__(self, *, max_resources: int = 100_000) -> None:
        self._max_resources = check_whole("max_resources", max_resources, 1, 10_000_000)
        self._largest: dict[str, int] = {}
        # Without it, a smaller token could be stored after a larger one that another thread has accepted meanwhile.
        self._mutex = threading.Lock()

    def __repr__(self) -> str:
        return f"<Fence of {len(self._largest)} resources>"

    def accept(self, resource: str, token: Token) -> None:
        """Accepts the token if no larger one has been seen for the resource, and remembers it.

        An equal token is accepted, because one holder writes more than once. Raises `StaleTokenError` if a larger token
        has been seen, `OverloadError` if the resource is new and there is no room for it, `InvalidArgumentError`.
        """
        resource = check_resource(resource)
        fencing_token = token_of(token)
        with self._mutex:
            largest = self._largest.get(resource)
            if largest is None and len(self._largest) >= self._max_resources:
                raise OverloadError(f"this fence already guards {self._max_resources} resources: reset one first")
            if largest is not None and fencing_token < largest:
                raise StaleTokenError(resource, fencing_token, largest)
            self._largest[resource] = fencing_token

    def largest(self, resource: str) -> Optional[int]:
        """The largest token so far. None for an unknown resource."""
        return self._largest.get(check_resource(resource))

    def reset(self, resource: str) -> bool:
        """Forgets the largest token, so that any next token is accepted. True if the resource was known.

        Use it for a resource that is gone, or whose lock moves to another store, once no process with an old token can
        reach it any more.
        """
        resource = check_resource(resource)
        with self._mutex:
            return self._largest.pop(resource, None) is not None

    def __len__(self) -> int:
        """The number of remembered resources."""
        return len(self._largest)

    def __bool__(self) -> bool:
        # An empty guard is still a guard: `if fence:` must not skip the check.
        return True


def postgres_fence(transaction: Any, *, schema: str = "public") -> PostgresFence:
    """A guard that keeps the largest token of each resource in PostgreSQL, beside the data that it protects.

    `transaction` is an open transaction of yours: a connection of asyncpg inside a transaction, an AsyncConnection of
    psycopg, or an AsyncSession or AsyncConnection of SQLAlchemy::

        async with pool.acquire() as connection, connection.transaction():
            await postgres_fence(connection).accept("account:7", lease)
            await connection.execute("UPDATE accounts SET balance = balance - 10 WHERE id = 7")

    Present the token before the first read. Until the transaction ends, other transactions with a token for the same
    resource wait in `accept`.
    """
    # Imported here: most programs need neither this driver nor the next one.
    from .drivers._postgres.fence import postgres_fence as create

    return create(transaction, schema=schema)


def sync_postgres_fence(transaction: Any, *, schema: str = "public") -> SyncPostgresFence:
    """Like `postgres_fence`, for a Session or Connection of SQLAlchemy, or a connection of psycopg or psycopg2::

        with Session(engine) as session, session.begin():
            sync_postgres_fence(session).accept("account:7", lease)
    """
    from .drivers._postgres.fence import sync_postgres_fence as create

    return create(transaction, schema=schema)


def redis_fence(client: Any, *, command_timeout_seconds: Seconds = 4.5) -> RedisFence:
    """A guard for data in Redis, with the settings of a client that you have. It need not be the server that keeps the
    locks::

        fence = redis_fence(client)
        async with lock.lock("order:123") as lease:
            await fence.set("order:123:state", "paid", lease)
    """
    from .drivers._redis.fence import redis_fence as create

    return create(client, command_timeout_seconds=command_timeout_seconds)


def sync_redis_fence(client: Any, *, command_timeout_seconds: float = 4.5) -> SyncRedisFence:
    """Like `redis_fence`, for code without an event loop::

        fence = sync_redis_fence(client)
        with lock.lock("order:123") as lease:
            fence.set("order:123:state", "paid", lease)
    """
    from .drivers._redis.fence import redis_fence as create
    from .sync.fence import SyncRedisFence

    return SyncRedisFence(create(client, command_timeout_seconds=command_timeout_seconds))
