"""What the driver needs of a client: connections that nothing else uses. Every statement has a deadline."""

from __future__ import annotations

import asyncio
from typing import Any, Awaitable, Callable, List, Mapping, Optional, Protocol, Sequence, Set, TypeVar

from ...core.tasks import start_task
from ...errors import StoreError
from . import deadlines

Row = Mapping[str, Any]
T = TypeVar("T")

BUSY_POLL_SECONDS = 0.005


class Events(Protocol):
    def on_end(self, cause: BaseException) -> None:
        """Called once when the connection has ended, unless `end` was called before."""

    def undo(self) -> str:
        """SQL that `end` runs on a connection of the caller, which stays open, to undo what was done on it."""


class NoEvents:
    def on_end(self, cause: BaseException) -> None:
        pass

    def undo(self) -> str:
        return ""


class Connection(Protocol):
    @property
    def is_callers(self) -> bool:
        """Whether the connection is the caller's own and stays open after `end`."""

    @property
    def server_pid(self) -> Optional[str]:
        """The process id that the server, or a pooler in between, sent at the start of the connection."""

    @property
    def is_in_transaction(self) -> bool:
        """Whether the caller has begun a transaction on it."""

    async def query(self, text: str, values: Sequence[str] = (), *, waits: bool = False) -> Sequence[Row]:
        """Sends one statement. One that `waits` for a lock has no deadline."""

    async def script(self, text: str) -> None:
        """Sends several statements at once, without values."""

    async def end(self) -> None:
        """Closes the connection, or undoes what was done on one of the caller."""


class Connections(Protocol):
    @property
    def place(self) -> Optional[str]:
        """The database, as errors name it: a URL without its login."""

    @property
    def is_callers(self) -> bool:
        """There is only one connection, the caller's own."""

    async def dedicate(self, events: Events) -> Connection: ...

    async def close(self) -> None:
        """Frees what was opened here, never what the caller passed in."""


class NoAnswerError(StoreError):
    """The statement was sent, and may have been executed. The connection cannot be used any more."""


class NotSentError(StoreError):
    """Nothing was sent on the caller's connection, so nothing has changed."""


def no_answer() -> NoAnswerError:
    return NoAnswerError(f"PostgreSQL did not answer within {deadlines.QUERY_SECONDS:g} s")


def busy() -> NotSentError:
    return NotSentError(
        "the connection that was passed to the postgres-advisory driver was busy with statements of your own for "
        f"{deadlines.QUERY_SECONDS:g} s. Give the driver a connection of its own, or a pool"
    )


async def settles_within(seconds: float, work: Awaitable[Any]) -> bool:
    """Whether the work ends within this time, successful or not. It is never cancelled."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(ignore_outcome)
    done, _ = await asyncio.wait({task}, timeout=seconds)
    return bool(done)


def ignore_outcome(task: "asyncio.Future[Any]") -> None:
    """Otherwise asyncio would report an error that no caller has asked for."""
    if not task.cancelled():
        task.exception()


class Background:
    """Tasks that run beside the calls. The event loop keeps only weak references to tasks."""

    def __init__(self) -> None:
        self._tasks: Set["asyncio.Task[Any]"] = set()

    def start(self, work: Awaitable[Any]) -> "asyncio.Task[Any]":
        async def run() -> Any:
            return await work

        task = start_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(ignore_outcome)
        return task


def seconds_for(waits: bool) -> Optional[float]:
    return None if waits else deadlines.QUERY_SECONDS


async def until_free(is_busy: Callable[[], bool]) -> None:
    """Waits until the caller's code does not use its connection."""
    loop = asyncio.get_running_loop()
    until = loop.time() + deadlines.QUERY_SECONDS
    while is_busy():
        if loop.time() > until:
            raise busy()
        await asyncio.sleep(BUSY_POLL_SECONDS)


def rows_of(records: Sequence[Any]) -> List[Row]:
    return [dict(record) for record in records]
