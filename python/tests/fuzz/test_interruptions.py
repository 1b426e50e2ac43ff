"""Random cancellations, interrupts, generators and event loops that end, on every store with a client of its own.

Afterwards, nothing is left in the store, and no name had two holders at a time. `HOLDFAST_FUZZ_SECONDS` sets how long
each test takes, `HOLDFAST_FUZZ_SEED` repeats one of them: the seed and what happened are in the output of a failure.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, AsyncIterator, Awaitable, Callable, Coroutine, Dict, Iterator, List

import pytest

from holdfast import ClosedError, DistributedLock, LeaseLostError, NotAcquiredError, StoreError, SyncDistributedLock
from support.names import unique

SECONDS = float(os.environ.get("HOLDFAST_FUZZ_SECONDS", "0.5"))
SEED = int(os.environ.get("HOLDFAST_FUZZ_SEED", "0")) or random.SystemRandom().randrange(1, 2**31)
STORES = ["redis", "postgres", "postgres+advisory", "sqlite"]

pytestmark = [pytest.mark.timeout(60 + 3 * SECONDS), pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture(params=STORES)
def url(request: Any, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:{tmp_path}/locks.db"
    if request.param == "redis":
        return str(request.getfixturevalue("redis_url"))
    return str(request.getfixturevalue("postgres_url")).replace("postgres://", f"{request.param}://")


class Holders:
    """Who works under each name."""

    def __init__(self) -> None:
        self._leases: Dict[str, Any] = {}
        self._mutex = threading.Lock()
        self.counts: Counter[str] = Counter()

    def begin(self, lease: Any) -> bool:
        """Whether it is the outermost block of this lease."""
        with self._mutex:
            before = self._leases.get(lease.lock_name)
            is_same = before is not None and before.fencing_token == lease.fencing_token
            # Closing an instance ends the leases of `hold` under their users, who can see it.
            assert before is None or is_same or not before.held, f"two holders: {before} and {lease}"
            if not is_same:
                self._leases[lease.lock_name] = lease
                self.counts["held"] += 1
            return not is_same

    def end(self, lease: Any, is_outermost: bool) -> None:
        with self._mutex:
            if is_outermost and self._leases.get(lease.lock_name) is lease:
                del self._leases[lease.lock_name]


# Cancellation, in one event loop


class CancelledAt(asyncio.tasks._PyTask):  # type: ignore[name-defined,misc]
    """Is cancelled when it waits for the given time. A task of Python's own, because that in C shows no steps."""

    def __init__(self, work: Coroutine[Any, Any, Any], step: int) -> None:
        self._left = step
        self.is_cancelled = False
        super().__init__(work, loop=asyncio.get_running_loop())

    def _Task__step(self, error: Any = None) -> None:
        super()._Task__step(error)
        self._left -= 1
        if self._left == 0 and not self.done():
            self.is_cancelled = True
            self.cancel()


async def under(holders: Holders, lease: Any) -> None:
    is_outermost = holders.begin(lease)
    try:
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
    finally:
        holders.end(lease, is_outermost)


async def block(lock: DistributedLock, name: str, holders: Holders) -> None:
    async with lock.lock(name) as lease:
        await under(holders, lease)


async def waiting_block(lock: DistributedLock, name: str, holders: Holders) -> None:
    async with lock.lock(name, blocking_timeout_seconds=5) as lease:
        await under(holders, lease)


async def nested_blocks(lock: DistributedLock, name: str, holders: Holders) -> None:
    async with lock.lock(name, blocking_timeout_seconds=0.05) as lease:
        await under(holders, lease)
        async with lock.lock(name) as inner:
            await under(holders, inner)
        async with lock.lock(f"{name}:inner"):
            await asyncio.sleep(0)


async def block_with_child(lock: DistributedLock, name: str, holders: Holders) -> None:
    async def child() -> None:
        async with lock.lock(name) as inner:
            await under(holders, inner)

    async with lock.lock(name) as lease:
        task = asyncio.ensure_future(child())
        try:
            await under(holders, lease)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def several(lock: DistributedLock, name: str, holders: Holders) -> None:
    async with lock.locks([name, f"{name}:2", f"{name}:3"], blocking_timeout_seconds=0.05) as leases:
        await under(holders, leases[0])


