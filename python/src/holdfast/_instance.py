"""What every primitive is built on: a holder on the chosen store, which is opened when it is first used."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import warnings
from types import TracebackType
from typing import Any, Callable, Coroutine, Mapping, Optional, Sequence, Type, TypeVar, Union

from ._observable import Observable
from ._heartbeat_thread import thread_settings
from .connect import check_store, driver_from, shown_store
from ._options import InstanceOptions, check_instance_options
from .core.arguments import Seconds, check_holder_id, ttl_ms_from, wait_ms_from
from .core.clock import SYSTEM_CLOCK, SYSTEM_RANDOM, backoff_ms
from .core.driver import Driver
from .core.emitter import Emitter
from .core.events import StoreFailed
from .core.holder import Holder
from .core.limits import CALL_TIMEOUT_MS, CLOSE_TIMEOUT_MS, DEADLOCK_AFTER_MS, WAITER_TTL_MS
from .core.tasks import create_detached_task, pause, start_task
from .errors import ClosedError, InvalidArgumentError, StoreError, UnsupportedError


class DefaultStore:
    """No store was passed. Differs from None: `DistributedLock(os.environ.get("MY_URL"))` must not select the default
    store, which excludes only the processes of one machine, because a variable is not set."""

    def __repr__(self) -> str:
        return "DEFAULT_STORE"


DEFAULT_STORE = DefaultStore()
Store = Union[str, Driver, DefaultStore, Any]
"""A URL, a driver, or a client or database handle that the caller has."""

_CALL_TIMEOUT = CALL_TIMEOUT_MS / 1_000
_WAITER_TTL = WAITER_TTL_MS / 1_000
_DEADLOCK_AFTER = DEADLOCK_AFTER_MS / 1_000

T = TypeVar("T")


class Instance:
    def __init__(
        self,
        what: str,
        store: Store,
        options: Mapping[str, Any],
        also: Sequence[str] = (),
        known: Type[object] = InstanceOptions,
    ) -> None:
        """Opens nothing yet. `what` is the name of the primitive, for errors. `also`: the names of the arguments that
        only its constructor has. `known`: the type of its options."""
        check_instance_options(options, known, also)
        if store is None or (isinstance(store, str) and store == ""):
            rule = "the URL of a store, a client or a driver; leave it out to use HOLDFAST_URL or the default store"
            raise InvalidArgumentError("store", store, rule)
        self._what = what
        self.events = Emitter()
        self._store = check_store(None if isinstance(store, DefaultStore) else store)
        self.clock = options.get("clock") or SYSTEM_CLOCK
        self.random = options.get("random") or SYSTEM_RANDOM
        holder_id = options.get("holder_id")
        self._own_id = holder_id is None
        self._holder_id = self._new_id() if holder_id is None else check_holder_id(holder_id)
        self._process = os.getpid()
        self._call_timeout_ms = ttl_ms_from("call_timeout_seconds", options.get("call_timeout_seconds", _CALL_TIMEOUT))
        self._waiter_ttl_ms = ttl_ms_from("waiter_ttl_seconds", options.get("waiter_ttl_seconds", _WAITER_TTL))
        after = wait_ms_from("deadlock_after_seconds", options.get("deadlock_after_seconds", _DEADLOCK_AFTER))
        self._deadlock_after_ms = after
        self._thread = thread_settings(self._store, options.get("heartbeat_thread", False))
        self._holder: Optional[Holder] = None
        self._own_driver: Optional[Driver] = None
        self._opening: Optional[asyncio.Task[Holder]] = None
        self._closing: Optional[asyncio.Task[None]] = None
        self._ended = False
        self._closing_watchers: "set[Callable[[], None]]" = set()
        self.closed = False

    def _new_id(self) -> str:
        return check_holder_id(f"{socket.gethostname()}:{os.getpid()}:{self.random.id()}")

    @property
    def holder_id(self) -> str:
        if self._own_id and self._process != os.getpid():
            # In a forked process: an operator would look for the holder in the parent.
            self._process = os.getpid()
            self._holder_id = self._new_id()
        return self._holder_id

    def __del__(self) -> None:
        """Dropped without `close`. A lease refers to its instance, so there is none left."""
        holder = getattr(self, "_holder", None)
        if holder is None or self.closed or holder.abandoned or sys.is_finalizing():
            return
        warnings.warn(f"a {self._what} was not closed: call close(), or use it in a with block", ResourceWarning)
        if holder.loop.is_closed():
            holder.abandon("its event loop was closed", "session")
            holder.forget_store()
            return
        try:
            # In another thread, maybe.
            holder.loop.call_soon_threadsafe(_close_dropped, holder, self._own_driver)
        except RuntimeError:
            pass  # It was closed just now.

    @property
    def holder(self) -> Optional[Holder]:
        """The holder if the store is open in this event loop."""
        holder = self._holder
        if holder is None:
            return None
        if holder.loop is asyncio.get_running_loop() and not holder.abandoned:
            return holder
        self._moved(holder)
        return None

    @property
    def loop(self) -> Optional[asyncio.AbstractEventLoop]:
        """The event loop that it is used in."""
        return None if self._holder is None or self._holder.abandoned else self._holder.loop

    @property
    def current(self) -> Optional[Holder]:
        """Like `holder`, for a caller that has just used it: the event loop is not compared again."""
        return self._holder

    def _moved(self, holder: Holder) -> None:
        """The program uses another event loop now, or is a child of the process that opened the store."""
        if not holder.abandoned:
            if not holder.loop.is_closed():
                raise UnsupportedError(
                    f"this {self._what} is used in another event loop. Create one for each event loop"
                )
            holder.abandon("its event loop was closed", "session")
            holder.forget_store()
        # Connections belong to the event loop and the process that opened them, and cannot be closed from here.
        self._holder = self._own_driver = self._opening = None

    async def open(self) -> Holder:
        """Opens the store unless it is open. Raises what `connect` raises. The next call tries again."""
        holder = self.holder
        if holder is not None:
            return holder
        self.assert_open()
        opening = self._opening
        if opening is None or opening.get_loop() is not asyncio.get_running_loop():
            opening = self._opening = _start(self._open())
        # Others wait for the same store, so that the cancellation of one caller does not stop it.
        return await asyncio.shield(opening)

    async def open_with_retry(self, wait_ms: float) -> Holder:
        """Like `open`, but tries again while the store is down, for at most `wait_ms`. For claims that wait: they wait
        for the store as they wait for the lock."""
        until_ms = self.clock.monotonic() * 1_000 + wait_ms
        tries = 0
        while True:
            tries += 1
            try:
                return await self.open()
            except StoreError as error:
                rest_ms = backoff_ms(50, 2_000, tries, self.random)
                if not error.retryable or self.clock.monotonic() * 1_000 + rest_ms >= until_ms:
                    raise
                await pause(self.clock, rest_ms, self.watch_closing)

    def shown_as(self, name: str) -> str:
        """For `repr`. It shows no password."""
        state = ", closed" if self.closed else ""
        return f"<{name} on {shown_store(self._store)}, holder {self.holder_id}{state}>"

    def watch_closing(self, closing: Callable[[], None]) -> Callable[[], None]:
        """Calls `closing` when closing begins, or at once if it has. Returns a function that ends that."""
        if self.closed:
            closing()
        else:
            self._closing_watchers.add(closing)
        return lambda: self._closing_watchers.discard(closing)

    async def ping(self) -> None:
        self.assert_not_ended()
        await (await self.open()).ping()

    def assert_open(self) -> None:
        if self.closed:
            raise ClosedError(f"this {self._what} is closed")

    def assert_not_ended(self) -> None:
        """For what running work may still do during `drain_seconds`."""
        if self._ended:
            self.assert_open()

    async def close(self, drain_seconds: Seconds, deadline_seconds: Seconds) -> None:
        drain_ms = wait_ms_from("drain_seconds", drain_seconds)
        deadline_ms = wait_ms_from("deadline_seconds", deadline_seconds)
        if self._closing is None or self._closing.get_loop() is not asyncio.get_running_loop():
            if self.closed:
                return
            self.closed = True
            watchers, self._closing_watchers = self._closing_watchers, set()
            for closing in watchers:
                closing()
            if self._holder is not None and self._holder.abandoned:
                # In a forked process. What is open is the parent's, and there may be no event loop to run a task.
                return
            # In a task of its own: a caller that is cancelled, for example because it is itself a block that has to
            # stop, must not leave the instance half closed.
            self._closing = _start(self._close(drain_ms, deadline_ms))
        await asyncio.shield(self._closing)

    async def _open(self) -> Holder:
        try:
            driver, owned = await driver_from(self._store)
        except StoreError as error:
            if self.events.hears(StoreFailed):
                self.events.emit(StoreFailed("open", error))
            raise
        finally:
            # A store that was down at the first use may be up at the next.
            self._opening = None
        try:
            # Closing does not wait for a store that takes too long to open.
            self.assert_not_ended()
            thread = self._thread
            holder = Holder(
                driver,
                self.holder_id,
                clock=self.clock,
                random=self.random,
                call_timeout_ms=self._call_timeout_ms,
                waiter_ttl_ms=self._waiter_ttl_ms,
                events=self.events,
                deadlock_after_ms=self._deadlock_after_ms,
                thread=None if thread is None else thread.open(self.clock, self.random, self._call_timeout_ms),
            )
        except BaseException:
            if owned:
                await driver.close()
            raise
        self._holder = holder
        self._own_driver = driver if owned else None
        return holder

    async def _close(self, drain_ms: float, deadline_ms: float) -> None:
        holder = self.holder
        if holder is not None and drain_ms > 0:
            await holder.drain(drain_ms)
        self._ended = True
        end = start_task(self._end(deadline_ms * _SETTLING))
        done, _ = await asyncio.wait({end}, timeout=deadline_ms / 1_000)
        if done:
            end.result()
            return
        # The store does not answer.
        if self._holder is not None:
            self._holder.force_close()
        if self._own_driver is not None:
            _start(self._own_driver.close())

    async def _end(self, settle_ms: float) -> None:
        if self._opening is not None:
            await asyncio.wait({self._opening})
        holder = self.holder
        if holder is not None:
            await holder.close(settle_ms)
        if self._own_driver is not None:
            await self._own_driver.close()


def _close_dropped(holder: Holder, driver: Optional[Driver]) -> None:
    async def close() -> None:
        await holder.close()
        if driver is not None:
            await driver.close()

    _start(close())


_SETTLING = 0.6
"""The part of closing in which blocks may end. The rest is for the releases."""

_background: "set[asyncio.Task[Any]]" = set()


def _start(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """In an empty context, so that the work does not carry the re-entry of the task that started it."""
    task = create_detached_task(work)
    _background.add(task)
    task.add_done_callback(_finished)
    return task


def _finished(task: asyncio.Task[Any]) -> None:
    _background.discard(task)
    # The error goes to the callers that wait. If all of them were cancelled, no one does, and that is no mistake.
    if not task.cancelled():
        task.exception()


class Closable(Observable):
    """What every primitive has: an id, `on`, `ping`, `close`, and `async with` on the instance itself."""

    _instance: Instance

    @property
    def _events(self) -> Emitter:
        return self._instance.events

    @property
    def holder_id(self) -> str:
        """Identifies this instance to others."""
        return self._instance.holder_id

    @property
    def _loop(self) -> Optional[asyncio.AbstractEventLoop]:
        return self._instance.loop

    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
        return self._instance.closed

    async def ping(self) -> None:
        """Opens the store unless it is open, and proves that it works: takes a lock with a new name (`ping:` and a
        random part) and releases it. Use it when a service starts, and in its readiness probe.

        Raises `StoreError`. Its `retryable` is false if trying again cannot help, as with a wrong password.
        """
        await self._instance.ping()

    async def close(self, *, drain_seconds: Seconds = 0, deadline_seconds: Seconds = CLOSE_TIMEOUT_MS / 1_000) -> None:
        """Gives up what waits, lets running work end for `drain_seconds`, then asks it to stop, releases what is held,
        and closes the store if this instance opened it.

        Blocks under a lease are cancelled then, and have three fifths of `deadline_seconds` to end; they keep their
        locks until they have. It takes at most `drain_seconds` and `deadline_seconds` together. Later calls raise
        `ClosedError`; `close` itself may be called again.
        """
        await self._instance.close(drain_seconds, deadline_seconds)

    def __repr__(self) -> str:
        return self._instance.shown_as(type(self).__name__)

    async def __aexit__(
        self,
        exc_type: Optional[Type[BaseException]],
        exc: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        await self.close()
