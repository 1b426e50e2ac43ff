"""The statements have `$1`, as asyncpg takes it. psycopg and SQLAlchemy have placeholders of their own."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Sequence, TypeVar

T = TypeVar("T")
_NUMBERED = re.compile(r"\$(\d+)")


@lru_cache(maxsize=1_000)
def with_percent(text: str) -> tuple[str, tuple[int, ...]]:
    """The statement with `%s` for each value, and which value each of them stands for. A percent sign is doubled.

    No statement has a dollar sign in a literal: the schema's name is the only text in them that a caller chooses, and
    its dollar signs are left alone, because they are between double quotes.
    """
    parts = re.split(r'("(?:[^"]|"")*")', text.replace("%", "%%"))
    order: list[int] = []

    def placeholder(match: "re.Match[str]") -> str:
        order.append(int(match[1]) - 1)
        return "%s"

    sql = "".join(part if part.startswith('"') else _NUMBERED.sub(placeholder, part) for part in parts)
    return sql, tuple(order)


def arranged(order: Sequence[int], values: Sequence[T]) -> list[T]:
    return [values[index] for index in order]
