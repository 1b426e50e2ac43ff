"""The event loop in which the synchronous API runs.

There is one engine, and it is asyncio. The synchronous classes run it in an event loop on a daemon thread, so that the
heartbeat goes on while the caller's thread works or is blocked.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import sys
import threading
import warnings
from contextvars import copy_context
from typing import Any, Awaitable, Callable, Coroutine, Generic, Optional, TypeVar

T = TypeVar("T")

log = logging.getLogger("holdfast")

INTERRUPTED_SECONDS = 10
"""How long an interrupted call waits until nothing of it is left. With a store that does not answer, no longer."""


class Portal:
    """Runs coroutines in the event loop, and waits for their end in the calling thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="holdfast", daemon=True)
        self._thread.start()

    def run(
        self,
        work: Coroutine[Any, Any, T],
        discard: Optional[Callable[[T], Awaitable[object]]] = None,
        *,
        is_end: bool = False,
    ) -> T:
        """Returns what the coroutine returns. It sees the context variables of the calling thread.

        If the calling thread is interrupted (Ctrl-C, or a signal handler that raises), the coroutine is cancelled and
        its end is awaited. A result that it returns nevertheless, and that the caller never gets, goes to `discard`.
        Its first step is always taken: a release that is interrupted has been sent. `is_end`: a release or the like,
        which raises no warning, because warnings may be errors.
        """
        self._assert_can_wait(work)
        if not is_end:
            self._warn_of_blocked_loop(work)
        running: Optional[_Running[T]] = None
        try:
            running = _Running(self.loop, work)
            running.begin()
            return running.result()
        except BaseException as error:
            if running is None or not running.raised(error):
                (running or _Running(self.loop, work)).interrupt(discard)
            raise

    def start(self, work: Coroutine[Any, Any, object]) -> None:
        """Runs a coroutine, and does not wait for it."""
        if sys.is_finalizing():
            work.close()
        else:
            _Running(self.loop, work).begin()

    def call(self, function: Callable[[], T]) -> T:
        """Calls a function in the event loop's thread: for what must not run beside the engine."""
        if threading.current_thread() is self._thread:
            return function()

        async def work() -> T:
            return function()

        return self.run(work())

    def run_with(self, make: Callable[[CallBack], Coroutine[Any, Any, T]]) -> T:
        """Like `run`, for a coroutine that calls functions of the caller. They are called in the calling thread, which
        has nothing else to do, so that they can use its thread-local state and its database session."""
        call_back = CallBack()
        work = make(call_back)
        self._assert_can_wait(work)
        self._warn_of_blocked_loop(work)
        running = _Running(self.loop, work, call_back.close)
        try:
            running.begin()
            call_back.serve()
            return running.result()
        except BaseException as error:
            if not running.raised(error):
                call_back.close()
                # The thread serves no more, so no function runs. An interrupt may have come between taking a call and
                # making it, or between its end and the delivery of its result: the coroutine would wait for ever.
                self.loop.call_soon_threadsafe(call_back.give_up)
                running.interrupt(None)
            raise

    def _assert_can_wait(self, work: Coroutine[Any, Any, Any]) -> None:
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("the synchronous API cannot be used in its own event loop: it would wait for itself")
        if sys.is_finalizing():
            # Daemon threads have been stopped: waiting for this one would keep the process from ending.
            work.close()
            raise RuntimeError("the synchronous API cannot be used while the interpreter shuts down")

    def _warn_of_blocked_loop(self, work: Coroutine[Any, Any, Any]) -> None:
        """Not an error: in a notebook, an event loop always runs. With gevent, this loop itself runs in the thread of
        all greenlets, and is not blocked."""
        if asyncio._get_running_loop() in (None, self.loop):
            return
        frame, level = sys._getframe(), 1
        while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(_PACKAGE):
            frame, level = frame.f_back, level + 1
        try:
            warnings.warn(_BLOCKS_A_LOOP, RuntimeWarning, stacklevel=level)
        except Warning:
            work.close()
            raise

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self.loop)
        while True:
            try:
                self.loop.run_forever()
            except BaseException:
                # `sys.exit()` in a callback ends an event loop. All heartbeats would end with it, and every later call
                # would wait for ever.
                log.exception("a callback tried to end the event loop of the synchronous API")


_PACKAGE = __name__.partition(".")[0] + "."
_BLOCKS_A_LOOP = (
    "the synchronous API of Holdfast is called in a thread that runs an event loop: the loop is blocked until the call "
    "returns, and a wait for a lock that one of its tasks holds ends only with its time. Use DistributedLock, or "
    "asyncio.to_thread"
)


