"""`lock.named(…)` and `@lock.locked(…)` of the synchronous API."""

from __future__ import annotations

import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Iterator, List

import pytest

from holdfast import InvalidArgumentError, NotAcquiredError, SyncDistributedLock, SyncLease, SyncNamedLock


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[SyncDistributedLock]:
    with SyncDistributedLock(f"sqlite:{tmp_path}/locks.db") as lock:
        yield lock


@pytest.fixture
def payment(lock: SyncDistributedLock) -> SyncNamedLock:
    return lock.named("order:123", timeout_seconds=30)


@pytest.fixture
def thread() -> Iterator[Any]:
    """Runs a function in another thread."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda function: pool.submit(function).result()


def test_a_named_lock_is_held_in_its_block_and_shows_it(payment: SyncNamedLock, thread: Any) -> None:
    assert payment.lock_name == "order:123" and not payment.locked() and not payment.owned()
    with payment as lease:
        assert isinstance(lease, SyncLease) and payment.locked() and payment.owned()
        with payment as again:
            assert again.fencing_token == lease.fencing_token
        assert payment.extend(60) and lease.remaining_seconds > 59
        assert not thread(payment.acquire)
        with pytest.raises(NotAcquiredError):
            thread(payment.__enter__)
    assert not payment.locked() and not payment.owned() and not payment.release()


def test_acquire_and_release_belong_to_the_thread(payment: SyncNamedLock, thread: Any) -> None:
    assert payment.acquire() and payment.owned()
    assert not thread(payment.acquire) and not thread(payment.owned) and not thread(payment.release)
    assert not thread(lambda: payment.extend(1))
    assert payment.release() and not payment.locked()
    # What was lost, or ended, is followed by another thread's lease, which this one does not end.
    assert thread(payment.acquire) and not payment.release() and thread(payment.owned) and thread(payment.release)


def test_threads_exclude_each_other_through_one_object(lock: SyncDistributedLock) -> None:
    shared = lock.named("job", blocking_timeout_seconds=30)
    inside: List[int] = []
    most: List[int] = []

    @shared
    def work(number: int) -> None:
        inside.append(number)
        most.append(len(inside))
        with shared:
            inside.remove(number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(20)))
    assert most == [1] * 20 and shared._entered._entries == []


def test_failure_81_a_suspended_generator_keeps_its_block_and_leaves_its_own(payment: SyncNamedLock) -> None:
    def holding() -> Iterator[SyncLease]:
        with payment as lease:
            yield lease

    first = holding()
    lease = next(first)
    with pytest.raises(NotAcquiredError):
        with payment:
            raise AssertionError("two holders")
    assert lease.release()
    with ExitStack() as stack:
        second = stack.enter_context(payment)
        assert next(first, None) is None
        assert second.held and payment.owned()
    assert not second.held
    with pytest.raises(RuntimeError, match="not entered"):
        payment.__exit__(None, None, None)


def test_decorated_functions_and_methods_run_under_the_lock_of_their_arguments(
    lock: SyncDistributedLock, payment: SyncNamedLock
) -> None:
    class Service:
        @lock.locked("order:{order_id}:{carrier}")
        def ship(self, order_id: int, *, carrier: str = "post") -> str:
            """Ships."""
            assert threading.current_thread() is threading.main_thread()
            return lock.current_lease().lock_name

    assert Service().ship(7) == "order:7:post" and Service().ship(8, carrier="a") == "order:8:a"
    assert Service.ship.__doc__ == "Ships." and list(inspect.signature(Service.ship).parameters)[1] == "order_id"
    with pytest.raises(InvalidArgumentError, match="order_id"):
        Service().ship(None)  # type: ignore[arg-type]

    @payment
    def charge() -> bool:
        return payment.owned()

    assert charge() and not payment.owned()

    async def coroutine() -> None: ...

    def generator() -> Iterator[int]:
        yield 1

    for rule, wrong in {"plain function": coroutine, "no generator": generator, "on a function": Service}.items():
        for decorator in (payment, lock.locked("x")):
            with pytest.raises(InvalidArgumentError, match=rule):
                decorator(wrong)
    with pytest.raises(InvalidArgumentError, match="template on"):
        lock.locked("order:{order}")(charge)
