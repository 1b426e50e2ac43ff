"""Cuts a long list into several transactions."""

from __future__ import annotations

from itertools import groupby
from typing import Awaitable, Callable, Iterator, Sequence, TypeVar, Union

Request = TypeVar("Request")
Answer = TypeVar("Answer")

MAX_LIST_LENGTH = 200
"""During a transaction neither this process nor any other one does anything else with the file. With this many entries
that is a few milliseconds."""


async def in_parts(
    requests: Sequence[Request], transact: Callable[[Sequence[Request]], Awaitable[Sequence[Answer]]]
) -> list[Union[Answer, Exception]]:
    """Runs the parts one after the other, so that the entries are still taken in their order.

    A part that fails was rolled back, and its entries are answered with the error. The other parts were committed and
    keep their answers. Raises if every part fails.
    """
    if len(requests) <= MAX_LIST_LENGTH:
        return [*await transact(requests)]
    answers: list[Union[Answer, Exception]] = []
    failures: list[Exception] = []
    parts = list(_parts_of(requests))
    for part in parts:
        try:
            answers.extend(await transact(part))
        except Exception as error:
            failures.append(error)
            answers.extend([error] * len(part))
    if len(failures) == len(parts):
        raise failures[0]
    return answers


def _parts_of(requests: Sequence[Request]) -> Iterator[Sequence[Request]]:
    part: list[Request] = []
    for members in _together(requests):
        if part and len(part) + len(members) > MAX_LIST_LENGTH:
            yield part
            part = []
        part.extend(members)
    yield part


def _together(requests: Sequence[Request]) -> Iterator[list[Request]]:
    """Only claims have a group, which stays in one transaction. Any other request is cut anywhere."""
    for group, members in groupby(requests, key=lambda request: getattr(request, "group", None)):
        if group is None:
            for member in members:
                yield [member]
        else:
            yield list(members)
