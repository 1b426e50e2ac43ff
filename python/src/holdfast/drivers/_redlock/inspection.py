"""The leases that a quorum of nodes has.

It finds the names by walking one node after the other. A lease that a quorum has is on one of the first n − quorum + 1
nodes, so the rest need no walk.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Optional, Sequence

from ...core.arguments import check_inspect_query
from ...core.driver import InspectPage, InspectQuery, LeaseRecord
from ...errors import InvalidArgumentError
from .._redis.records import json_text
from .node import VotingNode
from .proposals import agreed_record
from .quorum import Ask, NodeError, Nodes, Votes, quorum_error


@dataclass(frozen=True)
class _Walk:
    """The cursor of a walk."""

    at: int
    """The index of the node."""
    after: Optional[str] = None
    """`next` of the last page of the node."""
    last: Optional[str] = None
    """The last lock of that page."""


async def inspect_by_quorum(nodes: Nodes[VotingNode], quorum: int, query: InspectQuery) -> InspectPage:
    check_inspect_query(query)
    if query.lock_name is not None:
        return InspectPage(await _agreed_leases(nodes, quorum, [query.lock_name], 0), [])
    walk = _Walk(0) if query.after is None else _read_cursor(query.after)
    if not 0 <= walk.at < len(nodes.all):
        raise _not_ours(query.after)
    try:
        one = InspectQuery(prefix=query.prefix, after=walk.after, page_size=query.page_size)
        page = await nodes.all[walk.at].driver.inspect(one)
    except InvalidArgumentError:
        raise
    except Exception as error:
        # If this node is down, its leases are found on another node, unless too many are down.
        nodes.failed(NodeError(nodes.name_of(nodes.all[walk.at]), error))
        page = InspectPage([], [])
    # A lock with many leases continues on the next page of the node. All of it was returned with the first page.
    found = [name for name in dict.fromkeys(lease.lock_name for lease in page.leases) if name != walk.last]
    leases = await _agreed_leases(nodes, quorum, found, walk.at) if found else []
    if page.next is not None:
        last = page.leases[-1].lock_name if page.leases else walk.last
        return InspectPage(leases, [], _write_cursor(_Walk(walk.at, page.next, last)))
    is_last = walk.at >= len(nodes.all) - quorum
    return InspectPage(leases, [], None if is_last else _write_cursor(_Walk(walk.at + 1)))


async def _agreed_leases(
    nodes: Nodes[VotingNode], quorum: int, lock_names: Sequence[str], walked: int
) -> list[LeaseRecord]:
    """`walked`: how many nodes were walked before. Their leases have been returned already."""
    seen: dict[tuple[str, str, int], list[LeaseRecord]] = {}
    first_of: dict[tuple[str, str, int], int] = {}
    failed: list[NodeError] = []

    async def call(node: VotingNode) -> Sequence[bool]:
        for lease in (await node.inspect_names(lock_names)).leases:
            key = (lease.lock_name, lease.claim_id, lease.fencing_token)
            seen.setdefault(key, []).append(agreed_record(lease))
            first_of[key] = min(first_of.get(key, len(nodes.all)), nodes.all.index(node))
        return [True]

    def decide(votes: Votes[bool], entry: int) -> Optional[bool]:
        # Waits for every node until its timeout. If the first quorum decided, two calls could return different leases.
        if votes.pending > 0:
            return None
        failed.extend(votes.errors)
        return True

    await nodes.ask(Ask(1, call, decide))
    if len(failed) > len(nodes.all) - quorum:
        raise quorum_error("inspect", quorum, len(nodes.all), failed)
    # A lease ends when fewer than a quorum of nodes have it.
    return [
        sorted(records, key=lambda record: record.expires_at_ms or 0, reverse=True)[quorum - 1]
        for key, records in seen.items()
        if len(records) >= quorum and first_of[key] >= walked
    ]


def _write_cursor(walk: _Walk) -> str:
    return base64.urlsafe_b64encode(json_text(walk.__dict__).encode()).decode()


def _read_cursor(text: str) -> _Walk:
    walk: Optional[_Walk] = None
    try:
        parts = json.loads(base64.urlsafe_b64decode(text.encode()))
        texts = (parts["after"], parts["last"])
        if type(parts["at"]) is int and all(each is None or isinstance(each, str) for each in texts):
            walk = _Walk(parts["at"], *texts)
    except (ValueError, TypeError, KeyError):
        pass
    if walk is None:
        raise _not_ours(text)
    return walk


def _not_ours(after: Optional[str]) -> InvalidArgumentError:
    return InvalidArgumentError("after", after, "`next` of the page before")
