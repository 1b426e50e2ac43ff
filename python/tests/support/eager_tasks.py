"""Tasks that take their first step when they are made, as with `asyncio.eager_task_factory` of Python 3.12."""

from __future__ import annotations

import asyncio
import types
from contextvars import Context, copy_context
from typing import Any, Coroutine, Generator, Optional


def make_tasks_eager() -> None:
    factory: Any = getattr(asyncio, "eager_task_factory", _eager)
    asyncio.get_running_loop().set_task_factory(factory)


def _eager(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], context: Optional[Context] = None
) -> "asyncio.Future[Any]":
    """For older versions: takes the first step, and makes a task of the rest."""
    context = copy_context() if context is None else context
    try:
        first = context.run(work.send, None)
    except StopIteration as end:
        done = loop.create_future()
        done.set_result(end.value)
        return done
    except Exception as error:
        failed = loop.create_future()
        failed.set_exception(error)
        return failed
    # In the same context: its steps may set and reset a variable.
    return context.run(asyncio.Task, _rest(work, first), loop=loop)


@types.coroutine
def _rest(work: Coroutine[Any, Any, Any], first: Any) -> Generator[Any, Any, Any]:
    awaited = first
    try:
        while True:
            try:
                value = yield awaited
            except BaseException as error:
                awaited = work.throw(error)
            else:
                awaited = work.send(value)
    except StopIteration as end:
        return end.value