async def held_lease(lock: DistributedLock, name: str, holders: Holders) -> None:
    async with await lock.hold(name, blocking_timeout_seconds=0.05) as lease:
        await under(holders, lease)


async def short_wait(lock: DistributedLock, name: str, holders: Holders) -> None:
    async with lock.lock(name, blocking_timeout_seconds=0.01) as lease:
        await under(holders, lease)


async def generator(lock: DistributedLock, name: str, holders: Holders) -> None:
    async def items() -> AsyncIterator[Any]:
        async with lock.lock(name) as lease:
            await under(holders, lease)
            yield lease

    held = items()
    try:
        async for lease in held:
            # A suspended generator is not entered again.
            assert not await lock.acquire(name)
            await under(holders, lease)
    finally:
        await held.aclose()  # type: ignore[attr-defined]


Work = Callable[[DistributedLock, str, Holders], Coroutine[Any, Any, None]]
WORK: List[Work] = [
    block, waiting_block, nested_blocks, block_with_child, several, held_lease, short_wait, generator
]


async def assert_nothing_left(url: str, names: List[str], said: Callable[[], str]) -> None:
    """What was given up may be on its way for a moment."""
    async with DistributedLock(url) as lock:
        until = time.monotonic() + 5
        for name in [*names, *(f"{each}:{part}" for each in names for part in ("2", "3", "inner"))]:
            while True:
                found = await lock.inspect(name)
                if not found.leases and not found.waiters:
                    break
                assert time.monotonic() < until, f"{found} is left: {said()}"
                await asyncio.sleep(0.02)


async def tried(work: Awaitable[None], holders: Holders) -> None:
    try:
        await work
        holders.counts["ended"] += 1
    except (NotAcquiredError, ClosedError, LeaseLostError) as error:
        # The last two where the instance is closed meanwhile.
        holders.counts[error.code] += 1
    except StoreError as error:
        # The shortest waits may be over before the store has answered.
        assert "in time" in str(error), error
        holders.counts["NO ANSWER"] += 1
    except asyncio.CancelledError:
        holders.counts["cancelled"] += 1


@pytest.mark.parametrize("work", WORK, ids=lambda work: work.__name__)
def test_a_cancellation_at_any_await_leaves_nothing_in_the_store(work: Work, url: str) -> None:
    """One after the other, while a rival has the lock now and then."""
    name, holders, steps = unique("fuzz"), Holders(), 0

    async def main() -> None:
        nonlocal steps
        async with DistributedLock(url) as lock, DistributedLock(url) as rival:
            await lock.ping()
            await rival.ping()
            while True:
                steps += 1
                busy = await rival.acquire(name) if steps % 3 == 0 else None
                task = CancelledAt(tried(work(lock, name, holders), holders), steps)
                if busy:
                    await asyncio.sleep(0.002)
                    await busy.lease.release()
                await asyncio.wait({task})
                task.result()
                if not task.is_cancelled and not busy:
                    break
            await assert_nothing_left(url, [name], lambda: f"at await {steps}")

    asyncio.run(main())
    assert holders.counts["cancelled"] > 1, holders.counts
    print(f"{work.__name__}: {steps} awaits, {dict(holders.counts)}")


