"""The driver over `acquire_lock` and `release_lock`, and the idiom that people know: plain asyncpg against ours."""

from __future__ import annotations

import asyncio
from typing import Any, AsyncIterator, Callable, List, Tuple

import asyncpg
import psycopg
import pytest

from holdfast.core.driver import ANY_TOKEN, Claim, Grant, InspectQuery, LeaseRef, Refusal, Renewal
from holdfast.drivers.plain_functions import plain_functions_driver
from holdfast.drivers.postgres import migrate_postgres, postgres_driver
from holdfast.errors import ClosedError, InvalidArgumentError, StoreError, UnsupportedError
from support.names import unique


class Handle:
    """What an application has: `execute` returns rows. Remembers what it was asked."""

    def __init__(self, client: Any, shape: Callable[[List[Any]], Any] = list) -> None:
        self._client = client
        self._shape = shape
        self.calls: List[Tuple[str, Tuple[Any, ...]]] = []

    async def execute(self, sql: str, *args: Any) -> Any:
        self.calls.append((sql, args))
        return self._shape(await self._client.fetch(sql, *args))


@pytest.fixture
async def pool(postgres_url: str) -> AsyncIterator[Any]:
    async with asyncpg.create_pool(postgres_url, min_size=1, max_size=4) as pool:
        await migrate_postgres(pool)
        yield pool


def claim(lock_name: str, ttl_ms: float = 30_000, **changes: Any) -> Claim:
    return Claim(lock_name, unique("claim"), "web-1", ttl_ms, **changes)


async def acquired(driver: Any, wanted: Claim) -> bool:
    [answer] = await driver.acquire([wanted])
    assert isinstance(answer, (Grant, Refusal)), answer
    return isinstance(answer, Grant)


async def test_excludes_the_table_driver_and_plain_asyncpg_and_is_excluded_by_them(pool: Any, lock_name: str) -> None:
    plain, table = plain_functions_driver(Handle(pool)), postgres_driver(pool)
    ours, theirs = claim(lock_name), claim(lock_name)
    assert await acquired(plain, ours)
    assert not await acquired(plain, claim(lock_name))
    assert not await acquired(table, theirs)
    assert await pool.fetchval("SELECT acquire_lock($1, $2, $3)", lock_name, "cron", 30) is False
    assert await plain.release([LeaseRef(lock_name, ours.claim_id)]) == [True]
    assert await acquired(table, theirs)
    assert not await acquired(plain, ours)
    assert await table.release([LeaseRef(lock_name, theirs.claim_id)]) == [True]
    assert await pool.fetchval("SELECT acquire_lock($1, $2, $3)", lock_name, "cron", 30) is True
    assert not await acquired(plain, ours)
    assert not await acquired(table, theirs)
    assert await pool.fetchval("SELECT release_lock($1, $2)", lock_name, "cron") is True
    await table.close()


async def test_select_acquire_lock_with_plain_asyncpg_and_ours_share_one_lock(pool: Any, lock_name: str) -> None:
    driver = postgres_driver(pool)
    try:
        async with pool.acquire() as connection:
            assert await connection.fetchval("SELECT acquire_lock($1, $2, $3)", lock_name, "worker-1", 30)
            # The same holder asking again extends.
            assert await connection.fetchval("SELECT acquire_lock($1, $2, $3)", lock_name, "worker-1", 60)
            [refused] = await driver.acquire([claim(lock_name)])
            assert isinstance(refused, Refusal) and refused.holder is not None
            assert (refused.holder.holder_id, refused.holder.claim_id) == ("worker-1", "plain:worker-1")
            assert await connection.fetchval("SELECT release_lock($1, $2)", lock_name, "worker-1")
            mine = claim(lock_name)
            assert await acquired(driver, mine)
            assert not await connection.fetchval("SELECT acquire_lock($1, $2, $3)", lock_name, "worker-1", 30)
            assert not await connection.fetchval("SELECT release_lock($1, $2)", lock_name, mine.holder_id)
            assert await driver.release([LeaseRef(lock_name, mine.claim_id)]) == [True]
    finally:
        await driver.close()


