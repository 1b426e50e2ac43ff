"""What the drivers need of a client. Every call has a deadline, even if the socket never answers."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Optional, Protocol, Sequence

Row = Mapping[str, Any]
Values = Sequence[Optional[str]]

QUERY_SECONDS = 10.0
"""A half-open connection neither answers nor fails. After this time its query fails, and a pool drops it."""
SCRIPT_SECONDS = 120.0
"""For several statements at once, as in a migration."""
CONNECT_SECONDS = 5.0
CLOSE_SECONDS = 1.0
"""A server that does not answer does not confirm the end of a connection either."""

OnNotification = Callable[[str, str], None]
"""Gets the channel and the payload."""
OnEnd = Callable[[BaseException], None]


class Session(Protocol):
    """One connection that nothing else uses."""

    async def fetch(
        self, text: str, values: Values = (), timeout_seconds: Optional[float] = QUERY_SECONDS
    ) -> Sequence[Row]:
        """Sends one statement. Without a timeout it waits as long as the server does."""

    async def script(self, text: str) -> None:
        """Sends several statements at once, without values."""

    async def listen(self, channels: Sequence[str], on_notification: OnNotification) -> None:
        """Starts to receive what is sent to these channels."""

    def watch(self, on_end: OnEnd) -> None:
        """`on_end` is called once when the connection has ended, unless `close` or `terminate` was called before."""

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


class Connections(Protocol):
    """A client of the caller, or connections that were opened for a URL."""

    @property
    def place(self) -> Optional[str]:
        """The database, as errors name it: a URL without its login."""

    @property
    def is_pool(self) -> bool:
        """Whether a second try may get another connection."""

    async def query(self, text: str, values: Values) -> Sequence[Row]:
        """Sends one statement on any connection."""

    async def urgent(self, text: str, values: Values) -> Sequence[Row]:
        """As `query`, for renewals and releases. It does not wait for the application's own use of a client."""

    async def dedicate(self) -> Session:
        """A connection that nothing else uses, outside the caller's pool where the client allows it."""

    async def close(self) -> None:
        """Closes what was opened here, never what the caller passed in."""
