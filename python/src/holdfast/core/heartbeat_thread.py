"""Renews leases from another thread while the event loop that holds them is blocked."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import math
import os
from contextvars import Context
from typing import Any, Awaitable, Callable, Coroutine, Optional

from ..errors import HoldfastError
from .clock import Clock, Instant, Random, backoff_ms
from .driver import Driver, Renewal, RenewAnswer
from .emitter import Emitter
from .events import HeartbeatFailed
from .renewer import NOT_IN_STORE, Renewer, SentRenewal
from .store_client import StoreClient, close_store_client, open_store_client

log = logging.getLogger("holdfast")


class HeartbeatThread:
    """Covers the heartbeats of one instance. The event loop renews its leases as it always does. A renewal that it does
    not send in time is sent by the thread, which has an event loop and a connection of its own. Both write into the
    deadline of the lease, so that what the thread learns is seen by the first statement after the stall.

    The event loop notes when it last ran. If that is `stalled_after_ms` ago, the thread stops, and the leases expire: a
    process that hangs for ever must not hold its locks for ever.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        open_driver: Callable[[], Awaitable[Driver]],
        *,
        clock: Clock,
        random: Random,
        call_timeout_ms: float,
        stalled_after_ms: float,
    ) -> None:
        """`loop` runs in the other thread. `open_driver` is called there, with the first lease."""
        self._process = os.getpid()
        self._home = asyncio.get_running_loop()
        self._loop = loop
        self._open_driver = open_driver
        self._clock = clock
        self._random = random
        self._call_timeout_ms = call_timeout_ms
        self._stalled_after_ms = stalled_after_ms
        self.events: Optional[Emitter] = None
        """Those of the instance, which sets them."""
        self._renewers: dict[Renewer, None] = {}
        self._alive_ms = -math.inf
        self._alive_timer: Optional[asyncio.TimerHandle] = None
        self._closed = False
        # From here on, of the thread, apart from `_looks_at_ms`.
        self._looks_at_ms = math.inf
        """When the thread looks next. The event loop wakes it if that is too late."""
        self._timer: Optional[asyncio.TimerHandle] = None
        self._driver: Optional[Driver] = None
        self._store: Optional[StoreClient] = None
        self._opening: Optional[asyncio.Task[None]] = None
        self._open_at_ms = -math.inf
        self._failures = 0

    def cover(self, renewer: Renewer) -> None:
        """Until `forget`. Called in the event loop, like `forget` and `close`."""
        self._renewers[renewer] = None
        if self._alive_timer is None and not self._closed:
            self._note_alive()
        self.moved(renewer)

    def moved(self, renewer: Renewer) -> None:
        """A renewal is due earlier than before."""
        at_ms = renewer.covered_at_ms
        if at_ms < self._looks_at_ms and not self._closed:
            self._looks_at_ms = at_ms
            self._in_thread(self._look)

    def forget(self, renewer: Renewer) -> None:
        self._renewers.pop(renewer, None)

    async def close(self) -> None:
        """Returns when the thread has closed its connection, or does not answer."""
        closing = self.close_soon()
        if closing is not None:
            await asyncio.wait({asyncio.wrap_future(closing)}, timeout=_CLOSING_SECONDS)

    def close_soon(self) -> Optional[concurrent.futures.Future[None]]:
        """The same without waiting, also after the event loop was closed."""
        self._closed = True
        if self._alive_timer is not None:
            self._alive_timer.cancel()
        self._renewers.clear()
        return self._run_in_thread(self._close())

    def _note_alive(self) -> None:
        self._alive_ms = self._clock.monotonic() * 1_000
        self._alive_timer = None
        # Otherwise an instance that holds nothing would keep a timer.
        if self._renewers and not self._closed:
            pause_ms = min(1_000.0, self._stalled_after_ms / 4)
            self._alive_timer = self._clock.call_later(pause_ms, self._note_alive)

    def _failed(self, error: Exception) -> None:
        if self.events is not None and self.events.hears(HeartbeatFailed):
            self.events.emit(HeartbeatFailed(error))

    def _in_thread(self, function: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(function, context=Context())
        except RuntimeError:
            pass  # The process ends, and the thread has ended before.

    def _run_in_thread(self, work: Coroutine[Any, Any, None]) -> Optional[concurrent.futures.Future[None]]:
        # In a forked process there is no such thread, and the loop is a copy that shares its sockets with the parent's.
        if self._loop.is_closed() or os.getpid() != self._process:
            work.close()
            return None
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    # The rest runs in the thread.

    def _look(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._closed:
            return
        # First: a lease that is added while the others are read is either among them or wakes the thread again.
        self._looks_at_ms = math.inf
        now = self._clock.now()
        at_ms = math.inf
        is_stalled = now.monotonic_ms - self._alive_ms >= self._stalled_after_ms or self._home.is_closed()
        for renewer in list(self._renewers):
            if not renewer.lease.peek_held():
                # The event loop reports it when it runs.
                self._renewers.pop(renewer, None)
                continue
            if renewer.covered_at_ms <= now.monotonic_ms:
                if is_stalled or self._store is None:
                    at_ms = min(at_ms, now.monotonic_ms + _PAUSED_MS)
                    continue
                self._renew(renewer, self._store, now)
            at_ms = min(at_ms, renewer.covered_at_ms)
        if self._store is None and self._renewers and self._opening is None and now.monotonic_ms >= self._open_at_ms:
            self._opening = self._loop.create_task(self._open())
        if at_ms < math.inf:
            self._looks_at_ms = min(self._looks_at_ms, at_ms)
            self._timer = self._loop.call_later(max(0.0, at_ms - now.monotonic_ms) / 1_000, self._look)

    def _renew(self, renewer: Renewer, store: StoreClient, now: Instant) -> None:
        sent = renewer.send_for(now)
        if sent is not None:
            ref = renewer.lease.ref
            renewal = Renewal(ref.lock_name, ref.claim_id, renewer.lease.fencing_token, sent.ttl_ms)
            store.renew(renewal, _ThreadRenewal(self._home, sent))

    async def _open(self) -> None:
        driver: Optional[Driver] = None
        try:
            driver = await self._open_driver()
            if self._closed:
                await driver.close()
                return
            self._store = open_store_client(driver, self._clock, self._random, self._call_timeout_ms)
            self._driver = driver
            self._failures = 0
        except Exception as error:
            self._failures += 1
            wait_ms = backoff_ms(_RESTART_FIRST_MS, _RESTART_MAX_MS, self._failures, self._random)
            self._open_at_ms = self._clock.monotonic() * 1_000 + wait_ms
            self._tell(error)
        finally:
            self._opening = None
        self._look()

    def _tell(self, error: Exception) -> None:
        try:
            self._home.call_soon_threadsafe(self._failed, error, context=Context())
        except RuntimeError:
            pass  # It was closed.

    async def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._opening is not None:
            await asyncio.wait({self._opening})
        try:
            if self._store is not None:
                await close_store_client(self._store)
            if self._driver is not None:
                await self._driver.close()
        except Exception as error:
            log.debug("the heartbeat thread could not close the store: %s", error)


class _ThreadRenewal:
    """Receives the answer to a renewal that the thread has sent."""

    def __init__(self, home: asyncio.AbstractEventLoop, sent: SentRenewal) -> None:
        self._home = home
        self._sent = sent

    def answered(self, answer: RenewAnswer, sent: Instant, now: Instant) -> None:
        self._sent.answered_in_thread(answer, now)
        self._tell(now.monotonic_ms - sent.monotonic_ms, None)

    def failed(self, error: HoldfastError, sent: Instant) -> None:
        self._sent.failed_in_thread()
        self._tell(0, error)

    def late(self, answer: RenewAnswer) -> None:
        pass

    def _tell(self, took_ms: float, error: Optional[HoldfastError]) -> None:
        """The event loop may wait for the answer, and reports a loss when it runs again."""
        try:
            self._home.call_soon_threadsafe(self._sent.settled_in_thread, took_ms, error, context=Context())
        except RuntimeError:
            pass  # It was closed.


_PAUSED_MS = 100
"""How soon the thread looks again if it may not renew now, or cannot."""
_CLOSING_SECONDS = 2
_RESTART_FIRST_MS = 2_000
_RESTART_MAX_MS = 60_000
