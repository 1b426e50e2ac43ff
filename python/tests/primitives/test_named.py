"""`lock.named(…)` and `@lock.locked(…)`: a lock with its name, and functions whose calls run under a lock."""

from __future__ import annotations

import asyncio
import contextvars
import enum
import gc
import inspect
import uuid
from contextlib import AsyncExitStack
from typing import Any, AsyncIterator, Dict, List, Optional

import pytest

from holdfast import DistributedLock, InvalidArgumentError, Lease, LeaseLostError, NamedLock, NotAcquiredError


@pytest.fixture
async def lock() -> AsyncIterator[DistributedLock]:
    async with DistributedLock("memory:") as lock:
        yield lock


@pytest.fixture
def payment(lock: DistributedLock) -> NamedLock:
    return lock.named("order:123", timeout_seconds=30)


async def in_a_task(work: Any) -> Any:
    return await asyncio.create_task(work)


async def detached(work: Any) -> Any:
    """In a task outside of the block that starts it."""
    return await asyncio.get_running_loop().create_task(work, context=contextvars.Context())


async def test_a_named_lock_is_held_in_its_block_and_shows_it(payment: NamedLock) -> None:
    assert payment.lock_name == "order:123"
    assert not await payment.locked() and not payment.owned()
    async with payment as lease:
        assert isinstance(lease, Lease) and lease.lock_name == "order:123" and 29 < lease.remaining_seconds <= 30
        assert await payment.locked() and payment.owned()
        assert await payment.extend(60) and lease.remaining_seconds > 59
    assert not lease.held and not await payment.locked() and not payment.owned()
    assert not await payment.release() and not await payment.extend(1)


async def test_acquire_and_release_belong_to_the_task(lock: DistributedLock, payment: NamedLock) -> None:
    """A task that was refused, or whose lease was lost, must not end the lease of another one in its `finally`."""
    assert await payment.acquire() and payment.owned()

    async def refused() -> bool:
        assert not await payment.acquire()
        assert not payment.owned()
        return await payment.release() or await payment.extend(1)

    assert not await in_a_task(refused())
    assert payment.owned() and await payment.release() and not payment.owned()

    assert await payment.acquire(timeout_seconds=0.05)
    await lock.force_release("order:123", by="test")
    taken = asyncio.Event()
    done = asyncio.Event()

    async def next_holder() -> None:
        assert await payment.acquire(blocking_timeout_seconds=10)
        taken.set()
        await done.wait()
        assert payment.owned() and await payment.release()

    other = asyncio.create_task(next_holder())
    await taken.wait()
    assert not payment.owned()
    assert not await payment.release()
    assert not await payment.release()
    done.set()
    await other


async def test_what_a_task_of_wait_for_has_acquired_can_be_released_outside_of_it(payment: NamedLock) -> None:
    """Until Python 3.12, `asyncio.wait_for` runs it in a task of its own."""
    assert await in_a_task(payment.acquire())
    assert payment.owned() and await payment.release()


async def test_options_of_a_call_override_those_of_the_object(lock: DistributedLock) -> None:
    held = lock.named("a", blocking=False, metadata={"by": "object"})
    async with held:

        async def waits() -> Optional[str]:
            result = await held.acquire(blocking_timeout_seconds=0.05)
            assert result.holder is not None and result.holder.metadata == {"by": "object"}
            return result.error

        assert "waited 0." in (await detached(waits()) or "")
    with pytest.raises(InvalidArgumentError, match="timeout_seconds"):
        lock.named("a", timeout_seconds=0)
    with pytest.raises(InvalidArgumentError, match="did you mean timeout_seconds"):
        lock.named("a", ttl=1)  # type: ignore[call-arg]
    with pytest.raises(InvalidArgumentError, match="lock_name"):
        lock.named("")


async def test_one_object_is_entered_again_in_its_task_and_excludes_other_tasks(payment: NamedLock) -> None:
    inside = 0

    async def work() -> None:
        nonlocal inside
        async with payment:
            async with payment:
                inside += 1
                assert inside == 1
                await asyncio.sleep(0)
                inside -= 1
            assert payment.owned()

    patient = payment._lock.named("order:123", blocking_timeout_seconds=30)
    payment = patient
    await asyncio.gather(*(work() for _ in range(10)))
    assert not await payment.locked()


async def test_failure_81_a_suspended_generator_keeps_its_block_and_leaves_its_own(
    lock: DistributedLock, payment: NamedLock
) -> None:
    async def holding() -> AsyncIterator[Lease]:
        async with payment as lease:
            yield lease

    first = holding()
    lease = await first.__anext__()
    with pytest.raises(NotAcquiredError):
        async with payment:
            raise AssertionError("two holders")
    # Its lease ends, and the next block through the same object is another one.
    assert await lease.release()
    async with payment as second:
        with pytest.raises(StopAsyncIteration):
            await first.__anext__()
        assert second.held and payment.owned()
    assert not lease.held and not second.held


