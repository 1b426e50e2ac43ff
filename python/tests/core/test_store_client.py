"""Lists, deadlines and late answers."""

from __future__ import annotations

import asyncio
from typing import Any, AsyncIterator

import pytest
from holdfast import HoldfastError, OverloadError, StoreError
from holdfast.core import batch, holder
from holdfast.core.driver import Grant, InspectQuery

from conformance.faulty_network import fails, hold_reply, hold_request
from support.locks import Locks, until


@pytest.fixture
async def locks() -> AsyncIterator[Locks]:
    opened = Locks()
    yield opened
    await opened.close()


async def test_all_requests_of_one_turn_go_out_in_one_call(locks: Locks) -> None:
    lock, network = locks.behind_network()
    await lock.ping()
    calls = network.counts["acquire"].calls
    results = await asyncio.gather(*(lock.acquire(f"n{number}") for number in range(50)))
    assert all(results)
    assert network.counts["acquire"].calls == calls + 1
    await asyncio.gather(*(lock.release(f"n{number}") for number in range(50)))
    assert network.counts["release"].calls == 2


async def test_instances_on_one_driver_share_their_lists(locks: Locks) -> None:
    from holdfast import DistributedLock

    _, network = locks.behind_network()
    one, two = DistributedLock(network.driver), DistributedLock(network.driver)
    await asyncio.gather(one.ping(), two.ping())
    calls = network.counts["acquire"].calls
    await asyncio.gather(one.acquire("a"), two.acquire("b"))
    assert network.counts["acquire"].calls == calls + 1
    await one.close()
    assert await two.release("b") is True
    await two.close()


async def test_renewals_that_are_due_go_out_in_few_calls(locks: Locks) -> None:
    clock = locks.steer()
    lock, network = locks.behind_network()
    await asyncio.gather(*(lock.hold(f"n{number}", timeout_seconds=600) for number in range(40)))
    clock.advance(240)
    await until(lambda: network.counts["renew"].requests >= 40)
    assert network.counts["renew"].calls <= 15


async def test_a_long_list_is_cut_but_never_inside_a_group(
    locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "MAX_LIST", 10)
    lock, network = locks.behind_network()
    await lock.ping()
    network.counts["acquire"].calls = 0
    sizes = []
    acquire = network.driver.acquire

    async def seen(claims: Any) -> Any:
        sizes.append([claim.group for claim in claims])
        return await acquire(claims)

    lists = lock._instance.holder._store._acquires  # type: ignore[union-attr]
    monkeypatch.setattr(lists, "_send", seen)
    blocks = [lock.locks([f"{block}{letter}" for letter in "abcd"]) for block in range(6)]
    await asyncio.gather(*(block.__aenter__() for block in blocks))
    assert [len(groups) for groups in sizes] == [8, 8, 8]
    for groups in sizes:
        assert all(groups.count(group) == 4 for group in groups)
    await asyncio.gather(*(block.__aexit__(None, None, None) for block in blocks))


async def test_a_call_without_an_answer_is_an_error_in_time_and_is_not_cancelled(locks: Locks) -> None:
    lock, network = locks.behind_network(call_timeout_seconds=0.3)
    await lock.ping()
    held = hold_reply()
    network.once("acquire", held.fault)
    with pytest.raises(StoreError, match="did not answer acquire within 0.3 s") as raised:
        await lock.acquire("a")
    assert raised.value.retryable
    # Rule 6: the withdrawal may have come before the late grant.
    await until(lambda: locks.holders == 0)
    held.resume()
    assert isinstance((await held.answer)[0], Grant), "the driver's call went on"
    await until(lambda: locks.holders == 0)


