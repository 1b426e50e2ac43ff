"""What is in the file: rows of a clock that was set back, rows that have ended, tokens, and how much of it is read."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any, AsyncIterator, Awaitable, Callable, List, Sequence

import pytest

from holdfast.core.driver import ANY_TOKEN, Grant, InspectQuery, RateAnswer, RateLimit, RateRequest, Refusal
from holdfast.drivers.sqlite import SqliteDriver
from holdfast.errors import InvalidArgumentError
from support.node_process import REPOSITORY
from support.sqlite_driver import claim_on, grant_of, is_granted, lease_of, opened, refusal_of

NOW = "CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)"
MANY = 20_000
HOUR_MS = 3_600_000


@pytest.fixture
async def driver(sqlite_url: str) -> AsyncIterator[SqliteDriver]:
    async with opened(sqlite_url) as driver:
        yield driver


@pytest.fixture
def file(driver: SqliteDriver, sqlite_path: Path) -> sqlite3.Connection:
    """The same file, read and written without the driver."""
    return sqlite3.connect(sqlite_path, isolation_level=None)


def clock_was_ahead(file: sqlite3.Connection, by_ms: int) -> None:
    """As if everything so far had been written by a clock that was ahead, and has been set back since."""
    file.execute("UPDATE holdfast_leases SET expires_at_ms = expires_at_ms + ?", (by_ms,))
    file.execute("UPDATE holdfast_waiters SET expires_at_ms = expires_at_ms + ?", (by_ms,))
    file.execute("UPDATE holdfast_rates SET reset_at_ms = reset_at_ms + ?", (by_ms,))
    file.execute("UPDATE holdfast_counter SET last_token = last_token + ?", (by_ms * 1_000,))


def now_of(file: sqlite3.Connection) -> int:
    return int(file.execute(f"SELECT {NOW}").fetchone()[0])


async def test_a_lease_of_a_clock_that_was_ahead_ends_its_ttl_from_now(
    driver: SqliteDriver, file: sqlite3.Connection
) -> None:
    ttl_ms = 20_000
    held = claim_on("name", ttl_ms=ttl_ms)
    grant = await grant_of(driver, held)
    clock_was_ahead(file, HOUR_MS)
    refusal = await refusal_of(driver, claim_on("name", waiter_ttl_ms=60_000))
    assert refusal.holder is not None and refusal.holder.expires_at_ms is not None
    assert refusal.holder.expires_at_ms <= now_of(file) + ttl_ms
    assert refusal.ask_again_ms is not None and refusal.ask_again_ms <= ttl_ms
    # It was not ended early. See also test_clock.py.
    assert await driver.release([lease_of(held, grant)]) == [True]


async def test_a_dead_waiter_of_a_clock_that_was_ahead_delays_the_queue_by_its_own_bound_only(
    driver: SqliteDriver, file: sqlite3.Connection
) -> None:
    held = claim_on("name")
    grant = await grant_of(driver, held)
    assert not await is_granted(driver, claim_on("name", waiter_ttl_ms=100))
    clock_was_ahead(file, HOUR_MS)
    waiting = claim_on("name", waiter_ttl_ms=60_000)
    assert not await is_granted(driver, waiting)
    await driver.release([lease_of(held, grant)])
    await asyncio.sleep(0.15)
    assert await is_granted(driver, waiting)


async def test_a_claim_with_force_ends_the_rows_of_a_clock_that_was_ahead_and_tokens_still_rise(
    driver: SqliteDriver, file: sqlite3.Connection
) -> None:
    await grant_of(driver, claim_on("name", ttl_ms=HOUR_MS))
    assert not await is_granted(driver, claim_on("name", waiter_ttl_ms=100))
    clock_was_ahead(file, HOUR_MS)
    [(last_token,)] = file.execute("SELECT last_token FROM holdfast_counter").fetchall()
    grant = await grant_of(driver, claim_on("name", force_up_to=ANY_TOKEN))
    assert grant.fencing_token == last_token + 1
    [(expires_at_ms,)] = file.execute("SELECT expires_at_ms FROM holdfast_waiters").fetchall()
    assert expires_at_ms <= now_of(file) + 100


async def test_a_limit_of_a_clock_that_was_ahead_counts_as_full_and_drains(
    driver: SqliteDriver, file: sqlite3.Connection
) -> None:
    request = RateRequest("key", 1, [RateLimit(10, 1_000, 10)])
    await driver.consume([request])
    clock_was_ahead(file, HOUR_MS)
    [answer] = await driver.consume([request])
    assert isinstance(answer, RateAnswer)
    assert not answer.allowed and answer.retry_after_ms <= 101
    [(reset_at_ms,)] = file.execute("SELECT reset_at_ms FROM holdfast_rates").fetchall()
    assert reset_at_ms <= now_of(file) + 1_001


async def test_tokens_rise_after_the_counter_is_lost(driver: SqliteDriver, file: sqlite3.Connection) -> None:
    """Failure 18."""
    last = 0
    for change in ("", "DELETE FROM holdfast_counter", "UPDATE holdfast_counter SET last_token = 0"):
        if change:
            file.execute(change)
            # Without a counter, a token is the time in milliseconds, so the clock has to move on.
            await asyncio.sleep(0.003)
        claim = claim_on("name")
        grant = await grant_of(driver, claim)
        assert grant.fencing_token > last
        last = grant.fencing_token
        await driver.release([lease_of(claim, grant)])
    assert last >= (now_of(file) - 10_000) * 1_000


async def test_a_row_that_has_ended_counts_for_nothing_and_is_deleted_in_time(
    driver: SqliteDriver, file: sqlite3.Connection
) -> None:
    for name in ("name", "other"):
        await grant_of(driver, claim_on(name))
        assert not await is_granted(driver, claim_on(name, waiter_ttl_ms=60_000))
    await driver.consume([RateRequest("key", 1, [RateLimit(1, 60_000, 1)])])
    clock_was_ahead(file, -2 * 60_000)
    assert await is_granted(driver, claim_on("name"))
    assert [lease.lock_name for lease in (await driver.inspect(InspectQuery())).leases] == ["name"]
    # It sweeps at most once a second, within a transaction that it runs anyway.
    await asyncio.sleep(1)
    await grant_of(driver, claim_on("late"))
    rows = file.execute("SELECT lock_name FROM holdfast_leases ORDER BY lock_name").fetchall()
    assert rows == [("late",), ("name",)]
    for table in ("holdfast_waiters", "holdfast_rates"):
        assert file.execute(f"SELECT COUNT(*) FROM {table}").fetchone() == (0,)


async def test_a_look_at_a_limit_needs_no_write_lock_and_writes_nothing(
    driver: SqliteDriver, file: sqlite3.Connection
) -> None:
    limits = [RateLimit(10, HOUR_MS, 10)]
    await driver.consume([RateRequest("key", 3, limits)])
    file.execute("BEGIN IMMEDIATE")
    [answer] = await driver.consume([RateRequest("key", 0, limits)])
    file.execute("ROLLBACK")
    assert isinstance(answer, RateAnswer) and answer.remaining == 7
    before = file.execute("SELECT * FROM holdfast_rates").fetchall()
    await driver.consume([RateRequest("unknown", 0, limits)])
    assert file.execute("SELECT * FROM holdfast_rates").fetchall() == before


def test_limits_have_the_ids_of_the_test_vectors() -> None:
    from holdfast.drivers._shared.gcra import policy_of

    vectors = json.loads((REPOSITORY / "protocol/vectors/rate-limits.json").read_text())["vectors"]
    for vector in vectors:
        policy = policy_of(RateRequest("key", 1, [RateLimit(vector["limit"], vector["periodMs"], vector["burst"])]))
        assert (policy.ids, policy.fulls_ms) == ((vector["id"],), (vector["fullMs"],))


async def test_fractions_of_a_millisecond_are_rounded_up_to_the_whole_ones_of_the_format(
    driver: SqliteDriver, file: sqlite3.Connection
) -> None:
    grant = await grant_of(driver, claim_on("name", ttl_ms=60_000.25))
    assert grant.ttl_ms == 60_000.25
    await refusal_of(driver, claim_on("name", waiter_ttl_ms=1_000.5))
    row = file.execute("SELECT ttl_ms, expires_at_ms - acquired_at_ms, typeof(expires_at_ms) FROM holdfast_leases")
    assert row.fetchone() == (60_001, 60_001, "integer")
    assert file.execute("SELECT wait_ms, typeof(expires_at_ms) FROM holdfast_waiters").fetchone() == (1_001, "integer")


def share(file: sqlite3.Connection, lock_name: str, leases: int) -> None:
    """Leases of other holders. `lock_name` is an SQL expression of `n`, the row's number."""
    file.execute(
        f"""WITH RECURSIVE rows (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM rows WHERE n < {leases})
        INSERT INTO holdfast_leases
          (lock_name, claim_id, holder_id, mode, permits, fencing_token, acquired_at_ms, expires_at_ms, ttl_ms)
        SELECT {lock_name}, 'lease ' || n, 'other', 'shared', 1, n, {NOW}, {NOW} + 3600000, 3600000 FROM rows"""
    )


