"""Lists leases and waiters in pages.

It walks the key space with SCAN, one node after the other, and reads a bounded number of entries in one call, so it
never blocks a server. A lock with more entries continues on the next page.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from dataclasses import dataclass
from typing import Any, Optional, Sequence

from ...core.arguments import check_inspect_query
from ...core.driver import InspectPage, InspectQuery, LeaseRecord, WaiterRecord
from ...errors import InvalidArgumentError
from .failures import store_error
from .keys import is_own_key, lock_keys, plain_of_data, slot_of
from .link import Link, Node
from .records import SHARED, is_ours, json_text, read_lease, read_waiter, text_of, unexpected_reply
from .scripts import ScriptCall, protocol_script, run_scripts

_MAX_LOOKED_AT = 500
"""How many locks, leases and waiters one call may read. More would block the server for too long."""
_SCAN_COUNT = 250
_MAX_STEPS = 40
"""How many SCANs one page may take. In a large database a page may be short, and its cursor says where to go on."""

Place = tuple[str, str]
"""A lock, and where to continue reading its entries."""


@dataclass
class _Walk:
    """The cursor of a walk. It carries the locks that were found but did not fit on the page."""

    phase: str
    """Plain keys first. Then the data of locks without a plain key: for a moment, these have only waiters."""
    node: str
    cursor: str
    over: bool
    rest: list[Place]


async def inspect(link: Link, prefix: str, query: InspectQuery) -> InspectPage:
    check_inspect_query(query)
    wanted, lock_name, page_size = query.prefix or "", query.lock_name, query.page_size
    if query.after is not None:
        walk = _read_cursor(query.after)
    else:
        walk = _Walk("plain", "", "0", lock_name is not None, [] if lock_name is None else [(lock_name, "")])
    places = {
        name: begin
        for name, begin in walk.rest
        if name.startswith(wanted) and (lock_name is None or name == lock_name)
    }
    if not walk.over:
        nodes = sorted(await link.nodes(), key=lambda node: node.id)
        for _ in range(_MAX_STEPS):
            if len(places) >= page_size or walk.over:
                break
            for name in await _step(nodes, walk, prefix, wanted):
                places.setdefault(name, "")
    found = list(places.items())
    # Without a prefix, every string in the database would look like a lock of another client. Such a key is shown only
    # if the query names it.
    shows_others = prefix != "" or lock_name is not None
    leases, waiters, left = await _show(link, prefix, found[:page_size], shows_others)
    walk.rest = [*left, *found[page_size:]]
    return InspectPage(leases, waiters, None if not walk.rest and walk.over else _write_cursor(walk))


async def inspect_names(link: Link, prefix: str, names: Sequence[str]) -> InspectPage:
    """All leases and waiters of these locks, in as many calls as it takes."""
    leases: list[LeaseRecord] = []
    waiters: list[WaiterRecord] = []
    places: Sequence[Place] = [(name, "") for name in names]
    while places:
        more_leases, more_waiters, places = await _show(link, prefix, places, True)
        leases += more_leases
        waiters += more_waiters
    return InspectPage(leases, waiters)


async def _step(nodes: Sequence[Node], walk: _Walk, prefix: str, wanted: str) -> list[str]:
    """Runs one SCAN and advances the walk."""
    node = next((each for each in nodes if each.id >= walk.node), None)
    if node is None:
        walk.over = walk.phase == "data"
        walk.phase, walk.node, walk.cursor = "data", "", "0"
        return []
    if node.id != walk.node:
        walk.node, walk.cursor = node.id, "0"
    match = f"{_escaped(prefix + wanted)}*" if walk.phase == "plain" else "holdfast:{*:d*"
    cursor, found = await node.command("inspect", "SCAN", walk.cursor, "MATCH", match, "COUNT", str(_SCAN_COUNT))
    walk.cursor = text_of(cursor)
    if walk.cursor == "0":
        # The smallest text that sorts after the id of this node.
        walk.node = f"{node.id}\0"
    keys = [text_of(each) for each in found]
    plains = keys if walk.phase == "plain" else await _without_plain(node, keys)
    return [each[len(prefix) :] for each in plains if each.startswith(prefix + wanted) and not is_own_key(each)]


async def _without_plain(node: Node, keys: Sequence[str]) -> list[str]:
    """A lock whose plain key exists was found in the first phase."""
    plains = [plain for plain in map(plain_of_data, keys) if plain is not None]
    if not plains:
        return []
    exist = await node.exchange("inspect", [("EXISTS", plain) for plain in plains])
    return [plain for plain, count in zip(plains, exist) if count == 0]


async def _show(
    link: Link, prefix: str, places: Sequence[Place], shows_others: bool
) -> tuple[list[LeaseRecord], list[WaiterRecord], list[Place]]:
    """What one call for each slot returns of these locks, and what is left of them."""
    allowed = [place for place in places if not is_own_key(prefix + place[0])]
    by_slot: dict[int, list[Place]] = {}
    for place in allowed:
        of_slot = by_slot.setdefault(slot_of(prefix + place[0]) if link.cluster else 0, [])
        if len(of_slot) < _MAX_LOOKED_AT:
            of_slot.append(place)
    shown: dict[str, Sequence[Any]] = {}

    async def show(of_slot: Sequence[Place]) -> None:
        keys = [lock_keys(prefix, name) for name, _ in of_slot]
        all_keys = [*(k.plain for k in keys), *(k.data for k in keys), *(k.order for k in keys)]
        args = [str(len(of_slot)), str(_MAX_LOOKED_AT), *(begin for _, begin in of_slot)]
        (reply,) = await run_scripts(link, "inspect", protocol_script("inspect"), [ScriptCall(all_keys, args)])
        if isinstance(reply, Exception):
            raise store_error("inspect", reply, link.place)
        if not isinstance(reply, list) or not reply:
            raise unexpected_reply("inspect", reply)
        for (name, _), each in zip(of_slot, reply):
            shown[name] = each

    await asyncio.gather(*(show(of_slot) for of_slot in by_slot.values()))
    leases: list[LeaseRecord] = []
    waiters: list[WaiterRecord] = []
    left: list[Place] = []
    for name, begin in allowed:
        if name not in shown:
            left.append((name, begin))
            continue
        plain, end_ms, shared, queue, go_on = shown[name]
        leases += _leases(name, text_of(plain), float(end_ms), shared, shows_others)
        waiters += [
            read_waiter(name, text_of(queue[at]), text_of(queue[at + 1])) for at in range(0, len(queue), 2)
        ]
        if go_on:
            left.append((name, text_of(go_on)))
    return leases, waiters, left


def _leases(name: str, plain: str, end_ms: float, shared: Sequence[Any], shows_others: bool) -> list[LeaseRecord]:
    leases = [read_lease(name, text_of(shared[at]), float(shared[at + 1])) for at in range(0, len(shared), 2)]
    if end_ms == -2 or plain == SHARED or (not shows_others and not is_ours(plain)):
        return leases
    return [read_lease(name, plain, end_ms), *leases]


def _escaped(text: str) -> str:
    return re.sub(r"([\\*?\[\]^])", r"\\\1", text)


def _write_cursor(walk: _Walk) -> str:
    return base64.urlsafe_b64encode(json_text(walk.__dict__).encode()).decode()


def _read_cursor(after: str) -> _Walk:
    walk: Optional[_Walk] = None
    try:
        parts = json.loads(base64.urlsafe_b64decode(after.encode()))
        texts = [parts["phase"], parts["node"], parts["cursor"], *(text for place in parts["rest"] for text in place)]
        if all(isinstance(text, str) for text in texts):
            rest = [(name, begin) for name, begin in parts["rest"]]
            walk = _Walk(parts["phase"], parts["node"], parts["cursor"], bool(parts["over"]), rest)
    except (ValueError, TypeError, KeyError, AttributeError):
        pass
    if walk is None:
        raise InvalidArgumentError("after", after, "`next` of the page before")
    return walk
