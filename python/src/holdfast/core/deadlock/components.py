"""Strongly connected components of a graph. Everything here takes time in proportion to the number of edges, and does
not recurse: a path of ten thousand nodes must not exceed Python's recursion limit."""

from __future__ import annotations

from typing import Callable, Iterable, Iterator, Sequence, TypeVar

Key = TypeVar("Key")
T = TypeVar("T")
Edge = tuple[str, str]
"""From, to."""


def component_numbers(edges: Sequence[Edge]) -> dict[str, int]:
    """Numbers the components (Kosaraju's algorithm): two nodes have the same number exactly if each can be reached from
    the other."""
    outgoing = {start: [to for _, to in found] for start, found in group_by(edges, lambda edge: edge[0]).items()}
    incoming = {to: [start for start, _ in found] for to, found in group_by(edges, lambda edge: edge[1]).items()}
    finished: list[str] = []
    visited: set[str] = set()
    for start, _ in edges:
        finished.extend(_behind(start, outgoing, visited))
    numbers: dict[str, int] = {}
    visited = set()
    for number, start in enumerate(reversed(finished)):
        for node in _behind(start, incoming, visited):
            numbers[node] = number
    return numbers


def _behind(start: str, following: dict[str, list[str]], visited: set[str]) -> Iterator[str]:
    """Depth-first search. Each node that can be reached and was not visited before, after all nodes behind it."""
    if start in visited:
        return
    visited.add(start)
    path = [(start, iter(following.get(start, ())))]
    while path:
        node, rest = path[-1]
        for each in rest:
            if each not in visited:
                visited.add(each)
                path.append((each, iter(following.get(each, ()))))
                break
        else:
            path.pop()
            yield node


def group_by(items: Iterable[T], key_of: Callable[[T], Key]) -> dict[Key, list[T]]:
    groups: dict[Key, list[T]] = {}
    for each in items:
        groups.setdefault(key_of(each), []).append(each)
    return groups