def queue_up(file: sqlite3.Connection, lock_name: str, mode: str, waiters: int) -> None:
    file.execute(
        f"""WITH RECURSIVE rows (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM rows WHERE n < {waiters})
        INSERT INTO holdfast_waiters
          (lock_name, claim_id, holder_id, mode, permits, waiting_since_ms, expires_at_ms, wait_ms)
        SELECT '{lock_name}', 'waiter ' || n, 'other', '{mode}', 1, {NOW}, {NOW} + 3600000, 3600000 FROM rows"""
    )


async def steps_of(driver: SqliteDriver, work: Callable[[], Awaitable[Any]]) -> int:
    """How many steps SQLite's virtual machine took, in tens."""
    database = driver._connection._database
    assert database is not None
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    database.connection.set_progress_handler(step, 10)
    await work()
    database.connection.set_progress_handler(None, 10)  # type: ignore[arg-type]
    return steps


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
async def test_asking_again_behind_20_000_waiters_costs_what_it_costs_behind_40(
    driver: SqliteDriver, file: sqlite3.Connection, mode: str
) -> None:
    """Failure 45."""
    steps: List[int] = []
    for name, waiters in (("few", 40), ("many", MANY)):
        await grant_of(driver, claim_on(name))
        queue_up(file, name, mode, waiters)
        claims = [claim_on(name, mode=mode, waiter_ttl_ms=600_000) for _ in range(50)]
        answers = await driver.acquire(claims)
        assert all(isinstance(answer, Refusal) and (answer.ahead or 0) >= 32 for answer in answers)
        steps.append(await steps_of(driver, lambda: driver.acquire(claims)))  # noqa: B023
    assert steps[1] < steps[0] * 1.5, steps


