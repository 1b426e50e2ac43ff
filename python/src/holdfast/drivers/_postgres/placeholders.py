"""The statements have `$1`, as asyncpg takes it. psycopg and SQLAlchemy have placeholders of their own."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Callable, Sequence, TypeVar

T = TypeVar("T")
_NUMBERED = re.compile(r"\$(\d+)")


@lru_cache(maxsize=1_000)
def with_percent(text: str) -> tuple[str, tuple[int, ...]]:
    """The statement with `%s` for each value, and which value each of them is for. A percent sign is doubled."""
    order: list[int] = []

    def placeholder(match: "re.Match[str]") -> str:
        order.append(int(match[1]) - 1)
        return "%s"

    return _replaced(text.replace("%", "%%"), placeholder), tuple(order)


@lru_cache(maxsize=1_000)
def with_names(text: str) -> str:
    """The statement for `sqlalchemy.text`, with `:p1` for the first value. `\\:` is a colon that begins none."""
    return _replaced(text.replace(":", "\\:"), lambda match: f":p{match[1]}")


def arranged(order: Sequence[int], values: Sequence[T]) -> list[T]:
    return [values[index] for index in order]


def _replaced(text: str, placeholder: Callable[["re.Match[str]"], str]) -> str:
    """No statement has a dollar sign in a literal. The schema's name is the only text in them that a caller chooses,
    and is left alone, because it is between double quotes."""
    parts = re.split(r'("(?:[^"]|"")*")', text)
    return "".join(part if part.startswith('"') else _NUMBERED.sub(placeholder, part) for part in parts)
