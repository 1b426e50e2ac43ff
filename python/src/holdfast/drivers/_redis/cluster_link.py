"""A Redis Cluster: which server has which slot, and what to do when a slot moves.

redis-py's own Cluster client sends a command again when its connection ends, so this has its own map of the slots.
From a client that you pass, only the settings and the first nodes are used.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence

from ...core.secrets import message_of
from ...core.tasks import ignore_outcome, start_task
from ...errors import HoldfastError, StoreError
from .connection import Command
from .dial import Dial
from .failures import store_error
from .keys import SLOTS, slot_counter, slot_of
from .link import Node

Address = tuple[str, int]
_MOST_REDIRECTIONS = 8
_TRY_AGAIN_SECONDS = 0.05


class ClusterLink:
    cluster = True

    def __init__(
        self,
        dial: Dial,
        seeds: Sequence[Address],
        timeout_seconds: float,
        remap: Optional[Callable[[Address], Address]] = None,
    ) -> None:
        self._dial = dial
        self._seeds = list(seeds)
        self._timeout_seconds = timeout_seconds
        self._remap = remap
        self._nodes: dict[Address, Node] = {}
        self._owners: list[Optional[Address]] = [None] * SLOTS
        # Those in `_owners`: to look through all slots would cost each listing a millisecond.
        self._masters: set[Address] = set()
        self._loading: Optional[asyncio.Task[None]] = None
        self._known = False
        self._leaving: set[asyncio.Future[None]] = set()
        self._closed = False
        # Takes a tenth of a second, once for each process: better here than in the first renewal.
        slot_counter(0)

    @property
    def place(self) -> str:
        masters = sorted(self._masters) or self._seeds
        return "redis+cluster://" + ",".join(self._dial.at(*each).address for each in masters)

    async def run(self, what: str, key: str, commands: Sequence[Command]) -> list[Any]:
        """A server that does not have the slot refuses the whole command, so it is safe to send it elsewhere."""
        slot = slot_of(key)
        node = await self._owner(slot)
        asking = False
        results: list[Any] = [None] * len(commands)
        left = list(range(len(commands)))
        for _ in range(_MOST_REDIRECTIONS):
            sent = [each for at in left for each in ([("ASKING",), commands[at]] if asking else [commands[at]])]
            replies = await self._exchange(node, what, sent)
            for at, reply in zip(left, replies[1::2] if asking else replies):
                results[at] = reply
            # Only those that were refused: what has run must not run again.
            left = [at for at in left if _redirection(results[at]) is not None]
            redirection = _redirection(results[left[0]]) if left else None
            if redirection is None:
                break
            asking = redirection.kind == "ASK"
            if redirection.kind == "TRYAGAIN":
                # The keys of the call are on two nodes at the moment.
                await asyncio.sleep(_TRY_AGAIN_SECONDS)
                node = await self._owner(slot)
                continue
            # An empty host means: the one that you used.
            node = self._node_at(self._mapped((redirection.host or _host_of(node), redirection.port)))
            if redirection.kind == "MOVED":
                self._owners[slot] = _address_of(node)
                self._masters.add(_address_of(node))
                # Other slots have probably moved, too. Nothing waits for this.
                self._load_in_background()
        return results

    async def _exchange(self, node: Node, what: str, commands: Sequence[Command]) -> list[Any]:
        try:
            return await node.exchange(what, commands)
        except HoldfastError:
            # After a failover, another server has its slots.
            self._load_in_background()
            raise

    async def nodes(self) -> Sequence[Node]:
        await self._load()
        return [self._node_at(address) for address in sorted(self._masters)]

    async def node_of_slot(self, slot: int) -> Node:
        # A read, because only the answer to a command shows that a slot has moved.
        await self.run("find a slot", slot_counter(slot), [("GET", slot_counter(slot))])
        return await self._owner(slot)

    def on_new_master(self, listener: Callable[[], None]) -> None:
        """The map of the slots is enough: a subscription that moves ends by itself."""

    async def close(self) -> None:
        self._closed = True
        loop, loading = asyncio.get_running_loop(), self._loading
        if loading is not None and loading.get_loop() is loop:
            # It could open another connection after the others are closed.
            loading.cancel()
            await asyncio.wait({loading}, timeout=1)
        await asyncio.gather(*(node.close() for node in self._nodes.values()))
        leaving = [each for each in self._leaving if each.get_loop() is loop]
        if leaving:
            await asyncio.wait(leaving, timeout=1)

    async def _owner(self, slot: int) -> Node:
        if not self._known:
            await self._load()
        owner = self._owners[slot]
        if owner is None:
            await self._load()
            owner = self._owners[slot]
        if owner is None:
            raise StoreError(f"the Cluster at {self.place} does not serve slot {slot} at the moment")
        return self._node_at(owner)

    def _node_at(self, address: Address) -> Node:
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = Node(self._dial.at(*address), self._timeout_seconds)
        return node

    def _mapped(self, address: Address) -> Address:
        return address if self._remap is None else self._remap(address)

    def _start_loading(self) -> asyncio.Task[None]:
        loop = asyncio.get_running_loop()
        if self._loading is None or self._loading.done() or self._loading.get_loop() is not loop:
            self._loading = start_task(self._read_map())
            self._loading.add_done_callback(ignore_outcome)
        return self._loading

    def _load_in_background(self) -> None:
        # A call that fails because of closing must not connect again.
        if not self._closed:
            self._start_loading()

    async def _load(self) -> None:
        if self._closed:
            raise StoreError(f"the connection to the Cluster at {self.place} was closed")
        loading = self._start_loading()
        try:
            # Shielded: several calls wait for one map.
            await asyncio.shield(loading)
        except asyncio.CancelledError:
            if self._closed and loading.cancelled():
                raise StoreError(f"the connection to the Cluster at {self.place} was closed") from None
            raise

    async def _read_map(self) -> None:
        failure: Optional[HoldfastError] = None
        for address in list(dict.fromkeys([*self._masters, *self._seeds])):
            node = self._node_at(address)
            try:
                (reply,) = await node.exchange("read the slots", [("CLUSTER", "SLOTS")])
            except HoldfastError as error:
                failure = failure or error
                continue
            if isinstance(reply, Exception):
                failure = store_error("read the slots", reply, node.place)
                continue
            if reply:
                self._take_map(reply, address)
                return
        raise failure or StoreError(f"the Cluster at {self.place} has no slots")

    def _take_map(self, reply: Sequence[Any], asked: Address) -> None:
        owners: list[Optional[Address]] = [None] * SLOTS
        masters: set[Address] = set()
        for first, last, master, *_ in reply:
            host = master[0].decode() if isinstance(master[0], bytes) else master[0]
            # An empty host means: the one that you used.
            address = self._mapped((host or asked[0], int(master[1])))
            masters.add(address)
            owners[int(first) : int(last) + 1] = [address] * (int(last) - int(first) + 1)
        self._owners, self._masters = owners, masters
        self._known = True
        for address in [each for each in self._nodes if each not in masters and each not in self._seeds]:
            # Not only dropped: the thread of a synchronous client would wait for commands for ever.
            leaving = start_task(self._nodes.pop(address).close())
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)


class _Redirection(NamedTuple):
    kind: str
    host: str
    port: int


def _redirection(reply: Any) -> Optional[_Redirection]:
    if not isinstance(reply, Exception):
        return None
    text = message_of(reply)
    match = re.match(r"(MOVED|ASK) \d+ (.*):(\d+)$", text)
    if match is not None:
        return _Redirection(match[1], match[2], int(match[3]))
    return _Redirection("TRYAGAIN", "", 0) if text.startswith("TRYAGAIN") else None


def _address_of(node: Node) -> Address:
    host, _, port = node.id.rpartition(":")
    return host.strip("[]"), int(port)


def _host_of(node: Node) -> str:
    return _address_of(node)[0]



def seeds_of(startup_nodes: Mapping[Any, Any]) -> list[Address]:
    return [(str(node.host), int(node.port)) for node in startup_nodes.values()]
