"""What the driver needs of a server or a Cluster, for every kind of client."""

from __future__ import annotations

import asyncio
from typing import Any, Callable, Optional, Protocol, Sequence

from ...errors import HoldfastError
from .dial import Dial
from .failures import is_read_only, no_answer, store_error
from .subscriber import OnClosed, OnMessage, Subscriber, open_subscriber
from .thread_wire import ThreadWire
from .wire import AsyncWire, Command, Wire


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
    """One server."""

    def __init__(self, dial: Dial, timeout_seconds: float) -> None:
        self.id = dial.address
        self.place = dial.place
        self._dial = dial
        self._timeout_seconds = timeout_seconds
        self._wire: Wire
        if dial.is_for_loop:
            self._wire = AsyncWire(dial, timeout_seconds)
        else:
            self._wire = ThreadWire(dial, timeout_seconds)

    async def exchange(self, what: str, commands: Sequence[Command]) -> list[Any]:
        try:
            return await self._wire.exchange(commands)
        except HoldfastError:
            raise
        except Exception as error:
            failure = self._failure(what, error)
        raise failure

    async def command(self, what: str, *command: str) -> Any:
        """Raises also for an error that the server answered."""
        (reply,) = await self.exchange(what, [command])
        if isinstance(reply, Exception):
            raise store_error(what, reply, self.place)
        return reply

    async def subscriber(self, on_message: OnMessage, on_closed: OnClosed) -> Subscriber:
        """Opens a connection of its own."""
        try:
            return await open_subscriber(self._dial, on_message, on_closed, self._timeout_seconds)
        except Exception as error:
            failure = self._failure("subscribe", error)
        raise failure

    def _failure(self, what: str, error: Exception) -> HoldfastError:
        if isinstance(error, (TimeoutError, asyncio.TimeoutError)) or type(error).__name__ == "TimeoutError":
            return no_answer(what, self._timeout_seconds * 1_000, self.place)
        return store_error(what, error, self.place)

    def another(self, longer_seconds: float) -> Node:
        """The same server over another connection, for commands that block theirs."""
        return Node(self._dial, self._timeout_seconds + longer_seconds)

    def drop(self) -> None:
        self._wire.drop()

    async def close(self) -> None:
        await self._wire.close()


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