def test_random_cancellations_and_ends_of_event_loops_leave_nothing_and_no_two_holders(url: str) -> None:
    source, holders, loops = random.Random(SEED), Holders(), 0
    names = [unique("fuzz") for _ in range(2)]
    until = time.monotonic() + SECONDS

    def said() -> str:
        return f"seed {SEED}, {loops} event loops, {dict(holders.counts)}"

    async def main() -> None:
        locks = [DistributedLock(url) for _ in range(2)]
        for lock in locks:
            await lock.ping()
        tasks: List[asyncio.Task[None]] = []
        for _ in range(source.randrange(1, 30)):
            work, lock, name = source.choice(WORK), source.choice(locks), source.choice(names)
            tasks.append(asyncio.ensure_future(tried(work(lock, name, holders), holders)))
            for _ in range(source.randrange(40)):
                await asyncio.sleep(0)
            if source.random() < 0.4:
                source.choice(tasks).cancel()
            if source.random() < 0.1:
                await asyncio.sleep(source.random() * 0.02)
        if source.random() < 0.5:
            await asyncio.wait(tasks)
        # Otherwise `asyncio.run` cancels the rest.
        if source.random() < 0.5:
            for lock in locks:
                await lock.close()
        for task in tasks:
            if task.done() and not task.cancelled() and task.exception() is not None:
                raise AssertionError(said()) from task.exception()

    # On a busy machine, too, until each has happened.
    while time.monotonic() < until or not (holders.counts["held"] and holders.counts["cancelled"]):
        asyncio.run(main())
        loops += 1
        for _ in range(3):
            # An advisory lock lasts as long as its connection, which here no `close` ends.
            gc.collect()
        asyncio.run(assert_nothing_left(url, names, said))
    print(said())


# Interrupts of the main thread


def sync_block(lock: SyncDistributedLock, name: str, holders: Holders) -> None:
    with lock.lock(name) as lease:
        with_lease(holders, lease)


def sync_nested(lock: SyncDistributedLock, name: str, holders: Holders) -> None:
    with lock.lock(name, blocking_timeout_seconds=1) as lease:
        with_lease(holders, lease)
        with lock.lock(name) as inner:
            with_lease(holders, inner)


def sync_several(lock: SyncDistributedLock, name: str, holders: Holders) -> None:
    with lock.locks([name, f"{name}:2"], blocking_timeout_seconds=0.05) as leases:
        with_lease(holders, leases[0])


def sync_generator(lock: SyncDistributedLock, name: str, holders: Holders) -> None:
    def items() -> Iterator[Any]:
        with lock.lock(name) as lease:
            yield lease

    for lease in items():
        with_lease(holders, lease)


def with_lease(holders: Holders, lease: Any) -> None:
    """An interrupt here would leave the record behind, and not the lock."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    is_outermost = holders.begin(lease)
    time.sleep(0.0005)
    holders.end(lease, is_outermost)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})


def test_interrupts_at_random_moments_leave_nothing_and_no_two_holders(url: str) -> None:
    source, holders = random.Random(SEED), Holders()
    name = unique("fuzz")
    until = time.monotonic() + SECONDS
    main_thread, stopped = threading.get_ident(), threading.Event()

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    def rival() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        with SyncDistributedLock(url) as lock:
            while not stopped.is_set():
                try:
                    with lock.lock(name, blocking_timeout_seconds=0.5) as lease:
                        is_outermost = holders.begin(lease)
                        time.sleep(0.0005)
                        holders.end(lease, is_outermost)
                    holders.counts["rival"] += 1
                except NotAcquiredError:
                    # A holder that is left behind would refuse it for ever.
                    holders.counts["rival refused"] += 1
                time.sleep(0.002)

    def said() -> str:
        return f"seed {SEED}, {dict(holders.counts)}"

    before = signal.signal(signal.SIGUSR1, interrupt)
    thread = threading.Thread(target=rival)
    thread.start()
    try:
        with SyncDistributedLock(url) as lock:
            lock.ping()
            while time.monotonic() < until:
                work = source.choice([sync_block, sync_nested, sync_several, sync_generator])
                delay = source.random() * 0.008
                timer = threading.Timer(delay, signal.pthread_kill, (main_thread, signal.SIGUSR1))
                ends_with = "ended"
                try:
                    timer.start()
                    work(lock, name, holders)
                except KeyboardInterrupt:
                    ends_with = "interrupted"
                except NotAcquiredError:
                    ends_with = "refused"
                try:
                    timer.join()
                    time.sleep(0.001)
                except KeyboardInterrupt:
                    pass
                holders.counts[ends_with] += 1
    finally:
        stopped.set()
        thread.join()
        signal.signal(signal.SIGUSR1, before)
    asyncio.run(assert_nothing_left(url, [name], said))
    print(said())
    assert holders.counts["rival"] and holders.counts["interrupted"], said()