async def test_two_claims_of_one_holder_exclude_each_other(pool: Any, lock_name: str) -> None:
    driver = plain_functions_driver(Handle(pool))
    long_holder = "h" * 255
    first, second = (Claim(lock_name, unique("c" * 150), long_holder, 30_000) for _ in range(2))
    assert await acquired(driver, first)
    assert not await acquired(driver, second)
    [again] = await driver.acquire([first])
    assert isinstance(again, Grant)
    stored = await pool.fetchval("SELECT holder_id FROM distributed_locks WHERE lock_name = $1", lock_name)
    assert len(stored) == 255 and stored.endswith(first.claim_id)
    assert await driver.release([LeaseRef(lock_name, second.claim_id)]) == [False]
    assert await driver.release([LeaseRef(lock_name, first.claim_id)]) == [True]
    huge = Claim(lock_name, "c" * 400, long_holder, 30_000)
    assert await acquired(driver, huge)
    assert not await acquired(driver, Claim(lock_name, "c" * 399, long_holder, 30_000))
    assert await driver.release([LeaseRef(lock_name, huge.claim_id)]) == [True]


async def test_rule_7_a_renewal_extends_a_lease_and_never_creates_one_again(pool: Any, lock_name: str) -> None:
    driver = plain_functions_driver(Handle(pool))
    mine = claim(lock_name, 1_000, metadata={"job": 7})
    assert await acquired(driver, mine)

    async def left() -> float:
        left = "extract(epoch FROM expires_at - clock_timestamp())::float8"
        sql = f"SELECT {left} FROM distributed_locks WHERE lock_name = $1"
        seconds: float = await pool.fetchval(sql, lock_name)
        return seconds

    assert await driver.renew([Renewal(lock_name, mine.claim_id, 0, 60_000)]) == ["renewed"]
    assert await left() > 30
    [page] = [await driver.inspect(InspectQuery(lock_name))]
    assert [(lease.claim_id, lease.holder_id, lease.metadata) for lease in page.leases] == [
        (mine.claim_id, "web-1", {"job": 7})
    ]
    # Its end is put into the past: no other client asks for the name, so acquire_lock alone would grant it again.
    await pool.execute(
        "UPDATE distributed_locks SET expires_at = clock_timestamp() - interval '1 ms' WHERE lock_name = $1", lock_name
    )
    assert await driver.renew([Renewal(lock_name, mine.claim_id, 0, 60_000)]) == ["lost"]
    assert await left() < 0
    assert await driver.release([LeaseRef(lock_name, mine.claim_id)]) == [False]
    assert await driver.renew([Renewal(unique(), mine.claim_id, 0, 60_000)]) == ["lost"]


async def test_rule_7_a_renewal_that_waited_for_the_row_does_not_touch_a_successors_lease(
    pool: Any, lock_name: str
) -> None:
    driver = plain_functions_driver(Handle(pool))
    mine = claim(lock_name)
    assert await acquired(driver, mine)
    async with pool.acquire() as other:
        transaction = other.transaction()
        await transaction.start()
        await other.execute("SELECT FROM distributed_locks WHERE lock_name = $1 FOR UPDATE", lock_name)
        renewal = asyncio.ensure_future(driver.renew([Renewal(lock_name, mine.claim_id, 0, 60_000)]))
        await asyncio.sleep(0.1)
        await other.execute(
            "UPDATE distributed_locks SET holder_id = 'rival', expires_at = clock_timestamp() + interval '5 s' "
            "WHERE lock_name = $1",
            lock_name,
        )
        await transaction.commit()
        assert await renewal == ["lost"]
    row = await pool.fetchrow(
        "SELECT holder_id, expires_at < clock_timestamp() + interval '10 s' AS same FROM distributed_locks "
        "WHERE lock_name = $1",
        lock_name,
    )
    assert (row["holder_id"], row["same"]) == ("rival", True)


async def test_a_fraction_of_a_second_is_rounded_up(pool: Any, lock_name: str) -> None:
    handle = Handle(pool)
    driver = plain_functions_driver(handle)
    for ttl_ms, seconds in ((1, 1), (1_000, 1), (1_001, 2), (30_000, 30)):
        mine = claim(unique(), ttl_ms)
        [grant] = await driver.acquire([mine])
        assert isinstance(grant, Grant) and grant.ttl_ms == ttl_ms
        assert handle.calls[-2][1][2] == seconds


