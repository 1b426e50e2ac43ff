"""A few daemon threads, for clients that block."""

from __future__ import annotations

import asyncio
import queue
import threading
from typing import Any, Callable, Optional, TypeVar

from ...errors import ClosedError

T = TypeVar("T")
_Job = Optional[Callable[[], None]]


class WorkerThreads:
    """Runs blocking calls, at most `size` at a time. The others wait in the order in which they came.

    The threads are daemons: a call that never returns, because its server does not answer, must not keep the process
    from ending, as a thread of `ThreadPoolExecutor` would. They are started when they are needed.
    """

    def __init__(self, name: str, size: int) -> None:
        self._name = name
        self._size = size
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._pending = 0
        self._closed = False

    async def run(self, work: Callable[[], T], *, timeout_seconds: Optional[float]) -> T:
        """Raises `asyncio.TimeoutError` after that long. A call that has begun goes on, because a thread cannot be
        interrupted. One that has not begun is not made: a claim that comes after its own release would stay."""
        if self._closed:
            raise ClosedError(f"the threads of {self._name} are closed")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def settle(set_it: Callable[[Any], None], value: Any) -> None:
            self._pending -= 1
            if not answer.done():
                set_it(value)

        def job() -> None:
            if answer.cancelled():
                _call_soon(loop, settle, answer.set_result, None)
                return
            try:
                result = work()
            except BaseException as error:
                _call_soon(loop, settle, answer.set_exception, error)
            else:
                _call_soon(loop, settle, answer.set_result, result)

        self._pending += 1
        if self._pending > len(self._threads) and len(self._threads) < self._size:
            thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._jobs.put(job)
        done, _ = await asyncio.wait({answer}, timeout=timeout_seconds)
        if not done:
            answer.cancel()
            raise asyncio.TimeoutError(f"no answer within {timeout_seconds:g} s")
        return answer.result()

    def close(self) -> None:
        """Ends the threads after the calls that they have been given. Does not wait for them."""
        if not self._closed:
            self._closed = True
            for _ in self._threads:
                self._jobs.put(None)

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            job()


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *values: Any) -> None:
    try:
        loop.call_soon_threadsafe(callback, *values)
    except RuntimeError:
        # The event loop was closed, so no caller waits for the answer.
        pass
