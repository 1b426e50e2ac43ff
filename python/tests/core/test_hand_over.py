"""What is special in Python about handing a lease over. The conformance suite has the rest."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any, AsyncIterator

import pytest

from holdfast import InvalidArgumentError, NotHeldError, UnsupportedError

from conformance.faulty_network import hold_reply, hold_request
from support.locks import Locks, until


@pytest.fixture
async def locks() -> AsyncIterator[Locks]:
    opened = Locks()
    yield opened
    await opened.close()


async def test_a_caller_that_is_cancelled_while_it_hands_over_leaves_no_lease(locks: Locks) -> None:
    lock, network = locks.behind_network()
    lease = await lock.hold("a")
    renewal = hold_request()
    network.once("renew", renewal.fault)
    extending = asyncio.ensure_future(lease.extend(10))
    await renewal.reached.wait()
    serializing = asyncio.ensure_future(lease.serialize())
    await asyncio.sleep(0)
    serializing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serializing
    assert not lease.held and locks.holders == 0
    renewal.resume()
    assert await extending is False


async def test_a_restore_that_is_cancelled_can_be_repeated_and_is_trusted_no_longer_than_it(locks: Locks) -> None:
    text = await (await locks().hold("a")).serialize()
    lock, network = locks.behind_network()
    renewal = hold_reply()
    network.once("renew", renewal.fault)
    restoring = asyncio.ensure_future(lock.restore(text, timeout_seconds=5))
    await renewal.reached.wait()
    restoring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await restoring
    lease = await lock.restore(text, timeout_seconds=40)
    assert lease.held and lease.remaining_seconds <= 5
    renewal.resume()


async def test_the_only_use_of_an_extended_lease_is_handed_over_and_one_of_several_is_not(locks: Locks) -> None:
    lock = locks(reacquire="extend")
    first, second = await lock.hold("a"), await lock.hold("a")
    with pytest.raises(UnsupportedError, match="several uses"):
        await first.serialize()
    # The use that ends asks the store, and the lease is handed over meanwhile: it was held to the end.
    leaving = asyncio.ensure_future(second.release())
    await asyncio.sleep(0)
    text = await first.serialize()
    assert await leaving is True
    with pytest.raises(NotHeldError, match="handed over"):
        first.assert_held()
    assert await first.release() is False
    restored = await lock.restore(text)
    joined = await lock.hold("a")
    assert await restored.release() is True
    assert joined.held and await joined.release() is True
    assert locks.holders == 0


async def test_a_restored_lease_is_released_with_its_instance(locks: Locks) -> None:
    text = await (await locks().hold("a")).serialize()
    lock = locks()
    restored = await lock.restore(text, heartbeat=True)
    assert locks.holders == 1
    await lock.close()
    assert locks.holders == 0
    await until(lambda: not restored.held)


async def test_no_other_text_is_restored_and_the_error_does_not_contain_it(locks: Locks) -> None:
    text = await (await locks().hold("a")).serialize()
    prefix, encoded = text.rsplit(".", 1)
    fields = json.loads(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))

    def changed(**changes: Any) -> str:
        return f"{prefix}." + base64.urlsafe_b64encode(json.dumps({**fields, **changes}).encode()).decode()

    wrong = [
        None,
        "",
        encoded,
        text.replace("-1.", "-2."),
        text[:-3],
        changed(more=1),
        changed(fencingToken=0),
        changed(fencingToken=1.5),
        changed(ttlMs=True),
        changed(lockName=""),
        changed(storeAtMs=float("nan")),
        changed(unansweredMs=float("inf")),
        changed(metadata=[]),
        f"{prefix}." + base64.urlsafe_b64encode(b"[" * 100_000).decode(),
    ]
    for each in wrong:
        with pytest.raises(InvalidArgumentError) as refused:
            await locks().restore(each)  # type: ignore[arg-type]
        assert refused.value.argument == "text"
        assert fields["claimId"] not in str(refused.value) and refused.value.__cause__ is None
        assert refused.value.__context__ is None
