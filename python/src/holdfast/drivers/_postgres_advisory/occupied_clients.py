"""The connections of callers that a driver uses.

A connection has one session, and the server grants a session a lock that it already has. So two drivers on one
connection would both hold one name, and so would a driver and a transaction.
"""

from __future__ import annotations

from typing import Any, Callable
from weakref import WeakSet

from ...errors import InvalidArgumentError

_occupied: "WeakSet[Any]" = WeakSet()


def occupy(connection: Any) -> Callable[[], None]:
    """Returns a function that frees the connection again."""
    if is_occupied(connection):
        rule = "a connection without another postgres-advisory driver. Close that one first, share it, or pass a pool"
        raise InvalidArgumentError("client", connection, rule)
    _occupied.add(connection)
    return lambda: _occupied.discard(connection)


def is_occupied(connection: Any) -> bool:
    return connection in _occupied
