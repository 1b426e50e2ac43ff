"""Lists with a text that the encoding of the database has no character for."""

from __future__ import annotations

from typing import Awaitable, Callable, Sequence, TypeVar, Union

from ...errors import StoreError
from .errors import UNSTORABLE

T = TypeVar("T")
A = TypeVar("A")


async def without_unstorable(
    units: Sequence[Sequence[T]], send: Callable[[Sequence[T]], Awaitable[Sequence[Union[A, Exception]]]]
) -> Sequence[Union[A, Exception]]:
    """Sends a list. If the encoding of the database lacks a character of one of its texts, the server refuses all of it
    before it does anything. Then each half is sent by itself, and so on, so that only that entry fails.

    `units`: what cannot be divided: single entries, or groups of them.
    """
    entries = [entry for unit in units for entry in unit]
    try:
        return await send(entries)
    except StoreError as error:
        failure = error
    # The cause may be a copy without a code.
    if len(units) < 2 or f"({UNSTORABLE}: " not in str(failure):
        # The only entry of a call, or one part of a longer list, whose other entries have answers of their own.
        raise failure
    answers: list[Union[A, Exception]] = []
    middle = len(units) // 2
    for half in (units[:middle], units[middle:]):
        try:
            answers.extend(await without_unstorable(half, send))
        except StoreError as error:
            answers.extend(error for unit in half for _ in unit)
    return answers
