"""Schemas of a test's own, and drivers on them."""

from __future__ import annotations

import secrets
from contextlib import asynccontextmanager
from typing import Any, AsyncIterator

import asyncpg


def schema_name() -> str:
    return f"py_{secrets.token_hex(6)}"


@asynccontextmanager
async def own_schema(url: str) -> AsyncIterator[str]:
    """A name for a schema, which is dropped afterwards if it was created."""
    name = schema_name()
    try:
        yield name
    finally:
        connection: Any = await asyncpg.connect(url)
        try:
            await connection.execute(f'DROP SCHEMA IF EXISTS "{name}" CASCADE')
        finally:
            await connection.close()
