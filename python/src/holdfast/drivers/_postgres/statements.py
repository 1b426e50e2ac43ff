"""The statements of `protocol/postgres/statements.sql` for one schema."""

from __future__ import annotations

from functools import lru_cache
from types import MappingProxyType
from typing import Mapping

from ..._protocol import statements
from ...errors import InvalidArgumentError

_MAX_NAME_BYTES = 63


@lru_cache(maxsize=100)
def statements_for(schema: str) -> Mapping[str, str]:
    """By name. The quoted name of the schema is all that is ever inserted into them."""
    quoted = quote_identifier(check_schema(schema))
    sql = statements("postgres/statements.sql")
    return MappingProxyType({name: text.replace(':"schema"', quoted) for name, text in sql.items()})


def check_schema(schema: object) -> str:
    """PostgreSQL would truncate a longer name, and then not find the schema under the name that was asked for."""
    rule = f"the name of a schema: 1 to {_MAX_NAME_BYTES} bytes, without NUL and without lone surrogates"
    if not isinstance(schema, str) or schema == "" or "\0" in schema:
        raise InvalidArgumentError("schema", schema, rule)
    try:
        size = len(schema.encode("utf-8"))
    except UnicodeEncodeError:
        size = _MAX_NAME_BYTES + 1
    if size > _MAX_NAME_BYTES:
        raise InvalidArgumentError("schema", schema, rule)
    return schema


def quote_identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
