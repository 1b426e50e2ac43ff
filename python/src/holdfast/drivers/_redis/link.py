"""What the driver needs of a server or a Cluster, for every kind of client."""

from __future__ import annotations

import time
from typing import Any, Callable, Optional, Protocol, Sequence

from ...core.limits import CALL_TIMEOUT_MS, MAX_UNANSWERED_COMMANDS
from ...errors import HoldfastError, StoreError
from .connection import Command, Subscriber, opened
from .dial import Dial
from .failures import is_read_only, no_answer, store_error
from .wire import Wire


class Link(Protocol):
    @property
    def cluster(self) -> bool: ...

    @property
    def place(self) -> str:
        """A URL without user name and password."""

    async def run(self, what: str, key: str, commands: Sequence[Command]) -> list[Any]:
        """Sends commands to the server that has `key`, in their order. `what` names the purpose in errors. An error
        that the server answered is returned in its place. Raises `StoreError` if the outcome is unknown."""

    async def nodes(self) -> Sequence[Node]:
        """The masters: one, or on a Cluster one for each shard."""

    async def node_of_slot(self, slot: int) -> Node:
        """The master that has this slot now."""

    def on_new_master(self, listener: Callable[[], None]) -> None:
        """Called when a server accepts writes again after a replica has answered."""

    async def close(self) -> None: ...


class Node:
    """One server.

    Each command keeps memory until it is answered or has timed out, with the call that may have timed out before. A
    server that has let commands time out gets at most `MAX_UNANSWERED_COMMANDS` at a time until it answers one. A
    command beyond that fails at once. That is an outage: claims go on waiting, and leases are renewed as soon as the
    server answers.
    """

    def __init__(self, dial: Dial, timeout_seconds: float) -> None:
        self.id = dial.address
        self.place = dial.place
        self._dial = dial
        self._timeout_seconds = timeout_seconds
        self._wire = Wire(dial, timeout_seconds)
        self._unanswered = 0
        # On the monotonic clock. After that, it has not been asked for so long that it may be well again.
        self._stalled_until = 0.0

    async def exchange(self, what: str, commands: Sequence[Command]) -> list[Any]:
        if self._unanswered >= MAX_UNANSWERED_COMMANDS and time.monotonic() < self._stalled_until:
            message = f"redis at {self.place} has not answered {self._unanswered} commands"
            raise StoreError(f"{message}. Is the server or the network hanging?")
        self._unanswered += len(commands)
        try:
            replies = await self._wire.exchange(commands)
            self._stalled_until = 0.0
            return replies
        except HoldfastError:
            raise
        except Exception as error:
            if isinstance(error, TimeoutError):
                self._stalled_until = time.monotonic() + _STALLED_SECONDS
            failure = self._failure(what, error)
        finally:
            self._unanswered -= len(commands)
        raise failure

    async def command(self, what: str, *command: str) -> Any:
        """Raises also for an error that the server answered."""
        (reply,) = await self.exchange(what, [command])
        if isinstance(reply, Exception):
            raise store_error(what, reply, self.place)
        return reply

    async def subscriber(self, on_message: Callable[[str, str], None]) -> Subscriber:
        """Opens a connection of its own."""
        try:
            return await opened(Subscriber(self._timeout_seconds, on_message), self._dial)
        except Exception as error:
            failure = self._failure("subscribe", error)
        raise failure

    def _failure(self, what: str, error: Exception) -> HoldfastError:
        if isinstance(error, TimeoutError):
            return no_answer(what, self._timeout_seconds * 1_000, self.place)
        return store_error(what, error, self.place)

    def another(self, longer_seconds: float) -> Node:
        """The same server over another connection, for commands that block theirs."""
        return Node(self._dial, self._timeout_seconds + longer_seconds)

    def drop(self) -> None:
        self._wire.drop()

    async def close(self) -> None:
        await self._wire.close()


_STALLED_SECONDS = CALL_TIMEOUT_MS / 1_000


class ServerLink:
    """One server, or the master behind Sentinel.

    Behind one address, a master can be demoted and keep its connections open. Every write over them fails, although a
    new connection would reach the new master. So after such an answer the next command connects anew.
    """

    cluster = False

    def __init__(self, dial: Dial, timeout_seconds: float) -> None:
        self.place = dial.place
        self._node = Node(dial, timeout_seconds)
        self._listeners: list[Callable[[], None]] = []
        self._refused = False
        self._waiting_node: Optional[Node] = None

    async def run(self, what: str, key: str, commands: Sequence[Command]) -> list[Any]:
        replies = await self._node.exchange(what, commands)
        self._watch(replies)
        return replies

    async def run_blocking(self, what: str, commands: Sequence[Command], seconds: float) -> list[Any]:
        """For WAIT, which keeps everything else on its connection waiting."""
        if self._waiting_node is None:
            self._waiting_node = self._node.another(seconds)
        replies = await self._waiting_node.exchange(what, commands)
        self._watch(replies)
        return replies

    def _watch(self, replies: Sequence[Any]) -> None:
        if any(isinstance(each, Exception) and is_read_only(each) for each in replies):
            self._refused = True
            self._node.drop()
            if self._waiting_node is not None:
                self._waiting_node.drop()
        elif self._refused and not any(isinstance(each, Exception) for each in replies):
            self._refused = False
            for listener in list(self._listeners):
                listener()

    def on_new_master(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    async def nodes(self) -> Sequence[Node]:
        return [self._node]

    async def node_of_slot(self, slot: int) -> Node:
        return self._node

    async def close(self) -> None:
        await self._node.close()
        if self._waiting_node is not None:
            await self._waiting_node.close()
