"""Keeps leases in the memory of this process, for tests and for services that run as one process.

It is also the reference for every other driver, so it is written to be read.
"""

from __future__ import annotations

import re
from typing import Callable, Optional, Sequence, TypeVar, Union
from urllib.parse import unquote

from ..core.arguments import is_storable
from ..core.driver import (
    Capabilities,
    Claim,
    DriverListener,
    Grant,
    InspectPage,
    InspectQuery,
    LeaseRef,
    RateAnswer,
    RateRequest,
    Refusal,
    RenewAnswer,
    Renewal,
    StopListening,
)
from ..core.secrets import redacted_url
from ..errors import ClosedError, InvalidArgumentError
from ._memory.store import MemoryStore
from ._shared.groups import in_groups

__all__ = ["CAPABILITIES", "MemoryDriver", "MemoryStore", "memory_driver", "open_memory"]

CAPABILITIES = Capabilities(
    expiry="ttl",
    scope="process",
    fencing=True,
    shared=True,
    limit=True,
    queue=True,
    wake=True,
    metadata=True,
    rate=True,
    force="claim",
    groups=True,
)

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class MemoryDriver:
    """Drivers on one store exclude each other. Each list is one step: nothing else runs in between."""

    name = "memory"
    place: Optional[str] = None
    capabilities = CAPABILITIES
    longest_ttl_ms: Optional[float] = None

    def __init__(self, store: Optional[MemoryStore] = None) -> None:
        self.store = MemoryStore() if store is None else store
        self._closed = False
        self._listeners: set[DriverListener] = set()

    def __repr__(self) -> str:
        return f"<MemoryDriver on memory {id(self.store):#x}>"

    async def acquire(self, claims: Sequence[Claim]) -> Sequence[Union[Grant, Refusal, Exception]]:
        self._assert_open()
        answers: list[Union[Grant, Refusal, Exception]] = []
        for members in in_groups(claims):
            if members[0].group is None:
                answers.append(self.store.acquire(members[0]))
            else:
                answers.extend(self.store.acquire_group(members))
        return answers

    async def renew(self, renewals: Sequence[Renewal]) -> Sequence[Union[RenewAnswer, Exception]]:
        return self._each(renewals, self.store.renew)

    async def release(self, leases: Sequence[LeaseRef]) -> Sequence[Union[bool, Exception]]:
        return self._each(leases, self.store.release)

    async def consume(self, requests: Sequence[RateRequest]) -> Sequence[Union[RateAnswer, Exception]]:
        return self._each(requests, self.store.consume)

    async def inspect(self, query: InspectQuery) -> InspectPage:
        self._assert_open()
        return self.store.inspect(query)

    async def listen(self, listener: DriverListener) -> StopListening:
        self._assert_open()
        self._listeners.add(listener)
        self.store.listeners.append(listener)

        async def stop() -> None:
            self._listeners.discard(listener)
            if listener in self.store.listeners:
                self.store.listeners.remove(listener)

        return stop

    async def close(self) -> None:
        self._closed = True
        for listener in self._listeners:
            if listener in self.store.listeners:
                self.store.listeners.remove(listener)
        self._listeners.clear()

    def _each(self, requests: Sequence[Request], step: Callable[[Request], Answer]) -> list[Answer]:
        self._assert_open()
        return [step(request) for request in requests]

    def _assert_open(self) -> None:
        if self._closed:
            raise ClosedError("the memory driver is closed")


def memory_driver(store: Optional[MemoryStore] = None) -> MemoryDriver:
    """A driver on a new store, or on one that it shares with other drivers."""
    return MemoryDriver(store)


_named: dict[str, MemoryStore] = {}


async def open_memory(url: str) -> MemoryDriver:
    """`memory:` or `memory:name`. Within a process, the same name is the same store."""
    return MemoryDriver(_named.setdefault(memory_name(url), MemoryStore()))


def memory_name(url: str) -> str:
    """The name in `memory:name`. Percent-encoding is undone once, as in every other URL."""
    if re.search("[\0-\x1f\x7f]", url) or not is_storable(url):
        raise InvalidArgumentError("url", redacted_url(url), "without control characters and lone surrogates")
    text = url[len("memory:") :]
    if text.startswith("//") or re.search("[?#]", text):
        raise InvalidArgumentError("url", redacted_url(url), "memory: or memory:name, without // and parameters")
    if re.search("%(?![0-9A-Fa-f]{2})", text):
        raise InvalidArgumentError("url name", "…", "percent-encoded UTF-8: a percent sign itself is written %25")
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise InvalidArgumentError(
            "url name", "…", "percent-encoded UTF-8: a percent sign itself is written %25"
        ) from None
