"""JSON that contains what other programs have written."""

from __future__ import annotations

import json
import re
from typing import Any

_MAX_DEPTH = 48
"""More than our own metadata has, and what a driver puts around it."""
_MAX_DIGITS = 400
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]')


def parse_foreign(text: str) -> Any:
    """A part that Python cannot read, because it is nested too deeply or is a number with too many digits, is None: one
    row of another program must not cost the others their answer. Raises `ValueError` for a text that is no JSON."""
    try:
        return json.loads(text)
    except (RecursionError, ValueError):
        return json.loads(_flattened(text), parse_int=_number)


def _number(digits: str) -> Any:
    return int(digits) if len(digits) <= _MAX_DIGITS else None


def _flattened(text: str) -> str:
    """With null in place of what is too deep."""
    parts: list[str] = []
    depth = kept_to = 0
    for token in _TOKEN.finditer(text):
        if token[0] in "[{":
            depth += 1
            if depth == _MAX_DEPTH + 1:
                parts.append(text[kept_to : token.start()])
        elif token[0] in "]}":
            if depth == _MAX_DEPTH + 1:
                parts.append("null")
                kept_to = token.end()
            depth -= 1
    return "".join([*parts, text[kept_to:]]) if parts else text
