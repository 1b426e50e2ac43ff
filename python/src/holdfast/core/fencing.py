"""What every fencing guard has in common: which tokens and resources it accepts."""

from __future__ import annotations

from typing import Awaitable, Optional, Protocol, Union

from ..errors import InvalidArgumentError
from .arguments import is_storable, text_of
from .limits import MAX_SAFE_INTEGER


class HasFencingToken(Protocol):
    """A lease, a leader's term, a once-only run."""

    @property
    def fencing_token(self) -> int: ...


Token = Union[int, HasFencingToken]
"""A fencing token, or an object that has one."""


class FencingGuard(Protocol):
    """Protects a resource against a holder that has lost its lock without noticing it.

    The guard remembers the largest fencing token of each resource and refuses smaller ones. Implementations differ in
    where they store it.
    """

    def accept(self, resource: str, token: Token) -> Optional[Awaitable[None]]:
        """Accepts the token if no larger one has been seen for `resource`. Raises `StaleTokenError` otherwise.

        Call it before the first read on which a write depends. If the token is presented only with the write, an older
        holder can still write between that read and the write.
        """


def token_of(token: Token) -> int:
    """Raises `InvalidArgumentError` for anything that is neither a fencing token nor has one."""
    value: object = getattr(token, "fencing_token", token)
    # A bool is an int for Python, and True would be the smallest token there is.
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_SAFE_INTEGER:
        return int(value)
    raise InvalidArgumentError("token", value, "a lease, or its fencing token (a whole number, at least 1)")


def check_resource(resource: object) -> str:
    text = text_of(resource)
    if text is not None and text != "" and is_storable(text):
        return text
    rule = "a non-empty string without NUL and without lone surrogates"
    raise InvalidArgumentError("resource", resource, rule)