class _Running(Generic[T]):
    """A coroutine in the event loop, and its end in the calling thread. It takes a lock to wait for it: a future of
    `concurrent.futures` costs four locks, and one of them is still held by the event loop's thread when it wakes this
    one."""

    __slots__ = ("_loop", "_work", "_on_end", "_task", "_running", "_value", "_error")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Coroutine[Any, Any, T],
        on_end: Optional[Callable[[], None]] = None,
    ) -> None:
        """`on_end` is called in the event loop's thread."""
        self._loop = loop
        self._work = work
        self._on_end = on_end
        self._task: Optional[asyncio.Task[None]] = None
        self._running = threading.Lock()
        """Held until the coroutine has ended."""
        self._running.acquire()
        self._value: Any = None
        self._error: Optional[BaseException] = None

    def begin(self) -> None:
        # With a copy of this thread's context.
        self._loop.call_soon_threadsafe(self._start)

    def _start(self) -> asyncio.Task[None]:
        if self._task is None:
            self._task = self._loop.create_task(self._run())
        return self._task

    async def _run(self) -> None:
        """Its end reaches the calling thread from here: a callback of the task would cost another turn of the event
        loop. An error, too, is only for the calling thread."""
        try:
            self._value = await self._work
        except BaseException as error:
            self._error = error
        self._running.release()
        if self._on_end is not None:
            self._on_end()

    def result(self) -> T:
        """Waits for the end. Only once, and only in the calling thread."""
        self._running.acquire()
        if self._error is not None:
            raise self._error
        value: T = self._value
        return value

    def raised(self, error: BaseException) -> bool:
        """Whether the error is the coroutine's, and not an interrupt of the calling thread."""
        return self._error is error

    def interrupt(self, discard: Optional[Callable[[T], Awaitable[object]]]) -> None:
        """Cancels the coroutine after its first step, and waits until it has ended and its result is discarded."""
        settled = threading.Event()

        async def settle(task: asyncio.Task[None]) -> None:
            try:
                task.cancel()
                await asyncio.wait({task})
                if discard is not None and self._error is None:
                    await discard(self._value)
            except Exception as error:
                log.debug("the result of an interrupted call could not be discarded: %s", error)
            finally:
                settled.set()

        def start() -> None:
            ended = settle(self._start())
            _settling.add(task := self._loop.create_task(ended))
            task.add_done_callback(_settling.discard)

        self._loop.call_soon_threadsafe(start)
        settled.wait(INTERRUPTED_SECONDS)


_settling: set[asyncio.Task[None]] = set()


class CallBack:
    """Lets a coroutine call functions in the thread that waits for it."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Optional[Callable[[], None]]] = queue.SimpleQueue()
        self._closed = False
        self._unanswered: set[asyncio.Future[Any]] = set()

    async def __call__(self, function: Callable[..., T], *args: Any) -> T:
        """Calls the function and returns its result. A function cannot be cancelled: if this coroutine is, it waits for
        the function's end. Raises `CancelledError` if the thread waits no more."""
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()
        # The calling thread's, with what the coroutine has added: the locks that it holds around the call.
        context = copy_context()

        def deliver(value: Optional[T], error: Optional[BaseException]) -> None:
            if result.done():
                return
            if error is None:
                result.set_result(value)  # type: ignore[arg-type]
            elif isinstance(error, Exception):
                result.set_exception(error)
            else:
                # It goes on in the calling thread. In the event loop, KeyboardInterrupt would end the loop.
                result.cancel()

        def call() -> None:
            value: Optional[T] = None
            error: Optional[BaseException] = asyncio.CancelledError()
            try:
                if not self._closed:
                    value, error = context.run(function, *args), None
            except BaseException as raised:
                error = raised
                if not isinstance(raised, Exception):
                    raise
            finally:
                loop.call_soon_threadsafe(deliver, value, error)

        self._unanswered.add(result)
        result.add_done_callback(self._unanswered.discard)
        self._calls.put(call)
        if self._closed:
            self._refuse_all()
        cancelled: Optional[asyncio.CancelledError] = None
        while not result.done():
            try:
                await asyncio.wait({result})
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            if not result.cancelled():
                result.exception()
            raise cancelled
        return result.result()

    def serve(self) -> None:
        """Makes the calls in this thread until `close`."""
        while True:
            call = self._calls.get()
            if call is None:
                return
            call()

    def close(self) -> None:
        """Ends `serve`. Calls that were not made are cancelled."""
        self._closed = True
        self._refuse_all()
        self._calls.put(None)

    def give_up(self) -> None:
        """Cancels the calls that were taken and will never be answered. Called in the event loop."""
        for result in list(self._unanswered):
            result.cancel()

    def _refuse_all(self) -> None:
        while True:
            try:
                call = self._calls.get_nowait()
            except queue.Empty:
                return
            if call is not None:
                call()


_portal: Optional[Portal] = None
_opening = threading.Lock()


def portal() -> Portal:
    """The portal of this process."""
    global _portal
    if _portal is None:
        with _opening:
            if _portal is None:
                _portal = Portal()
    return _portal


def run_surely(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Like `Portal.run`, for a release. It is sent even if the thread is interrupted before `run` has begun, or if this
    is the event loop's own thread, which has collected an unfinished generator: otherwise the heartbeat would renew a
    lease that no one can release. `make` may be called twice, and its second coroutine then does nothing."""
    try:
        return portal().run(make(), is_end=True)
    except BaseException:
        portal().start(make())
        raise


def _after_fork() -> None:
    """The child has only the thread that forked: neither the event loop's thread nor the one that held the lock."""
    global _portal, _opening
    _portal = None
    _opening = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
