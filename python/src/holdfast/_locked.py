"""`@lock.locked("order:{order_id}")`: functions whose calls run under a lock that their arguments name."""

from __future__ import annotations

import functools
import inspect
import re
import unicodedata
import uuid
from collections import abc
from typing import Any, AsyncContextManager, Awaitable, Callable, ContextManager, Coroutine, ParamSpec, TypeVar, Union

from .core.arguments import check_lock_name, check_text, text_of
from .core.limits import MAX_NAME_LENGTH
from .errors import InvalidArgumentError

P = ParamSpec("P")
R = TypeVar("R")
LockNameOf = Callable[["inspect.BoundArguments"], str]
"""Returns the lock name of a call. Raises `InvalidArgumentError`."""


def coroutine_function(function: object) -> None:
    _check_function(function)
    if not inspect.iscoroutinefunction(function):
        raise _wrong(function, "a coroutine function (async def); SyncDistributedLock is for plain functions")


def plain_function(function: object) -> None:
    _check_function(function)
    if inspect.iscoroutinefunction(function):
        raise _wrong(function, "a plain function; DistributedLock is for coroutine functions")


def _check_function(function: object) -> None:
    if isinstance(function, (staticmethod, classmethod)):
        raise _wrong(function, "below @staticmethod and @classmethod")
    if inspect.isclass(function) or not callable(function):
        raise _wrong(function, "on a function or a method")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        # Its body would run after the call has returned, without the lock.
        raise _wrong(function, "on a function that is no generator: use `with` inside it")


def _wrong(function: object, rule: str) -> InvalidArgumentError:
    return InvalidArgumentError("the decorated function", function, rule, f"the decorator of a lock must be {rule}")


def runs_under(
    function: Callable[P, Awaitable[R]], block_of: Callable[[inspect.BoundArguments], AsyncContextManager[Any]]
) -> Callable[P, Coroutine[Any, Any, R]]:
    """The coroutine function with a block around each call."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    async def locked(*args: P.args, **kwargs: P.kwargs) -> R:
        async with block_of(_bound(signature, args, kwargs)):
            return await function(*args, **kwargs)

    return locked


def sync_runs_under(
    function: Callable[P, R], block_of: Callable[[inspect.BoundArguments], ContextManager[Any]]
) -> Callable[P, R]:
    """The function with a block around each call."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def locked(*args: P.args, **kwargs: P.kwargs) -> R:
        with block_of(_bound(signature, args, kwargs)):
            return function(*args, **kwargs)

    return locked


def _bound(signature: inspect.Signature, args: Any, kwargs: Any) -> inspect.BoundArguments:
    """A call that lacks an argument, or has one too many, raises the usual `TypeError` before a lock is taken."""
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return bound


def lock_name_of(template: Union[str, Callable[..., str]], function: Callable[..., object]) -> LockNameOf:
    """Reads a template such as `order:{order_id}` or `order:{order.id}`, where `order_id` and `order` are parameters of
    the function. A function instead of a template gets the arguments of each call."""
    where = getattr(function, "__qualname__", repr(function))
    if callable(template):
        make = template
        return lambda bound: check_lock_name(make(*bound.args, **bound.kwargs), f"the lock name of {where}")
    argument = f"the template on {where}"
    # Split by a pattern with a group: texts are at even places, placeholders at odd ones.
    parts = _PLACEHOLDER.split(check_text(argument, template, MAX_NAME_LENGTH))
    if any("{" in part or "}" in part for part in parts[::2]):
        rule = "made of text and placeholders such as {order_id} and {order.id}; a name with braces needs a function"
        raise InvalidArgumentError(argument, template, rule)
    parameters = inspect.signature(function).parameters
    for path in parts[1::2]:
        parameter = parameters.get(path.partition(".")[0])
        if parameter is None or parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            rule = f"made of text and the parameters of the function ({', '.join(parameters) or 'it has none'})"
            raise InvalidArgumentError(argument, template, rule)

    def name_of(bound: inspect.BoundArguments) -> str:
        texts = [part if at % 2 == 0 else _text_at(bound.arguments, part, where) for at, part in enumerate(parts)]
        return check_lock_name("".join(texts), f"the lock name of {where}")

    return name_of


_PLACEHOLDER = re.compile(r"\{([^\W\d]\w*(?:\.[^\W\d]\w*)*)\}")


def _text_at(arguments: Any, path: str, where: str) -> str:
    value: Any = arguments
    for name in path.split("."):
        value = value.get(name) if isinstance(value, abc.Mapping) else getattr(value, name, None)
    # Only texts and whole numbers make a name. Any other object would become its description, and a missing value
    # `None`: one lock for all of them.
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**MAX_NAME_LENGTH:
        # The member of an IntEnum is formatted as its name.
        return str(int(value))
    text = text_of(value)
    # Control characters and line ends would forge lines in logs.
    if not text or any(unicodedata.category(each) in ("Cc", "Zl", "Zp") for each in text):
        rule = "a string without control characters, a whole number or a UUID, to be part of a lock name"
        raise InvalidArgumentError(f"{{{path}}} of {where}", value, rule)
    return text
