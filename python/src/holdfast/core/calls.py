"""The deadlines of calls to a driver."""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import Any, Callable, Coroutine, Optional

from ..errors import HoldfastError, StoreError
from .clock import BLOCKED_MS, READING_TURNS, Clock
from .driver import Driver
from .secrets import message_of, safe_cause
from .tasks import start_call


class Call:
    """One call in flight. `fail` is called once if it does not end in time."""

    __slots__ = ("what", "due_ms", "fail")

    def __init__(self, what: str, due_ms: float, fail: Callable[[HoldfastError], None]) -> None:
        self.what = what
        self.due_ms = due_ms
        self.fail = fail


class Calls:
    """Gives every call to one driver a deadline, so that a hanging socket cannot hang the caller.

    A call that is late goes on: cancelling it would make many clients return a connection in the middle of a reply. All
    calls have the same timeout and so expire in the order in which they were made: one timer serves all of them.
    """

    def __init__(self, driver: Driver, clock: Clock, timeout_ms: float) -> None:
        self.driver = driver
        self.timeout_ms = timeout_ms
        self.loop = asyncio.get_running_loop()
        """Kept, because asking for it is a system call in Python 3.11."""
        self._clock = clock
        self._in_flight: dict[Call, None] = {}
        self._timer: Optional[asyncio.TimerHandle] = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.failed_with: Optional[HoldfastError] = None
        self._turns_left = READING_TURNS

    def begin(self, what: str, now_ms: float, fail: Callable[[HoldfastError], None]) -> Call:
        call = Call(what, now_ms + self.timeout_ms, fail)
        self._in_flight[call] = None
        if self._timer is None:
            self._timer = self._clock.call_later(self.timeout_ms, self._tick)
        return call

    def end(self, call: Call) -> bool:
        """False if the call had failed before, because it was late."""
        if call not in self._in_flight:
            return False
        del self._in_flight[call]
        return True

    def start(self, call: Coroutine[Any, Any, None], cancelled: Optional[Callable[[], None]] = None) -> None:
        """Runs a call in a task of its own, in an empty context.

        `cancelled` is called if the task was cancelled, also before its first step: a program that cancels all tasks
        and goes on, as `asyncio.run` does at its end, must not leave requests that no one will ever answer.
        """
        task = Context().run(self._create_task, call)
        # The event loop itself keeps only weak references to tasks.
        self._tasks.add(task)

        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if task.cancelled() and cancelled is not None:
                cancelled()

        task.add_done_callback(done)

    def _create_task(self, call: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return start_call(call, self.loop)

    def close(self) -> None:
        """No more calls will be made. Calls in flight keep their deadlines."""
        if self._timer is not None and not self._in_flight:
            self._timer.cancel()
            self._timer = None

    def fail_all(self, error: HoldfastError) -> None:
        """Fails every call in flight and every later call."""
        self.failed_with = error
        in_flight, self._in_flight = list(self._in_flight), {}
        for call in in_flight:
            call.fail(error)
        self.close()

    def as_error(self, what: str, error: BaseException) -> HoldfastError:
        """Drivers wrap the errors of their clients. This wraps those that a driver did not."""
        if isinstance(error, HoldfastError):
            return error
        if isinstance(error, asyncio.CancelledError):
            return StoreError(f"a call to the {self.driver.name} store ({what}) was cancelled from outside")
        wrapped = StoreError(f"the {self.driver.name} store failed to {what}: {message_of(error)}")
        wrapped.__cause__ = safe_cause(error)
        return wrapped

    def _tick(self) -> None:
        self._timer = None
        now_ms = self._clock.monotonic() * 1_000
        oldest = next(iter(self._in_flight), None)
        if oldest is not None and now_ms - oldest.due_ms > BLOCKED_MS and self._turns_left > 0:
            # The event loop was blocked, and the answer may have arrived.
            self._turns_left -= 1
            self._timer = self._clock.call_later(0, self._tick)
            return
        self._turns_left = READING_TURNS
        late = []
        for call in self._in_flight:
            if call.due_ms > now_ms:
                break
            late.append(call)
        for call in late:
            self._in_flight.pop(call, None)
        for call in late:
            call.fail(self._timed_out(call.what))
        if self._timer is None and self._in_flight:
            first = next(iter(self._in_flight))
            self._timer = self._clock.call_later(first.due_ms - now_ms, self._tick)

    def _timed_out(self, what: str) -> StoreError:
        place = self.driver.place
        where = "" if place is None else f" at {place}"
        return StoreError(
            f"the {self.driver.name} store{where} did not answer {what} within {self.timeout_ms / 1_000:g} s"
        )