async def test_a_grant_that_is_made_after_the_withdrawal_is_withdrawn_again(locks: Locks) -> None:
    lock, network = locks.behind_network(call_timeout_seconds=0.3)
    await lock.ping()
    held = hold_request()
    network.once("acquire", held.fault)
    with pytest.raises(StoreError):
        await lock.acquire("a")
    releases = network.counts["release"].answered
    await until(lambda: network.counts["release"].answered > releases or releases > 1)
    held.resume()
    await held.answer
    await until(lambda: network.counts["release"].answered >= 2 and locks.holders == 0)


async def test_a_late_answer_to_a_request_before_the_one_that_was_granted_does_not_revive_a_released_lock(
    locks: Locks,
) -> None:
    """FAILURES 39: the first request is answered after the lease of the second was released."""
    lock, network = locks.behind_network(call_timeout_seconds=0.3)
    await lock.ping()
    held = hold_request()
    network.once("acquire", held.fault)
    result = await lock.acquire("a", blocking_timeout_seconds=5)
    assert result
    assert await result.lease.release() is True
    held.resume()
    await held.answer
    await until(lambda: locks.holders == 0)


async def test_an_answer_that_is_none_is_unknown(locks: Locks) -> None:
    lock, network = locks.behind_network()
    await lock.ping()
    for answer in (None, [], [True], ["yes"], [None]):

        async def wrong(forward: Any, answer: Any = answer) -> Any:
            return answer

        network.once("acquire", wrong)
        with pytest.raises(StoreError, match="the memory driver returned"):
            await lock.acquire("a")


async def test_a_password_in_a_clients_error_does_not_appear(locks: Locks) -> None:
    lock, network = locks.behind_network()
    await lock.ping()

    async def leaks(forward: Any) -> Any:
        raise ConnectionError("cannot reach redis://me:hunter2@db:6379/0")

    network.once("acquire", leaks)
    with pytest.raises(StoreError) as raised:
        await lock.acquire("a")
    error: "BaseException | None" = raised.value
    while error is not None:
        assert "hunter2" not in str(error) and "hunter2" not in repr(error)
        error = error.__cause__ or error.__context__


async def test_pending_claims_are_bounded(locks: Locks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holder, "MAX_PENDING_CLAIMS", 3)
    lock = locks()
    await lock.acquire("a")
    waiting = [asyncio.ensure_future(lock.acquire("a", blocking=True)) for _ in range(3)]
    await until(lambda: locks.waiters == 3)
    with pytest.raises(OverloadError):
        await lock.acquire("b")
    with pytest.raises(OverloadError):
        async with lock.locks(["b", "c"]):
            pass
    for task in waiting:
        task.cancel()


async def test_a_failed_release_is_sent_again_a_bounded_number_of_times(
    locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.core.store_client.backoff_ms", lambda *_: 1)
    lock, network = locks.behind_network()
    lease = (await lock.acquire("a")).lease
    network.always("release", fails)
    assert lease is not None
    with pytest.raises(HoldfastError):
        await lease.release()
    await until(lambda: network.counts["release"].calls == 7)
    await asyncio.sleep(0.02)
    assert network.counts["release"].calls == 7
    network.heal()


async def test_the_subscription_exists_only_while_someone_waits(
    locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.core.wake_ups._IDLE_MS", 10)
    lock, network = locks.behind_network()
    await lock.acquire("a")
    assert network.counts["listen"].calls == 0
    waiting = [asyncio.ensure_future(lock.acquire("a", blocking=True)) for _ in range(3)]
    await until(lambda: network.counts["listen"].answered)
    assert len(locks.store.listeners) == 1
    for task in waiting:
        task.cancel()
    await until(lambda: not locks.store.listeners)
    assert network.counts["listen"].calls == 1


async def test_inspect_on_a_store_that_hangs_is_an_error(locks: Locks) -> None:
    lock, network = locks.behind_network(call_timeout_seconds=0.3)
    await lock.ping()
    network.cut()
    with pytest.raises(StoreError):
        await lock.is_locked("a")
    network.heal()
    assert locks.store.inspect(InspectQuery()).leases == []