@pytest.mark.parametrize("limit", [None, 5])
async def test_a_claim_beside_20_000_shared_leases_costs_what_it_costs_beside_40(
    driver: SqliteDriver, file: sqlite3.Connection, limit: Any
) -> None:
    steps: List[int] = []
    for name, leases in (("few", 40), ("many", MANY)):
        share(file, f"'{name}'", leases)
        options = {"mode": "exclusive"} if limit is None else {"mode": "shared", "limit": limit, "permits": limit}
        claims = [claim_on(name, **options) for _ in range(20)]
        answers = await driver.acquire(claims)
        assert all(isinstance(answer, Refusal) for answer in answers)
        steps.append(await steps_of(driver, lambda: driver.acquire(claims)))  # noqa: B023
    assert steps[1] < steps[0] * 1.5, steps


async def test_a_page_of_names_costs_as_much_as_in_a_small_database(
    driver: SqliteDriver, file: sqlite3.Connection
) -> None:
    queries = (
        InspectQuery(page_size=5),
        InspectQuery(prefix="name ", page_size=5),
        InspectQuery(after='["name 00003",null,null]', page_size=5),
    )

    async def pages() -> None:
        for query in queries:
            assert len((await driver.inspect(query)).leases) == 5

    share(file, "'name ' || substr(100000 + n, 2)", 40)
    few = await steps_of(driver, pages)
    file.execute("DELETE FROM holdfast_leases")
    share(file, "'name ' || substr(100000 + n, 2)", MANY)
    many = await steps_of(driver, pages)
    assert many < few * 1.5, (few, many)


async def test_a_page_with_very_many_leases_and_waiters_ends_early_even_within_a_name_and_the_next_one_goes_on(
    driver: SqliteDriver, file: sqlite3.Connection
) -> None:
    """Failure 51."""
    for name in "abc":
        share(file, f"'{name}'", 1_200)
    waiting = [claim_on("b", waiter_ttl_ms=60_000) for _ in range(700)]
    await driver.acquire(waiting)
    for query in (InspectQuery(), InspectQuery(page_size=1), InspectQuery(lock_name="b")):
        leases = set()
        waiters: List[str] = []
        after = None
        while True:
            page = await driver.inspect(InspectQuery(query.lock_name, query.prefix, after, query.page_size))
            assert len(page.leases) + len(page.waiters) <= 500
            leases.update((lease.lock_name, lease.claim_id) for lease in page.leases)
            waiters.extend(waiter.claim_id for waiter in page.waiters)
            after = page.next
            if after is None:
                break
        assert len(leases) == (3_600 if query.lock_name is None else 1_200)
        assert waiters == [claim.claim_id for claim in waiting]


@pytest.mark.parametrize("after", ["x", "{}", "[1,null,null]", '["a",1,null]', '["a",null,"1"]', "[]"])
async def test_what_is_no_end_of_a_page_is_refused(driver: SqliteDriver, after: str) -> None:
    with pytest.raises(InvalidArgumentError, match="after must be `next` of the previous page"):
        await driver.inspect(InspectQuery(after=after))


async def test_a_claim_behind_the_first_32_waiters_is_refused_until_they_are_gone(driver: SqliteDriver) -> None:
    held = claim_on("name")
    grant = await grant_of(driver, held)
    readers = [claim_on("name", mode="shared", waiter_ttl_ms=60_000) for _ in range(34)]
    await driver.acquire(readers)
    await driver.release([lease_of(held, grant)])
    assert not await is_granted(driver, readers[33])
    answers: Sequence[Any] = await driver.acquire(readers[:32])
    assert all(isinstance(answer, Grant) for answer in answers)
    assert await is_granted(driver, readers[33])
