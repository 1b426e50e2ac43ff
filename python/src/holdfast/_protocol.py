"""Reads the files of `protocol/`: the only source of Lua and SQL, shared with the TypeScript client.

In the repository, `holdfast/protocol` is a link to that folder. A wheel and an sdist contain the files themselves.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources import files
from types import MappingProxyType
from typing import Mapping

__all__ = ["read", "statements"]

_COMMENT_LINE = re.compile(r"^[ \t]*--(?! name: ).*\n", re.MULTILINE)
_MIGRATION = re.compile(r"postgres/(?:schema|functions|fence)\.sql$")
_NAME = re.compile(r"^-- name: ", re.MULTILINE)


@lru_cache(maxsize=None)
def read(path: str) -> str:
    """The text of a file, such as `redis/leases.lua`.

    Lua and SQL come without lines that are only comments, which are half of their text. What `holdfast migrate --print`
    shows keeps them. The
    TypeScript client does the same, so a script has the same text and the same SHA-1 in both languages, and a server
    has to load it only once.
    """
    file = files("holdfast")
    for part in ("protocol", *path.split("/")):
        file = file / part
    text = file.read_text(encoding="utf-8")
    is_code = path.endswith((".lua", ".sql")) and _MIGRATION.match(path) is None
    return _COMMENT_LINE.sub("", text) if is_code else text


@lru_cache(maxsize=None)
def statements(path: str) -> Mapping[str, str]:
    """The statements of a SQL file, such as `sqlite/statements.sql`. Each has a line `-- name: …` above it."""
    parts = (part.partition("\n") for part in _NAME.split(read(path))[1:])
    return MappingProxyType({name.strip(): text.strip() for name, _, text in parts})
