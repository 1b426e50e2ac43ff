"""What a query may ask for, the same on every store."""

from __future__ import annotations

from ...core.driver import InspectQuery
from ...errors import InvalidArgumentError

_MAX_PAGE_SIZE = 10_000
_MAX_NAME_LENGTH = 255


def check_inspect_query(query: InspectQuery) -> None:
    """Raises `InvalidArgumentError`. A text that no store can keep names no lock, so it is a mistake of the caller."""
    for argument, value in (("lock_name", query.lock_name), ("prefix", query.prefix), ("after", query.after)):
        if value is not None and not (isinstance(value, str) and is_storable(value)):
            raise InvalidArgumentError(argument, value, "a string without NUL and without lone surrogates")
        if value is not None and argument != "after" and len(value) > _MAX_NAME_LENGTH:
            raise InvalidArgumentError(argument, value, f"at most {_MAX_NAME_LENGTH} characters long")
    if query.lock_name == "":
        raise InvalidArgumentError("lock_name", query.lock_name, "a non-empty string")
    size = query.page_size
    if type(size) is not int or not 1 <= size <= _MAX_PAGE_SIZE:
        raise InvalidArgumentError("page_size", size, f"a whole number from 1 to {_MAX_PAGE_SIZE}")


def is_storable(text: str) -> bool:
    """Whether every store can keep the text. PostgreSQL has no NUL, and no store has lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text
