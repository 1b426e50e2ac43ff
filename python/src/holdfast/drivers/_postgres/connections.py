"""What the drivers need of a client. Every call has a deadline, even if the socket never answers."""

from __future__ import annotations

import asyncio
from typing import Any, Callable, Mapping, Optional, Protocol, Sequence

from ...errors import StoreError
from . import deadlines

Row = Mapping[str, Any]
Values = Sequence[Optional[str]]

OnNotification = Callable[[str, str], None]
"""Gets the channel and the payload."""
OnEnd = Callable[[BaseException], None]


class DedicatedConnection(Protocol):
    """One connection that no other code of this package uses."""

    is_callers: bool
    """It is the caller's own, and stays open after `close`."""

    async def fetch(self, text: str, values: Values = (), *, waits: bool = False) -> Sequence[Row]:
        """Sends one statement. One that `waits` for a lock has no deadline."""

    async def script(self, text: str) -> None:
        """Sends several statements at once, without values."""

    async def listen(self, channels: Sequence[str], on_notification: OnNotification) -> None:
        """Starts to receive what is sent to these channels."""

    def watch(self, on_end: OnEnd) -> None:
        """`on_end` is called once when the connection has ended, unless `close` or `terminate` was called before. It
        replaces an earlier one."""

    @property
    def server_pid(self) -> Optional[int]:
        """The process id that the server, or a pooler in between, sent at the start of the connection."""

    @property
    def in_transaction(self) -> bool: ...

    @property
    def is_open(self) -> bool:
        """False if the connection is known to have ended."""

    def terminate(self) -> None:
        """Ends a connection of ours at once, without waiting for the server."""

    async def close(self) -> None: ...


class Opener(Protocol):
    """Opens connections to one database."""

    @property
    def place(self) -> Optional[str]:
        """The database, as errors name it: a URL without its login."""

    async def dedicate(self, *, prepares: bool = False) -> DedicatedConnection:
        """A connection beside the caller's pool. `prepares`: its statements are the same few ones, with other
        values."""

    async def close(self) -> None:
        """Closes what was opened here, never what the caller passed in."""


class Connections(Opener, Protocol):
    """A client of the caller, or connections that were opened for a URL."""

    @property
    def is_pool(self) -> bool:
        """Whether a second try may get another connection."""

    async def query(self, text: str, values: Values) -> Sequence[Row]:
        """Sends one statement on any connection."""

    async def urgent(self, text: str, values: Values) -> Sequence[Row]:
        """Like `query`, for renewals and releases. It does not wait for the application's own use of a client."""


class NotSentError(StoreError):
    """Nothing was sent on the caller's connection, so nothing has changed."""


async def wait_for_caller(until: float) -> None:
    """Waits a moment for the caller's code, which uses its connection. Not after `until`, a time of the event loop."""
    if asyncio.get_running_loop().time() > until:
        raise NotSentError(
            "the connection that was passed to the driver was busy with statements of your own for "
            f"{deadlines.QUERY_SECONDS:g} s. Give the driver a connection of its own, or a pool"
        )
    await asyncio.sleep(_BUSY_POLL_SECONDS)


_BUSY_POLL_SECONDS = 0.005
