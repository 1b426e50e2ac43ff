"""Failure 32: another program has the write lock. And long lists, which are cut into several transactions."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path
from typing import Any, AsyncIterator, Callable, List, Sequence

import pytest

from holdfast.core.driver import Grant, InspectQuery, LeaseRef, RateAnswer, RateLimit, RateRequest, Refusal, Renewal
from holdfast.drivers._sqlite.busy import MAX_BUSY_SECONDS, Patience
from holdfast.drivers._sqlite.database import Database
from holdfast.drivers._sqlite.errors import store_error_from
from holdfast.drivers.sqlite import SqliteDriver
from holdfast.errors import ClosedError, StoreError
from support.sqlite_driver import claim_on, grant_of, is_granted, lease_of, opened

LENGTH = 500
"""Three transactions: 200, 200 and 100 entries."""
BAD = 250
"""An entry of the second transaction."""
TOO_LONG = r"locks\.db: another connection has kept the write lock for too long"


@pytest.fixture
async def driver(sqlite_url: str) -> AsyncIterator[SqliteDriver]:
    async with opened(sqlite_url) as driver:
        yield driver


@pytest.fixture
async def other(driver: SqliteDriver, sqlite_path: Path) -> sqlite3.Connection:
    """Another program on the same file."""
    return sqlite3.connect(sqlite_path, isolation_level=None)


def name_of(index: int) -> str:
    return f"name {index:03}"


async def test_for_a_moment_the_claim_is_granted_when_the_lock_is_free(
    driver: SqliteDriver, other: sqlite3.Connection
) -> None:
    other.execute("BEGIN IMMEDIATE")
    granting = asyncio.ensure_future(grant_of(driver, claim_on("name")))
    await asyncio.sleep(MAX_BUSY_SECONDS / 10)
    assert not granting.done()
    other.execute("COMMIT")
    await granting


async def test_for_longer_than_the_bound_every_call_is_an_error_that_says_so_and_the_event_loop_runs(
    driver: SqliteDriver, other: sqlite3.Connection
) -> None:
    held = claim_on("held before")
    grant = await grant_of(driver, held)
    other.execute("BEGIN IMMEDIATE")
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.02)
            ticks += 1

    ticking = asyncio.ensure_future(tick())
    started = time.monotonic()
    calls: Sequence[Any] = await asyncio.gather(
        driver.acquire([claim_on("name")]),
        driver.renew([Renewal("held before", held.claim_id, grant.fencing_token, 60_000)]),
        driver.release([lease_of(held, grant)]),
        driver.acquire([claim_on(name_of(index)) for index in range(LENGTH)]),
        return_exceptions=True,
    )
    took = time.monotonic() - started
    ticking.cancel()
    for error in calls:
        with pytest.raises(StoreError, match=TOO_LONG) as raised:
            raise error
        assert raised.value.retryable
    assert took >= MAX_BUSY_SECONDS
    # They wait for the lock at the same time, and not one after the other, which would take six times as long.
    assert took < MAX_BUSY_SECONDS * 6
    # A blocked event loop would have one tick at the end. An idle machine has a hundred.
    assert ticks >= 3
    # Leases can be inspected meanwhile, and what was refused has left nothing behind.
    assert [lease.claim_id for lease in (await driver.inspect(InspectQuery())).leases] == [held.claim_id]
    other.execute("ROLLBACK")
    await grant_of(driver, claim_on("name"))


async def test_a_file_that_was_in_use_before_opens_during_a_transaction_of_another_program(
    sqlite_url: str, other: sqlite3.Connection
) -> None:
    other.execute("BEGIN IMMEDIATE")
    async with opened(sqlite_url) as late:
        assert (await late.inspect(InspectQuery())).leases == []
    other.execute("ROLLBACK")


async def test_a_bug_inside_a_transaction_leaves_no_transaction_open(driver: SqliteDriver) -> None:
    with pytest.raises(TypeError):
        await driver.acquire([claim_on("first"), claim_on("name", metadata={"no JSON": object()})])
    assert (await driver.inspect(InspectQuery())).leases == []
    await grant_of(driver, claim_on("name"))


async def test_a_full_disk_grants_nothing_and_held_locks_stay_held(driver: SqliteDriver) -> None:
    before = await grant_of(driver, claim_on("held before"))
    database = driver._connection._database
    assert database is not None
    pages = database.rows("PRAGMA page_count")[0][0]
    database.rows(f"PRAGMA max_page_count = {pages}")
    large = claim_on("large", metadata={"text": "x" * 10_000})
    for group in (None, None, "all or none"):
        small = claim_on("small", group=group)
        with pytest.raises(StoreError, match=r"locks\.db: the disk is full"):
            await driver.acquire([small, claim_on("large", metadata=large.metadata, group=group)])
    assert [lease.lock_name for lease in (await driver.inspect(InspectQuery())).leases] == ["held before"]
    database.rows("PRAGMA max_page_count = 1000000")
    assert (await grant_of(driver, large)).fencing_token > before.fencing_token


async def test_a_failed_part_of_a_long_list_keeps_the_answers_of_the_other_parts(
    driver: SqliteDriver, other: sqlite3.Connection
) -> None:
    def fail_on(change: str, table: str, column: str) -> None:
        other.execute(
            f"CREATE TRIGGER fails BEFORE {change} ON {table} WHEN {column} = '{name_of(BAD)}' "
            "BEGIN SELECT RAISE(ABORT, 'no room for this one'); END"
        )

    def only_bad_part_fails(answers: Sequence[Any], succeeded: Callable[[Any], bool]) -> None:
        assert len(answers) == LENGTH
        for index, answer in enumerate(answers):
            if 200 <= index < 400:
                assert isinstance(answer, StoreError) and "no room for this one" in str(answer)
            else:
                assert succeeded(answer), (index, answer)

    claims = [claim_on(name_of(index)) for index in range(LENGTH)]
    fail_on("INSERT", "holdfast_leases", "NEW.lock_name")
    only_bad_part_fails(await driver.acquire(claims), lambda answer: isinstance(answer, Grant))
    # What the store has is what was answered: the failed part was rolled back.
    assert other.execute("SELECT COUNT(*) FROM holdfast_leases").fetchone() == (LENGTH - 200,)
    other.execute("DROP TRIGGER fails")
    grants = await driver.acquire(claims)
    leases: List[LeaseRef] = [lease_of(claim, grant) for claim, grant in zip(claims, grants)]  # type: ignore[arg-type]

    fail_on("UPDATE", "holdfast_leases", "NEW.lock_name")
    renewals = [Renewal(lease.lock_name, lease.claim_id, lease.fencing_token or 0, 60_000) for lease in leases]
    only_bad_part_fails(await driver.renew(renewals), lambda answer: bool(answer == "renewed"))
    other.execute("DROP TRIGGER fails")

    fail_on("DELETE", "holdfast_leases", "OLD.lock_name")
    only_bad_part_fails(await driver.release(leases), lambda answer: answer is True)
    assert other.execute("SELECT COUNT(*) FROM holdfast_leases").fetchone() == (200,)
    other.execute("DROP TRIGGER fails")

    fail_on("INSERT", "holdfast_rates", "NEW.name")
    requests = [RateRequest(name_of(index), 1, [RateLimit(1, 60_000, 1)]) for index in range(LENGTH)]
    only_bad_part_fails(await driver.consume(requests), lambda answer: bool(answer.allowed))
    other.execute("DROP TRIGGER fails")
    # What was answered was taken, and nothing else.
    again = await driver.consume(requests)
    allowed = [isinstance(each, RateAnswer) and each.allowed for each in again]
    assert allowed == [200 <= at < 400 for at in range(LENGTH)]


async def test_a_long_list_raises_if_every_part_fails(driver: SqliteDriver, other: sqlite3.Connection) -> None:
    other.execute(
        "CREATE TRIGGER fails BEFORE INSERT ON holdfast_leases BEGIN SELECT RAISE(ABORT, 'no room for this one'); END"
    )
    claims = [claim_on(name_of(index)) for index in range(LENGTH)]
    with pytest.raises(StoreError, match="no room for this one"):
        await driver.acquire(claims)
    await driver.close()
    with pytest.raises(ClosedError):
        await driver.acquire(claims)


async def test_a_group_of_claims_stays_in_one_transaction(driver: SqliteDriver) -> None:
    def in_group(index: int) -> bool:
        return 150 <= index < 250

    claims = [
        claim_on(name_of(index), group="all or none" if in_group(index) else None) for index in range(LENGTH)
    ]
    last = claim_on(name_of(249))
    await grant_of(driver, last)
    answers = await driver.acquire(claims)
    assert [isinstance(answer, Grant) for answer in answers] == [not in_group(index) for index in range(LENGTH)]
    page = await driver.inspect(InspectQuery(prefix="name 2", page_size=100))
    held = [lease.claim_id for lease in page.leases if lease.lock_name < name_of(250)]
    assert held == [last.claim_id]


async def test_the_claims_of_a_long_list_queue_in_their_order_even_if_another_process_has_the_write_lock_at_first(
    driver: SqliteDriver, other: sqlite3.Connection
) -> None:
    await grant_of(driver, claim_on("name"))
    other.execute("BEGIN IMMEDIATE")
    claims = [claim_on("name", waiter_ttl_ms=60_000) for _ in range(LENGTH)]
    asking = asyncio.ensure_future(driver.acquire(claims))
    await asyncio.sleep(0.05)
    other.execute("ROLLBACK")
    answers = await asking
    assert all(isinstance(answer, Refusal) for answer in answers)
    ahead = [min(answer.ahead or 0, 32) for answer in answers if isinstance(answer, Refusal)]
    assert ahead == [min(at, 32) for at in range(LENGTH)]
    rows = other.execute("SELECT claim_id FROM holdfast_waiters ORDER BY place").fetchall()
    assert [claim_id for (claim_id,) in rows] == [claim.claim_id for claim in claims]


async def test_concurrent_calls_are_answered_in_their_order(driver: SqliteDriver) -> None:
    await grant_of(driver, claim_on("name"))
    claims = [claim_on("name", waiter_ttl_ms=60_000) for _ in range(20)]
    answers = await asyncio.gather(*(driver.acquire([claim]) for claim in claims))
    assert [answer.ahead for [answer] in answers] == list(range(20))  # type: ignore[union-attr]


async def test_a_transaction_that_another_thread_keeps_open_does_not_let_a_claim_in(
    sqlite_url: str, sqlite_path: Path
) -> None:
    """Two drivers of one process have a connection each, so they exclude each other as two processes do."""
    async with opened(sqlite_url) as first, opened(sqlite_url) as second:
        claims = [[claim_on(f"name {at}") for at in range(50)] for _ in range(2)]
        both = await asyncio.gather(first.acquire(claims[0]), second.acquire(claims[1]))
        for a, b in zip(*both):
            assert isinstance(a, Grant) != isinstance(b, Grant)
        assert not await is_granted(first, claim_on("name 0"))


def test_sqlite_protocol_a_race_for_the_index_of_the_log_is_tried_again() -> None:
    error = sqlite3.OperationalError("locking protocol")
    tries = 0

    def attempt() -> str:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise error
        return "done"

    assert Patience().until_free("/locks.db", attempt, time.monotonic() + 1) == "done"
    assert tries == 2
    wrapped = store_error_from(error, "/locks.db")
    assert isinstance(wrapped, StoreError) and wrapped.retryable


async def test_failure_75_a_claim_tries_less_and_less_often_and_a_heartbeat_every_few_milliseconds(
    driver: SqliteDriver, other: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy_seconds = 1.5
    held = claim_on("held")
    grant = await grant_of(driver, held)
    tries = {"BEGIN IMMEDIATE": 0}
    transaction = Database.transaction

    def counted(self: Database, begin: str, work: Callable[[], Any]) -> Any:
        tries[begin] = tries.get(begin, 0) + 1
        return transaction(self, begin, work)

    monkeypatch.setattr(Database, "transaction", counted)
    counts = []
    for call in (
        lambda: driver.acquire([claim_on("name")]),
        lambda: driver.renew([Renewal("held", held.claim_id, grant.fencing_token, 60_000)]),
    ):
        other.execute("BEGIN IMMEDIATE")
        tries["BEGIN IMMEDIATE"] = 0
        waiting = asyncio.ensure_future(call())
        await asyncio.sleep(busy_seconds)
        other.execute("COMMIT")
        await waiting
        counts.append(tries["BEGIN IMMEDIATE"])
    claim_tries, heartbeat_tries = counts
    assert claim_tries <= 80, claim_tries
    assert busy_seconds / 0.03 <= heartbeat_tries <= busy_seconds / 0.003, heartbeat_tries


async def test_failure_75_a_heartbeat_goes_before_claims_of_its_own_process_that_wait_for_the_write_lock(
    driver: SqliteDriver, other: sqlite3.Connection
) -> None:
    held = claim_on("held")
    grant = await grant_of(driver, held)
    other.execute("BEGIN IMMEDIATE")
    order: List[str] = []
    claims = [asyncio.ensure_future(driver.acquire([claim_on(f"name {index}")])) for index in range(5)]
    for claim in claims:
        claim.add_done_callback(lambda _: order.append("claim"))
    await asyncio.sleep(0.3)
    renewing = asyncio.ensure_future(driver.renew([Renewal("held", held.claim_id, grant.fencing_token, 60_000)]))
    renewing.add_done_callback(lambda _: order.append("heartbeat"))
    await asyncio.sleep(0.1)
    other.execute("COMMIT")
    assert await renewing == ["renewed"]
    await asyncio.gather(*claims)
    assert order[0] == "heartbeat"
