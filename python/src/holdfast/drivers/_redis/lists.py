"""Sends a list of requests in as few calls as possible."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Awaitable, Callable, Generic, Optional, Protocol, Sequence, TypeVar, Union

from .failures import entry_error, is_forbidden, store_error
from .keys import COUNTER, lock_keys, own_key_error, slot_counter, slot_of
from .link import Link
from .records import unexpected_reply
from .scripts import Script, ScriptCall, protocol_script, run_scripts

MAX_ENTRIES = 128
"""How many entries one script may have, so that a long list does not block the server for long."""


class Named(Protocol):
    @property
    def lock_name(self) -> str: ...


R = TypeVar("R", bound=Named)
A = TypeVar("A")
Answers = Sequence[Union[A, Exception]]


@dataclass(frozen=True)
class Part(Generic[R]):
    """What goes to a server together: lists of one script each, one after the other."""

    slot: int
    """The slot of all keys on a Cluster. Otherwise 0."""
    chunks: Sequence[Sequence[R]]


@dataclass(frozen=True)
class Lists:
    """Which server keeps the leases, and under which keys."""

    link: Link
    prefix: str
    timeout_ms: float
    by_slot: bool
    """One call for each slot, with the slot's own token counter. A Cluster needs it."""

    async def send(
        self, requests: Sequence[R], send: Callable[[Part[R]], Awaitable[Sequence[Answers[A]]]]
    ) -> list[Union[A, Exception]]:
        """Calls `send` for each part, all in flight together, and returns the answers in the order of the list. If a
        call fails, only its own entries are errors."""
        if len(requests) == 1:
            return list(await self._send_one(requests[0], send))
        answers: list[Any] = [own_key_error(self.prefix, request.lock_name) for request in requests]
        fail_groups(requests, answers)
        by_slot: dict[int, list[int]] = {}
        for at, request in enumerate(requests):
            if answers[at] is None:
                slot = slot_of(self.prefix + request.lock_name) if self.by_slot else 0
                by_slot.setdefault(slot, []).append(at)

        async def send_slot(slot: int, indexes: Sequence[int]) -> None:
            chunks = _chunks(requests, indexes)
            for chunk, replies in zip(chunks, await self._send_part(requests, slot, chunks, send)):
                for at, reply in zip(chunk, replies):
                    answers[at] = reply

        if len(by_slot) == 1:
            for slot, indexes in by_slot.items():
                await send_slot(slot, indexes)
        else:
            await asyncio.gather(*(send_slot(slot, indexes) for slot, indexes in by_slot.items()))
        return answers

    async def _send_one(
        self, request: R, send: Callable[[Part[R]], Awaitable[Sequence[Answers[A]]]]
    ) -> Answers[A]:
        """The usual case: it takes half of the time of a longer list."""
        error = own_key_error(self.prefix, request.lock_name)
        if error is not None:
            return [error]
        slot = slot_of(self.prefix + request.lock_name) if self.by_slot else 0
        try:
            (answers,) = await send(Part(slot, [[request]]))
        except Exception as error:
            return [error]
        return answers

    async def _send_part(
        self,
        requests: Sequence[R],
        slot: int,
        chunks: Sequence[Sequence[int]],
        send: Callable[[Part[R]], Awaitable[Sequence[Answers[A]]]],
    ) -> list[Answers[A]]:
        part = Part(slot, [[requests[at] for at in chunk] for chunk in chunks])
        try:
            answers = list(await send(part))
        except Exception as error:
            return [[error] * len(chunk) for chunk in chunks]
        for at, chunk in enumerate(chunks):
            units = _units(requests, chunk)
            # If the user has no right to one of the keys, the server refuses the call before it runs anything. One such
            # name must not cost the others their answer, so each is then sent alone. A group stays together.
            if len(units) > 1 and all(_was_forbidden(answer) for answer in answers[at]):
                alone = await asyncio.gather(*(self._send_part(requests, slot, [unit], send) for unit in units))
                answers[at] = [answer for (each,) in alone for answer in each]
        return answers

    async def run_leases(
        self,
        operation: str,
        part: Part[R],
        args: Sequence[Sequence[str]],
        channel: str = "",
        text: str = "",
        run: Optional[Callable[[Script, Sequence[ScriptCall]], Awaitable[list[Any]]]] = None,
    ) -> list[Union[LeasesReply, Exception]]:
        """Runs leases.lua for each chunk of a part. `args` has the script's arguments from the fourth on, for each."""
        counter = slot_counter(part.slot) if self.by_slot else COUNTER
        calls = []
        for chunk, chunk_args in zip(part.chunks, args):
            keys = [lock_keys(self.prefix, request.lock_name) for request in chunk]
            all_keys = [counter, *(k.plain for k in keys), *(k.data for k in keys), *(k.order for k in keys)]
            calls.append(ScriptCall(all_keys, [operation, channel, text, *chunk_args]))
        script = protocol_script("leases")
        if run is None:
            replies = await run_scripts(self.link, operation, script, calls)
        else:
            replies = await run(script, calls)
        return [
            store_error(operation, reply, self.link.place)
            if isinstance(reply, Exception)
            else _read_reply(operation, len(chunk), reply, self.link.place)
            for chunk, reply in zip(part.chunks, replies)
        ]


@dataclass(frozen=True)
class LeasesReply:
    now_ms: float
    answers: list[Any]


def _read_reply(operation: str, count: int, reply: Any, place: str) -> Union[LeasesReply, Exception]:
    """Expands the short reply "yes to all" to one answer for each entry. An entry that failed alone is an error."""
    if not isinstance(reply, list) or len(reply) < 2 or type(reply[0]) is not int:
        return unexpected_reply(operation, reply)
    now_ms = reply[0]
    if now_ms < 0 or (operation == "acquire" and now_ms == 0):
        return unexpected_reply(operation, reply)
    if count > 1 and reply[1] == b"g" and len(reply) == 3 and type(reply[2]) is int:
        if operation == "acquire":
            return LeasesReply(now_ms, [reply[2] + at for at in range(count)])
        return LeasesReply(now_ms, [1] * count)
    if len(reply) != 1 + count:
        return unexpected_reply(operation, reply)
    return LeasesReply(now_ms, [entry_error(operation, answer, place) or answer for answer in reply[1:]])


def _group_of(request: object) -> Optional[str]:
    return getattr(request, "group", None)


def _units(requests: Sequence[R], indexes: Sequence[int]) -> list[list[int]]:
    """The indexes one by one, those of a group together."""
    units: list[list[int]] = []
    for at in indexes:
        group = _group_of(requests[at])
        if group is not None and units and _group_of(requests[units[-1][-1]]) == group:
            units[-1].append(at)
        else:
            units.append([at])
    return units


def _chunks(requests: Sequence[R], indexes: Sequence[int]) -> list[list[int]]:
    chunks: list[list[int]] = []
    for unit in _units(requests, indexes):
        if chunks and len(chunks[-1]) + len(unit) <= MAX_ENTRIES:
            chunks[-1].extend(unit)
        else:
            chunks.append(list(unit))
    return chunks


def fail_groups(requests: Sequence[R], answers: list[Any]) -> None:
    """An error for one member of a group is an error for all of its members."""
    failed = {}
    for request, answer in zip(requests, answers):
        group = _group_of(request)
        if group is not None and isinstance(answer, Exception):
            failed[group] = answer
    for at, request in enumerate(requests):
        group = _group_of(request)
        if group in failed:
            answers[at] = failed[group]


def _was_forbidden(answer: object) -> bool:
    return isinstance(answer, Exception) and is_forbidden(answer)
