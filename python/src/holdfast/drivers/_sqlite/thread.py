"""The thread of a driver. Everything that the driver does with SQLite happens there, one job after the other, so that
the event loop never waits for a disk or for another process."""

from __future__ import annotations

import asyncio
import queue
import threading
import weakref
from typing import Any, Callable, Optional, TypeVar

from ...errors import StoreError
from . import fork

T = TypeVar("T")


class DriverThread:
    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Optional[_Job]] = queue.SimpleQueue()
        self._urgent: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._thread: Optional[threading.Thread] = None
        self._notices: list[Callable[[], None]] = []

    def submit(self, work: Callable[[], T], is_urgent: bool = False) -> asyncio.Future[T]:
        """Runs `work` in the thread. Call it in the event loop in which the answer is awaited. What is urgent runs
        before what was submitted earlier, also while a job pauses."""
        fork.notice_fork()
        if self._thread is None:
            self._start()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        job = _Job(work, answer, loop)
        if is_urgent:
            self._urgent.put(job)
            # The thread may wait for its next job.
            job = _Job(_nothing, loop.create_future(), loop)
        self._jobs.put(job)
        return answer

    def pause(self, seconds: float) -> None:
        """Call it within a job: waits, or runs an urgent job instead."""
        try:
            job = self._urgent.get(timeout=seconds)
        except queue.Empty:
            return
        _perform(job, self._notices)

    def notify(self, notice: Callable[[], None]) -> None:
        """Call it within a job: runs `notice` in the event loop, before the answer to that job."""
        self._notices.append(notice)

    def stop(self) -> None:
        """Ends the thread after the jobs that were submitted."""
        if self._thread is not None:
            self._thread = None
            self._jobs.put(None)

    def forget(self) -> None:
        """In a forked process, which has no copy of the thread."""
        self._jobs = queue.SimpleQueue()
        self._urgent = queue.SimpleQueue()
        self._thread = None
        self._notices = []

    def _start(self) -> None:
        # A daemon: the process may end at any time. SQLite rolls back what was not committed.
        thread = threading.Thread(
            target=_run, args=(self._jobs, self._urgent, self._notices), name="holdfast-sqlite", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            raise StoreError(f"the sqlite driver cannot start its thread: {error}") from error
        self._thread = thread
        # For a driver that is dropped without `close`.
        weakref.finalize(self, self._jobs.put, None).atexit = False


class _Job:
    __slots__ = ("work", "answer", "loop")

    def __init__(self, work: Callable[[], Any], answer: asyncio.Future[Any], loop: asyncio.AbstractEventLoop) -> None:
        self.work = work
        self.answer = answer
        self.loop = loop


def _run(
    jobs: queue.SimpleQueue[Optional[_Job]],
    urgent: queue.SimpleQueue[_Job],
    notices: list[Callable[[], None]],
) -> None:
    while True:
        job = jobs.get()
        if job is None:
            return
        while not urgent.empty():
            _perform(urgent.get(), notices)
        _perform(job, notices)
        del job


def _perform(job: _Job, notices: list[Callable[[], None]]) -> None:
    value: Any = None
    error: Optional[BaseException] = None
    try:
        value = job.work()
    except BaseException as raised:
        error = raised
    # It refers to the driver, which may be dropped as soon as the answer has arrived.
    job.work = _nothing
    sent = notices.copy()
    notices.clear()
    try:
        job.loop.call_soon_threadsafe(_deliver, job.answer, value, error, sent)
    except RuntimeError:
        # The event loop was closed. No caller waits for the answer.
        pass


def _nothing() -> None:
    pass


def _deliver(
    answer: asyncio.Future[Any], value: Any, error: Optional[BaseException], notices: list[Callable[[], None]]
) -> None:
    for notice in notices:
        notice()
    if answer.done():
        return
    if error is None:
        answer.set_result(value)
    else:
        answer.set_exception(error)
