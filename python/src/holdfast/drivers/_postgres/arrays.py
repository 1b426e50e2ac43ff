"""PostgreSQL array literals as text, so that every client sends and receives lists in the same way. None is sent as the
empty text or as 0: `statements.sql` says what that means."""

from __future__ import annotations

from typing import Iterable, Optional, Union


def text_array(values: Iterable[Optional[str]]) -> str:
    return "{" + ",".join(_quoted(value or "") for value in values) + "}"


def number_array(values: Iterable[Union[int, float, None]]) -> str:
    return "{" + ",".join(repr(value or 0) for value in values) + "}"


def boolean_array(values: Iterable[bool]) -> str:
    return "{" + ",".join("t" if value else "f" for value in values) + "}"


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def parse_floats(text: Optional[str]) -> list[Optional[float]]:
    return [None if element == "NULL" else float(element) for element in _elements(text)]


def parse_booleans(text: Optional[str]) -> list[Optional[bool]]:
    return [None if element == "NULL" else element == "t" for element in _elements(text)]


def _elements(text: Optional[str]) -> list[str]:
    return [] if text is None or text == "{}" else text[1:-1].split(",")
