"""A notification proves nothing, a lost connection is noticed, and a pooler that swallows notifications is detected."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from holdfast.core.driver import LeaseRef
from holdfast.drivers._postgres.notifications import parse_events, parse_theft
from holdfast.errors import StoreError
from support.postgres import Heard, claim_on, connected, grant_of, lease_of, opened, refusal_of, until

BOTH = ["url with asyncpg", "url with psycopg"]


async def channel_of(connection: Any, claim_id: str) -> str:
    channel: str = await connection.fetchval("SELECT channel FROM holdfast_waiters WHERE claim_id = $1", claim_id)
    return channel


@pytest.mark.parametrize("how", BOTH)
async def test_failure_38_a_forged_grant_only_wakes_the_waiter(how: str, postgres_url: str, lock_name: str) -> None:
    async with opened(how, postgres_url) as driver, connected(postgres_url) as attacker:
        held, waiting = claim_on(lock_name), claim_on(lock_name, wait_ms=60_000)
        grant = await grant_of(driver, held)
        heard = Heard()
        await driver.listen(heard)
        await refusal_of(driver, waiting)
        channel = await channel_of(attacker, waiting.claim_id)
        for event in (
            ["granted", waiting.claim_id, lock_name],
            ["granted", waiting.claim_id, "another name"],
            ["granted", waiting.claim_id],
            ["granted", waiting.claim_id, lock_name, 9],
        ):
            await attacker.execute("SELECT pg_notify($1, $2)", channel, json.dumps([event]))
        for payload in ("[", "[[]]", "{}", "nonsense", "[" * 3_000):
            await attacker.execute("SELECT pg_notify($1, $2)", channel, payload)
        await heard.wait_for("wake", waiting.claim_id)
        assert heard.grants == {}
        # It arrives after the forged ones: the server delivers in the order of commits.
        assert await driver.release([lease_of(held, grant)]) == [True]
        await heard.wait_for("granted", waiting.claim_id)
        assert heard.grants[waiting.claim_id].fencing_token > grant.fencing_token


async def test_failure_38_a_flood_of_forged_grants_costs_a_bounded_number_of_queries(
    postgres_url: str, lock_name: str
) -> None:
    async with opened("url with asyncpg", postgres_url) as driver, connected(postgres_url) as attacker:
        held, waiting = claim_on(lock_name), claim_on(lock_name, wait_ms=60_000)
        grant = await grant_of(driver, held)
        heard = Heard()
        await driver.listen(heard)
        await refusal_of(driver, waiting)
        confirmations = 0
        confirm = driver._notify_connection._hints._confirm

        async def counted(claims: Any) -> Any:
            nonlocal confirmations
            confirmations += 1
            return await confirm(claims)

        driver._notify_connection._hints._confirm = counted
        channel = await channel_of(attacker, waiting.claim_id)
        forged = json.dumps([["granted", waiting.claim_id, lock_name]])
        for _ in range(300):
            await attacker.execute("SELECT pg_notify($1, $2)", channel, forged)
        await driver.release([lease_of(held, grant)])
        await heard.wait_for("granted", waiting.claim_id)
        # 20 at once, and after that one in 50 ms.
        assert confirmations < 300


@pytest.mark.parametrize("how", BOTH)
async def test_failure_29_a_listening_connection_that_ends_is_reported_once_and_can_be_replaced(
    how: str, postgres_url: str, lock_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # At once, and not with the next ping.
    monkeypatch.setattr("holdfast.drivers._postgres.notify_connection._PING_SECONDS", 3_600)
    url = f"{postgres_url}?application_name={lock_name}"
    async with connected(postgres_url) as admin, opened(how, url) as driver:
        held, waiting = claim_on(lock_name), claim_on(lock_name, wait_ms=60_000)
        await grant_of(driver, held)
        heard = Heard({held.claim_id, waiting.claim_id})
        await driver.listen(heard)
        await refusal_of(driver, waiting)
        session = await driver._notify_connection._current.opened
        await admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1 AND pid = $2",
            lock_name,
            session.server_pid,
        )
        await heard.wait_for("disconnected")
        assert isinstance(heard.causes[0], StoreError) and heard.causes[0].retryable
        again = Heard({held.claim_id, waiting.claim_id})
        await driver.listen(again)
        await driver.release([LeaseRef(lock_name, held.claim_id)])
        await again.wait_for("granted", waiting.claim_id)
        assert heard.events == [("disconnected", None)]


@pytest.mark.parametrize("how", BOTH)
async def test_a_pooler_that_swallows_notifications_is_detected(
    how: str, pgbouncer_url: str, lock_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.drivers._postgres.notify_connection._DELIVERY_SECONDS", 0.2)
    async with opened(how, pgbouncer_url) as driver:
        await grant_of(driver, claim_on(lock_name))
        with pytest.raises(StoreError, match="pooler in transaction mode") as refused:
            await driver.listen(Heard())
        assert refused.value.retryable
        # Locks work nevertheless, and waiters poll.
        await refusal_of(driver, claim_on(lock_name, wait_ms=60_000))


@pytest.mark.parametrize("how", ["url with asyncpg", "url with psycopg", "asyncpg connection"])
async def test_a_listener_that_stops_leaves_no_connection_behind(how: str, postgres_url: str) -> None:
    async with connected(postgres_url) as admin, opened(how, postgres_url) as driver:
        first, second = Heard(set()), Heard(set())
        stops = [await driver.listen(first), await driver.listen(second)]
        session = (await driver._notify_connection._current.opened)
        pid = session.server_pid
        for stop in stops:
            await stop()
            await stop()
        if not session.is_callers:

            async def gone() -> bool:
                return await admin.fetchval("SELECT count(*) FROM pg_stat_activity WHERE pid = $1", pid) == 0

            await until("the connection to be gone", gone)
        assert first.events == second.events == []


async def test_closing_while_the_connection_opens_neither_hangs_nor_leaks(postgres_url: str) -> None:
    async with opened("url with asyncpg", postgres_url) as driver:
        await driver.acquire([])
        opening = asyncio.ensure_future(driver.listen(Heard()))
        await asyncio.sleep(0)
        await driver.close()
        await asyncio.wait([opening], timeout=10)
        assert opening.done()
        if opening.exception() is None:
            await opening.result()()


def test_payloads_of_another_form_are_ignored() -> None:
    event = ["granted", "c", "n"]
    assert parse_events(json.dumps([event, ["wake", "d", "m"], ["lost", "c", "n"], ["wake", 1, "n"], None, "x"])) == [
        ("granted", "c", "n"),
        ("wake", "d", "m"),
    ]
    for payload in ("", "{", "{}", "null", "1", '"x"', "[[[]]]", "[" * 100_000):
        assert parse_events(payload) == []
        assert parse_theft(payload) == ([], "")
    assert parse_theft('{"lost": ["a", 1, "b"], "by": "x"}') == (["a", "b"], "x")
