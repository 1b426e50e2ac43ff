"""Work in a task of its own, whose end the caller awaits even if it is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import Any, Awaitable, Callable, Coroutine, Optional, TypeVar, Union

from ..errors import HoldfastError
from .clock import Clock

T = TypeVar("T")

StopWatching = Callable[[], None]
Watch = Callable[[Callable[[], None]], StopWatching]
"""Calls its argument when the reason to stop occurs, at once if it has. Returns a function that ends that."""


def start_task(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A task that begins in the next turn of the event loop. With `asyncio.eager_task_factory`, the event loop's own
    `create_task` would take its first step at once: before the caller has stored the task, or has added the requests
    that the task sends."""
    return asyncio.Task(work, loop=asyncio.get_running_loop())


def start_call(work: Coroutine[Any, Any, T], loop: Optional[asyncio.AbstractEventLoop] = None) -> asyncio.Task[T]:
    """Like `start_task`, for a call to a store. `asyncio.run` ends by cancelling all tasks that it finds, and this one
    it does not find: a claim that is cut off may still be granted, after the release that was to withdraw it."""
    task = asyncio.Task(work, loop=loop or asyncio.get_running_loop())
    asyncio._unregister_task(task)
    # Of a call without an answer. Its caller has given up.
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    return task


async def finish(work: Coroutine[Any, Any, T]) -> T:
    """Returns what the work returns. A caller that is cancelled waits for the end of the work, and then the
    cancellation goes on: for steps that must not be cut in half."""
    task = start_task(work)
    cancelled = await _settle(task, None)
    if cancelled is not None:
        ignore_outcome(task)
        raise cancelled
    return task.result()


async def answered(release: asyncio.Future[bool]) -> None:
    """Waits for the answer to a release that was sent. If it fails, it is repeated in the background."""
    try:
        await release
    except HoldfastError:
        pass


class Supervised:
    """How the work of `supervise` ended."""

    __slots__ = ("task", "stopped", "cancelled")

    def __init__(
        self, task: asyncio.Task[Any], stopped: bool, cancelled: Optional[asyncio.CancelledError]
    ) -> None:
        self.task = task
        """It has ended."""
        self.stopped = stopped
        """Whether it was asked to stop: by one of the watched reasons, or because the caller was cancelled."""
        self.cancelled = cancelled
        """The cancellation of the caller. The caller has to raise it when it has cleaned up."""

    @property
    def error(self) -> Optional[BaseException]:
        """What the work raised. None if it returned, or if it was cancelled after it had been asked to stop."""
        if self.task.cancelled():
            return None if self.stopped else asyncio.CancelledError()
        return self.task.exception()


async def supervise(call: Callable[[], Union[Awaitable[T], T]], *watches: Watch) -> Supervised:
    """Calls a function and awaits what it returns, in a task of its own. The task is cancelled once for each watched
    reason that occurs, and each time that the caller is cancelled. Returns when the task has ended, never before, and
    does not raise."""
    stopped = False

    async def work() -> T:
        result = call()
        return await result if isinstance(result, Awaitable) else result

    task = start_task(work())

    def cancel() -> None:
        nonlocal stopped
        if not task.done():
            stopped = True
            task.cancel()

    def stop() -> None:
        # The function itself may have caused it, for example by reading `held`. Its next await is then cancelled, and
        # not one of the code that it is calling now.
        if _current_task() is task:
            task.get_loop().call_soon(cancel, context=Context())
        else:
            cancel()

    unwatch = [watch(stop) for watch in watches]
    try:
        cancelled = await _settle(task, stop)
    finally:
        for end in unwatch:
            end()
    return Supervised(task, stopped, cancelled)


async def _settle(
    task: asyncio.Task[Any], on_cancel: Optional[Callable[[], None]]
) -> Optional[asyncio.CancelledError]:
    cancelled: Optional[asyncio.CancelledError] = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
            if on_cancel is not None:
                on_cancel()
    return cancelled


def _current_task() -> Optional[asyncio.Task[Any]]:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def ignore_outcome(task: asyncio.Future[Any]) -> None:
    """Otherwise asyncio would report the error of a task that no one reads."""
    if not task.cancelled():
        task.exception()


async def settles_within(seconds: float, work: Awaitable[object]) -> bool:
    """Whether the work ends within this time, successful or not. It is never cancelled."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(ignore_outcome)
    done, _ = await asyncio.wait({task}, timeout=seconds)
    return bool(done)


class Background:
    """Tasks that run beside the calls, and whose errors no one reads. The event loop has only weak references to
    tasks."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = start_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(ignore_outcome)
        return task


def create_detached_task(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A task in an empty context: it does not inherit which locks its creator holds."""
    return Context().run(start_task, work)


async def pause(clock: Clock, delay_ms: float, *watches: Watch) -> None:
    """Returns after `delay_ms`, or as soon as one of the watched reasons occurs."""
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end() -> None:
        if not over.done():
            over.set_result(None)

    timer = clock.call_later(delay_ms, end)
    unwatch = [watch(end) for watch in watches]
    try:
        await over
    finally:
        timer.cancel()
        for stop in unwatch:
            stop()
