"""Lua and SQL come from protocol/, with the same text as in the TypeScript client."""

from __future__ import annotations

import json

import pytest

from holdfast import _protocol
from support.node_process import REPOSITORY


@pytest.mark.parametrize("script", ["redis/leases.lua", "redis/consume.lua"])
def test_a_script_has_the_same_text_as_in_the_typescript_client(script):
    built = (REPOSITORY / "dist/chunks/redis.js").read_text(encoding="utf-8")
    assert json.dumps(_protocol.read(script), ensure_ascii=False) in built


def test_migrations_keep_their_comments():
    assert _protocol.read("postgres/schema.sql").startswith("--")


def test_statements_are_found_by_their_names():
    statements = _protocol.statements("sqlite/statements.sql")
    assert statements["format"] == "SELECT version FROM holdfast_format WHERE id = 1"
    assert all(text and "-- name" not in text for text in statements.values())


def test_statements_cannot_be_changed():
    with pytest.raises(TypeError):
        _protocol.statements("sqlite/statements.sql")["format"] = ""  # type: ignore[index]


def test_a_file_that_does_not_exist_is_an_error():
    with pytest.raises(FileNotFoundError):
        _protocol.read("redis/none.lua")
