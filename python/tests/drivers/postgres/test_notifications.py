"""A forged notification has no effect, a lost connection is noticed, and a pooler that swallows notifications is
detected."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import time
from contextlib import asynccontextmanager
from typing import Any, AsyncIterator, List, Sequence, Tuple

import asyncpg
import pytest

from holdfast import DistributedLock
from holdfast.core.driver import InspectQuery, LeaseRef
from holdfast.drivers._postgres.notifications import parse_events, parse_forced
from holdfast.drivers.postgres import PostgresDriver, postgres_driver
from holdfast.errors import StoreError
from support.postgres import Heard, claim_on, connected, grant_of, lease_of, opened, own_schema, refusal_of, until

BOTH = ["url with asyncpg", "url with psycopg"]
WAKE = ("", "", "")
MOST_TOKEN = 2**53 - 1


@asynccontextmanager
async def stranger(url: str) -> AsyncIterator[Tuple[str, Any]]:
    """A schema, and a connection of a role that may connect, and so notify on every channel, and may read every table
    of that schema."""
    role = f"py_{secrets.token_hex(6)}"
    async with own_schema(url) as schema, connected(url) as admin:
        async with opened("url with asyncpg", url, schema=schema) as driver:
            await driver.inspect(InspectQuery())
        await admin.execute(
            f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {role}; "
            f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}"
        )
        try:
            async with connected(url.replace("postgres@", f"{role}@")) as attacker:
                await attacker.execute(f"SET search_path TO {schema}")
                yield schema, attacker
        finally:
            await admin.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


async def address_of(connection: Any, lock_name: str) -> Sequence[str]:
    """The channel of the one waiter, its newest call, and its claim id."""
    address = "SELECT channel, claim_id FROM holdfast_waiters WHERE lock_name = $1"
    row = await connection.fetchrow(address, lock_name)
    return [*row["channel"].split(":"), row["claim_id"]]


def event_of(key: str, call: str, claim_id: str, terms: Sequence[str] = WAKE) -> List[str]:
    """As `holdfast_send_events` makes it."""
    told = " ".join([key, call, *terms, claim_id, key])
    return [claim_id, *terms, hashlib.sha256(told.encode()).hexdigest()]


def grant_terms(ttl_ms: int = 600_000, token: int = MOST_TOKEN) -> Sequence[str]:
    """Of a grant that is newer than every refusal."""
    return str(token), str(int(time.time() * 1_000) + 60_000), str(ttl_ms)


async def notify(connection: Any, channel: str, *events: Any) -> None:
    await connection.execute("SELECT pg_notify($1, $2)", channel, json.dumps(events))


@pytest.mark.parametrize("how", BOTH)
async def test_failure_38_a_role_that_may_read_all_tables_can_forge_neither_a_grant_nor_a_wake_up(
    how: str, postgres_url: str, lock_name: str
) -> None:
    async with stranger(postgres_url) as (schema, attacker), opened(how, postgres_url, schema=schema) as driver:
        held, waiting = claim_on(lock_name), claim_on(lock_name, waiter_ttl_ms=60_000)
        grant = await grant_of(driver, held)
        heard = Heard()
        await driver.listen(heard)
        await refusal_of(driver, waiting)
        channel, call, claim_id = await address_of(attacker, lock_name)
        assert claim_id == waiting.claim_id

        assert await attacker.fetchval("SELECT holdfast_key()") is None
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await attacker.fetchval("SELECT last_value FROM holdfast_key_1")
        forged = json.dumps([f"{channel}:{call}", claim_id, *grant_terms()])
        await attacker.execute("SELECT holdfast_send_events(ARRAY[$1::jsonb])", forged)
        terms = grant_terms()
        for key in ("", "None", "null", call):
            await notify(attacker, channel, event_of(key, call, claim_id, terms))
            await notify(attacker, channel, event_of(key, call, claim_id))
        for event in (
            [claim_id, *terms, ""],
            [claim_id, *WAKE, ""],
            [claim_id, *terms, "\ud800"],
            [claim_id, *(int(term) for term in terms), None],
            ["granted", claim_id, lock_name],
            ["wake", claim_id, lock_name],
        ):
            await notify(attacker, channel, event)
        for payload in ("[", "[[]]", "{}", "nonsense", "[" * 3_000):
            await attacker.execute("SELECT pg_notify($1, $2)", channel, payload)

        # It arrives after the forged ones: the server delivers in the order of commits.
        assert await driver.release([lease_of(held, grant)]) == [True]
        await heard.wait_for("granted", claim_id)
        # Forced releases of other tests are published to every client of the server.
        heard_of_it = [each for each in heard.events if each[0] != "lost" or each[1] == claim_id]
        assert heard_of_it == [("granted", claim_id)]
        [lease] = (await driver.inspect(InspectQuery(lock_name=lock_name))).leases
        assert heard.grants[claim_id].fencing_token == lease.fencing_token < MOST_TOKEN


async def test_failure_38_a_flood_of_forged_messages_costs_no_query_and_the_grant_needs_none_either(
    postgres_url: str, lock_name: str
) -> None:
    async with stranger(postgres_url) as (schema, attacker), connected(postgres_url) as client:
        holder = postgres_driver(client, schema=schema)
        held = claim_on(lock_name)
        grant = await grant_of(holder, held)
        async with opened("url with asyncpg", postgres_url, schema=schema) as driver:
            sent = sent_by(driver)
            lock = DistributedLock(driver, waiter_ttl_seconds=60)
            waiting = asyncio.ensure_future(lock.acquire(lock_name, blocking_timeout_seconds=60))

            def is_settled() -> bool:
                """Until it listens, it polls. Then it asks once more."""
                after = sent[sent.index("listens") :] if "listens" in sent else []
                return "acquire" in after and after[-1] == "answer to acquire"

            await until("the last answer", is_settled)
            sent.clear()
            channel, call, claim_id = await address_of(attacker, lock_name)
            for index in range(1_000):
                about = claim_id if index % 4 == 0 else f"stranger:{index}"
                terms = (str(index + 1), "1", "60000") if index % 8 < 4 else WAKE
                await notify(attacker, channel, event_of("", call, about, terms))
            assert await holder.release([lease_of(held, grant)]) == [True]
            result = await waiting
            assert result.lease is not None and result.lease.held
            assert sent == []
            await lock.close()
        await holder.close()


def sent_by(driver: PostgresDriver) -> List[str]:
    """Will have the name of each statement that the driver sends to change locks, when it is answered, and when the
    driver listens."""
    names = {text: name for name, text in driver._statements.items()}
    connections: Any = driver._connections
    sent: List[str] = []
    query, listen = connections.query, driver.listen

    async def recorded_query(text: str, values: Any) -> Any:
        name = names.get(text, "")
        if name != "acquire":
            return await query(text, values)
        sent.append(name)
        rows = await query(text, values)
        sent.append(f"answer to {name}")
        return rows

    async def recorded_listen(listener: Any) -> Any:
        stop = await listen(listener)
        sent.append("listens")
        return stop

    connections.query = recorded_query
    driver.listen = recorded_listen  # type: ignore[method-assign]
    return sent


async def test_a_grant_of_the_call_before_the_newest_makes_the_claim_ask_and_older_ones_count_for_nothing(
    postgres_url: str, lock_name: str
) -> None:
    async with opened("url with asyncpg", postgres_url) as driver, connected(postgres_url) as admin:
        held = claim_on(lock_name)
        waiting = claim_on(lock_name, waiter_ttl_ms=60_000, ttl_ms=30_000)
        await grant_of(driver, held)
        heard = Heard()
        await driver.listen(heard)
        calls = []
        for _ in range(3):
            await refusal_of(driver, waiting)
            channel, call, claim_id = await address_of(admin, lock_name)
            calls.append(call)
        assert len(set(calls)) == 3
        key = await admin.fetchval("SELECT holdfast_key()")
        oldest, previous, newest = calls
        await notify(admin, channel, event_of(key, oldest, claim_id, grant_terms()), event_of(key, oldest, claim_id))
        await notify(admin, channel, event_of(key, previous, claim_id, grant_terms()))
        await notify(admin, channel, event_of(key, newest, "another", grant_terms()))
        await notify(admin, channel, event_of(key, previous, claim_id))
        await notify(admin, channel, event_of(key, newest, claim_id))
        await notify(admin, channel, event_of(key, newest, claim_id, grant_terms(ttl_ms=600_000, token=7)))
        await heard.wait_for("granted", claim_id)
        assert heard.events == [("wake", claim_id)] * 3 + [("granted", claim_id)]
        # No longer than the claim asked for.
        assert (heard.grants[claim_id].fencing_token, heard.grants[claim_id].ttl_ms) == (7, 30_000)


async def test_a_claim_that_was_granted_or_released_is_told_nothing_more(postgres_url: str, lock_name: str) -> None:
    async with opened("url with asyncpg", postgres_url) as driver, connected(postgres_url) as admin:
        held, given_up, last = claim_on(lock_name), *(claim_on(lock_name, waiter_ttl_ms=60_000) for _ in range(2))
        grant = await grant_of(driver, held)
        heard = Heard()
        await driver.listen(heard)
        await refusal_of(driver, given_up)
        channel, call, _ = await address_of(admin, lock_name)
        assert await driver.release([LeaseRef(lock_name, given_up.claim_id)]) == [False]
        key = await admin.fetchval("SELECT holdfast_key()")
        await notify(admin, channel, event_of(key, call, given_up.claim_id, grant_terms()))
        await refusal_of(driver, last)
        assert await driver.release([lease_of(held, grant)]) == [True]
        await heard.wait_for("granted", last.claim_id)
        assert heard.events == [("granted", last.claim_id)]
        # It asks for itself, and is answered that it has the lease.
        assert (await grant_of(driver, last)).fencing_token == heard.grants[last.claim_id].fencing_token
        assert list(driver._notify_connection._claims.all()) == []


@pytest.mark.parametrize("how", [*BOTH, "asyncpg connection"])
async def test_the_first_call_of_a_driver_may_be_to_listen(how: str, postgres_url: str) -> None:
    async with own_schema(postgres_url) as schema, opened(how, postgres_url, schema=schema) as driver:
        heard = Heard()
        await driver.listen(heard)
        held, waiting = claim_on("x"), claim_on("x", waiter_ttl_ms=60_000)
        grant = await grant_of(driver, held)
        await refusal_of(driver, waiting)
        assert await driver.release([lease_of(held, grant)]) == [True]
        await heard.wait_for("granted", waiting.claim_id)


async def test_a_driver_that_could_not_listen_because_of_missing_tables_looks_again(postgres_url: str) -> None:
    async with own_schema(postgres_url) as schema:
        async with opened("asyncpg connection", postgres_url, schema=schema, migrate=False) as driver:
            with pytest.raises(StoreError, match=f"holdfast migrate --schema {schema}"):
                await driver.listen(Heard())
            async with opened("url with asyncpg", postgres_url, schema=schema) as other:
                await grant_of(other, claim_on("x"))
            await driver.listen(Heard())


@pytest.mark.parametrize("how", BOTH)
async def test_a_key_that_has_changed_is_read_with_the_next_ping(
    how: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.drivers._postgres.notify_connection._PING_SECONDS", 0.05)
    async with own_schema(postgres_url) as schema, opened(how, postgres_url, schema=schema) as driver:
        heard = Heard()
        await driver.listen(heard)
        before = driver._notify_connection._key
        async with connected(postgres_url) as admin:
            await admin.execute(f"SELECT setval('{schema}.holdfast_key_1', 7)")
        await until("another key", lambda: driver._notify_connection._key != before)
        held, waiting = claim_on("x"), claim_on("x", waiter_ttl_ms=60_000)
        grant = await grant_of(driver, held)
        await refusal_of(driver, waiting)
        assert await driver.release([lease_of(held, grant)]) == [True]
        await heard.wait_for("granted", waiting.claim_id)


@pytest.mark.parametrize("how", BOTH)
async def test_failure_29_a_listening_connection_that_ends_is_reported_once_and_can_be_replaced(
    how: str, postgres_url: str, lock_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # At once, and not with the next ping.
    monkeypatch.setattr("holdfast.drivers._postgres.notify_connection._PING_SECONDS", 3_600)
    url = f"{postgres_url}?application_name={lock_name}"
    async with connected(postgres_url) as admin, opened(how, url) as driver:
        held, waiting = claim_on(lock_name), claim_on(lock_name, waiter_ttl_ms=60_000)
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
        await refusal_of(driver, claim_on(lock_name, waiter_ttl_ms=60_000))


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
    wake, grant = ["c", "", "", "", "p"], ["d", "1", "2.500000", "3.000000", "p"]
    others = [wake[:4], [*wake, ""], [1, *wake[1:]], ["granted", "c", "n"], None, "x", {}, []]
    numbers = [["d", *terms, "p"] for terms in (("1", "2", ""), ("1.5", "2", "3"), ("1_0", "2", "3"), ("1", "x", "3"))]
    found = parse_events(json.dumps([wake, *others, *numbers, grant]))
    assert [event.claim_id for event in found] == ["c", "d"]
    assert found[0].grant is None
    assert found[1].grant is not None
    assert (found[1].grant.fencing_token, found[1].grant.acquired_at_ms, found[1].grant.ttl_ms) == (1, 2.5, 3)
    for payload in ("", "{", "{}", "null", "1", '"x"', "[[[]]]", "[" * 100_000):
        assert parse_events(payload) == []
        assert parse_forced(payload) == ([], "")
    assert parse_forced('{"lost": ["a", 1, "b"], "by": "x"}') == (["a", "b"], "x")


def test_a_proof_that_is_no_text_proves_nothing() -> None:
    """It must not end the connection that listens."""
    [event] = parse_events('[["\\ud800","","","","\\udfff"]]')
    assert not event.is_proved_by("key", "call")