async def test_blocks_in_one_task_that_overlap_leave_what_they_entered(lock: DistributedLock) -> None:
    shared = lock.named("a")

    async def holding() -> AsyncIterator[Lease]:
        async with shared as lease:
            yield lease

    generator = holding()
    first = await generator.__anext__()
    assert await first.release()
    async with AsyncExitStack() as stack:
        second = await stack.enter_async_context(shared)
        with pytest.raises(StopAsyncIteration):
            await generator.__anext__()
        assert second.held and not first.held
    assert not second.held

    class Own:
        async def __aenter__(self) -> Lease:
            return await shared.__aenter__()

        async def __aexit__(self, *error: Any) -> None:
            await shared.__aexit__(*error)

    async with Own() as own:
        assert own.held
    assert not own.held
    with pytest.raises(RuntimeError, match="not entered"):
        await shared.__aexit__(None, None, None)


async def test_a_named_lock_decorates_coroutine_functions_and_methods(
    payment: NamedLock, lock: DistributedLock
) -> None:
    @payment
    async def charge(amount: int, *, currency: str = "EUR") -> str:
        """Charges."""
        assert payment.owned() and lock.current_lease().held
        return f"{amount} {currency}"

    class Service:
        @payment
        async def refund(self, amount: int) -> "tuple[Service, int]":
            return self, amount

    assert await charge(1) == "1 EUR" and await charge(2, currency="USD") == "2 USD"
    assert (charge.__name__, charge.__doc__) == ("charge", "Charges.") and inspect.iscoroutinefunction(charge)
    service = Service()
    assert await service.refund(3) == (service, 3)
    async with payment:
        assert await charge(4) == "4 EUR"
        with pytest.raises(NotAcquiredError):
            await detached(charge(5))
    with pytest.raises(InvalidArgumentError, match="current_lease"):
        lock.current_lease()


class Kind(str, enum.Enum):
    BIG = "big"


class Order:
    def __init__(self, id: Any) -> None:
        self.id = id


async def test_the_arguments_of_a_call_name_its_lock(lock: DistributedLock) -> None:
    names: List[str] = []

    def note() -> None:
        names.append(lock.current_lease().lock_name)

    @lock.locked("order:{order_id}:{carrier}")
    async def ship(order_id: Any, carrier: str = "post") -> None:
        note()

    class Service:
        @lock.locked("order:{order.id}:{extra.where}")
        async def pack(self, order: Any, **extra: Any) -> None:
            note()

        @classmethod
        @lock.locked("{key}")
        async def all(cls, key: str) -> None:
            note()

    @lock.locked(lambda a, b: f"{a}+{b}")
    async def add(a: int, b: int) -> None:
        note()

    await ship(7)
    await ship("x", carrier="dhl")
    await ship(carrier="a", order_id=Kind.BIG)
    await ship(uuid.UUID(int=5))
    await Service().pack(Order(9), extra={}, where="here")
    await Service().pack({"id": 10}, where="there")
    await Service.all("k")
    await add(1, b=2)
    zeros = "00000000-0000-0000-0000-000000000005"
    expected = ["order:7:post", "order:x:dhl", "order:big:a", f"order:{zeros}:post", "order:9:here", "order:10:there"]
    assert names == [*expected, "k", "1+2"]
    for wrong in (None, 1.5, True, b"x", "", "a\nb", "a\u2028b", Order(1), 10**5000, "\ud800", ("a",)):
        with pytest.raises(InvalidArgumentError):
            await ship(wrong)
    with pytest.raises(InvalidArgumentError, match=r"\{order\.id\} of .*Service\.pack"):
        await Service().pack(Order(None), where="x")
    with pytest.raises(TypeError):
        await ship()  # type: ignore[call-arg]


async def test_bad_templates_and_functions_are_errors_at_decoration(lock: DistributedLock, payment: NamedLock) -> None:
    async def good(order_id: int, *rest: int) -> None: ...

    def plain() -> None: ...

    async def generator() -> AsyncIterator[int]:
        yield 1

    for template in ("", "a{", "a}", "{}", "{0}", "{order}", "{order_id!r}", "{order_id:>3}", "{rest}", "{{a}}", 7):
        with pytest.raises(InvalidArgumentError, match="template on .*good"):
            lock.locked(template)(good)  # type: ignore[arg-type]
    bad: Dict[str, Any] = {"coroutine function": plain, "no generator": generator, "on a function": Order}
    for rule, function in {**bad, "below @staticmethod": staticmethod(good)}.items():
        for decorator in (payment, lock.locked("x")):
            with pytest.raises(InvalidArgumentError, match=rule):
                decorator(function)
    with pytest.raises(InvalidArgumentError, match="did you mean"):
        lock.locked("x", time_out_seconds=1)  # type: ignore[call-arg]


async def test_a_decorated_call_waits_and_is_cancelled_with_its_lease(lock: DistributedLock) -> None:
    order: List[int] = []

    @lock.locked("job", blocking_timeout_seconds=30)
    async def job(number: int) -> None:
        order.append(number)
        await asyncio.sleep(0)
        order.append(number)

    await asyncio.gather(job(1), job(2))
    assert order == [1, 1, 2, 2]

    @lock.locked("job", heartbeat=False, timeout_seconds=0.05)
    async def slow() -> None:
        await asyncio.sleep(30)

    with pytest.raises(LeaseLostError):
        await slow()


async def test_nothing_of_a_named_lock_is_left_when_its_tasks_have_ended(payment: NamedLock) -> None:
    async def work() -> None:
        assert await payment.acquire()
        assert await payment.release()

    for _ in range(3):
        await in_a_task(work())
    await asyncio.sleep(0)
    gc.collect()
    assert len(payment._acquired) == 0 and payment._entered._entries == []