@pytest.mark.parametrize(
    "shape",
    [
        lambda rows: "SELECT 1",
        lambda rows: b"SELECT 1",
        lambda rows: None,
        lambda rows: True,
        lambda rows: 1,
        lambda rows: iter(rows),
        lambda rows: [],
        lambda rows: ["t"],
        lambda rows: [[1, 2, None, None, None, None]],
        lambda rows: [["true", 2, None, None, None, None]],
        lambda rows: [[True]],
        lambda rows: [list(rows[0]), list(rows[0])],
        # Only the first answer is wrong.
        lambda rows: [[1, *list(rows[0])[1:]]] if len(rows[0]) == 6 else rows,
        lambda rows: "SELECT 1" if len(rows[0]) == 6 else rows,
        lambda rows: "SELECT 1" if len(rows[0]) == 1 else rows,
    ],
)
async def test_an_answer_that_is_not_rows_never_counts_as_acquired_and_leaves_nothing_held(
    pool: Any, lock_name: str, shape: Any
) -> None:
    driver = plain_functions_driver(Handle(pool, shape))
    [answer] = await driver.acquire([claim(lock_name)])
    assert isinstance(answer, StoreError) and not answer.retryable
    assert "returns the rows" in str(answer)
    assert await acquired(plain_functions_driver(Handle(pool)), claim(lock_name))


async def test_clients_whose_execute_returns_no_rows_are_rejected_at_once(pool: Any, postgres_url: str) -> None:
    connection = await psycopg.AsyncConnection.connect(postgres_url)
    async with pool.acquire() as of_pool:
        for handle in (pool, of_pool, connection, object(), None, "postgres://"):
            with pytest.raises(InvalidArgumentError, match="rows"):
                plain_functions_driver(handle)
    await connection.close()

    class Blocking:
        def execute(self, sql: str, *args: Any) -> Any:
            return [[True, 0.0, None, None, None, None]]

    [answer] = await plain_functions_driver(Blocking()).acquire([claim("x")])
    assert isinstance(answer, StoreError) and "awaited" in str(answer)


async def test_failure_40_a_grant_in_an_open_transaction_is_taken_back_and_refused(
    pool: Any, postgres_url: str, lock_name: str
) -> None:
    async with pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        [answer] = await plain_functions_driver(Handle(connection)).acquire([claim(lock_name)])
        assert isinstance(answer, StoreError) and "transaction that your code has begun" in str(answer)
        await transaction.commit()
    assert await acquired(plain_functions_driver(Handle(pool)), claim(lock_name))


async def test_a_failed_entry_costs_the_others_nothing(pool: Any, lock_name: str) -> None:
    bad, good = claim("x" * 300), claim(lock_name)
    answers = await plain_functions_driver(Handle(pool)).acquire([bad, good])
    assert isinstance(answers[0], StoreError) and isinstance(answers[1], Grant)


async def test_says_what_it_cannot_do(pool: Any, lock_name: str) -> None:
    driver = plain_functions_driver(Handle(pool))
    for wanted in (
        claim(lock_name, mode="shared"),
        claim(lock_name, force_up_to=ANY_TOKEN),
        claim(lock_name, group="g"),
    ):
        with pytest.raises(UnsupportedError, match="postgres_driver"):
            await driver.acquire([wanted])
    of = driver.capabilities
    assert not any([of.fencing, of.shared, of.limit, of.queue, of.wake, of.rate, of.force, of.groups])
    with pytest.raises(UnsupportedError):
        await driver.consume([])
    await driver.close()
    with pytest.raises(ClosedError):
        await driver.acquire([claim(lock_name)])


async def test_inspect_lists_what_is_held_in_pages(pool: Any, lock_name: str) -> None:
    driver = plain_functions_driver(Handle(pool))
    names = [f"{lock_name}:{letter}" for letter in "cab"]
    for name in names:
        assert await acquired(driver, claim(name))
    first = await driver.inspect(InspectQuery(prefix=lock_name, page_size=2))
    assert [lease.lock_name for lease in first.leases] == sorted(names)[:2]
    rest = await driver.inspect(InspectQuery(prefix=lock_name, after=first.next, page_size=2))
    assert ([lease.lock_name for lease in rest.leases], rest.next) == (sorted(names)[2:], None)
