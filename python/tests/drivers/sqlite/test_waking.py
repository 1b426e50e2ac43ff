"""The bell, and what waiting costs."""

from __future__ import annotations

import asyncio
import gc
import os
import sqlite3
import stat
from pathlib import Path
from typing import Callable, List

import pytest

from holdfast.core.driver import Claim, LeaseRef, Renewal
from holdfast.drivers._sqlite import bell as bell_module
from holdfast.drivers._sqlite import watch as watch_module
from holdfast.drivers.sqlite import SqliteDriver, open_sqlite, sqlite_driver
from support.sqlite_driver import Heard, claim_on, grant_of, is_granted, lease_of, opened


async def hand_over(url: str) -> None:
    """One driver waits, and is woken by the release of another."""
    async with opened(url) as holder, opened(url) as waiter:
        held, waiting = claim_on("name"), claim_on("name", waiter_ttl_ms=60_000)
        grant = await grant_of(holder, held)
        assert not await is_granted(waiter, waiting)
        heard = Heard()
        stop = await waiter.listen(heard)
        await holder.release([lease_of(held, grant)])
        await asyncio.wait_for(heard.wait_for(waiting), 30)
        assert await is_granted(waiter, waiting)
        await stop()


@pytest.fixture
def only_bell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the poll that covers a missed ring."""
    monkeypatch.setattr(watch_module, "_SAFETY_POLL_SECONDS", 3_600)


@pytest.fixture
def no_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a system that does not report changes of files."""
    monkeypatch.setattr(watch_module, "open_watch", lambda path: None)


async def test_the_bell_wakes_a_waiter_without_a_poll(sqlite_url: str, only_bell: None) -> None:
    await hand_over(sqlite_url)


async def test_the_poll_wakes_a_waiter_where_files_cannot_be_watched(sqlite_url: str, no_watch: None) -> None:
    await hand_over(sqlite_url)


async def test_the_poll_finds_a_change_whose_bell_was_never_rung(
    sqlite_url: str, sqlite_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process was killed between its commit and its ring."""
    monkeypatch.setattr("holdfast.drivers._sqlite.wake_ups.ring_bell", lambda path: None)
    await hand_over(sqlite_url)


async def test_a_bell_that_is_removed_is_replaced(sqlite_url: str, sqlite_path: Path, only_bell: None) -> None:
    async with opened(sqlite_url) as holder, opened(sqlite_url) as waiter:
        held, waiting = claim_on("name"), claim_on("name", waiter_ttl_ms=60_000)
        grant = await grant_of(holder, held)
        assert not await is_granted(waiter, waiting)
        heard = Heard()
        await waiter.listen(heard)
        os.unlink(f"{sqlite_path}-bell")
        while not os.path.exists(f"{sqlite_path}-bell"):
            await asyncio.sleep(0.001)
        await holder.release([lease_of(held, grant)])
        await asyncio.wait_for(heard.wait_for(waiting), 30)


def symbolic_link(victim: Path, bell: Path) -> None:
    bell.symlink_to(victim)


def hard_link(victim: Path, bell: Path) -> None:
    os.link(victim, bell)


@pytest.mark.parametrize("trap", [symbolic_link, hard_link])
async def test_a_link_in_place_of_the_bell_is_not_followed_and_waiters_are_still_woken(
    sqlite_url: str, sqlite_path: Path, trap: Callable[[Path, Path], None]
) -> None:
    victim = sqlite_path.with_name("victim")
    victim.write_text("precious")
    trap(victim, Path(f"{sqlite_path}-bell"))
    await hand_over(sqlite_url)
    assert victim.read_text() == "precious"


async def test_a_dangling_link_in_place_of_the_bell_creates_no_file(sqlite_url: str, sqlite_path: Path) -> None:
    Path(f"{sqlite_path}-bell").symlink_to(sqlite_path.with_name("nowhere"))
    await hand_over(sqlite_url)
    assert not sqlite_path.with_name("nowhere").exists()


async def test_a_pipe_in_place_of_the_bell_blocks_no_process(sqlite_url: str, sqlite_path: Path) -> None:
    os.mkfifo(f"{sqlite_path}-bell")
    await hand_over(sqlite_url)


async def test_the_bell_has_the_permissions_of_the_database(sqlite_url: str, sqlite_path: Path) -> None:
    async with opened(sqlite_url):
        pass
    sqlite_path.chmod(0o660)
    await hand_over(sqlite_url)
    assert stat.S_IMODE(os.stat(f"{sqlite_path}-bell").st_mode) == 0o660


@pytest.mark.skipif(os.getuid() != 0, reason="only root can change the owner of a file")
async def test_a_bell_made_by_root_belongs_to_the_owner_of_the_database(sqlite_url: str, sqlite_path: Path) -> None:
    async with opened(sqlite_url):
        pass
    os.chown(sqlite_path, 65534, 65533)
    await hand_over(sqlite_url)
    found = os.stat(f"{sqlite_path}-bell")
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (65534, 65533, 0o600)


async def test_only_what_may_let_a_waiter_in_rings(
    sqlite_url: str, sqlite_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rings: List[str] = []
    monkeypatch.setattr("holdfast.drivers._sqlite.wake_ups.ring_bell", rings.append)
    async with opened(sqlite_url) as driver:
        held = claim_on("name")
        grant = await grant_of(driver, held)
        waiting = claim_on("name", waiter_ttl_ms=60_000)
        assert not await is_granted(driver, waiting)
        await driver.renew([Renewal("name", held.claim_id, grant.fencing_token, 60_000)])
        await grant_of(driver, claim_on("other"))
        await driver.release([LeaseRef("nothing", "of ours")])
        assert rings == []
        await driver.release([lease_of(held, grant)])
        assert rings == [str(sqlite_path)]
        await grant_of(driver, waiting)
        assert len(rings) == 1


async def test_a_shared_grant_rings_for_the_next_reader(sqlite_url: str, only_bell: None) -> None:
    async with opened(sqlite_url) as holder, opened(sqlite_url) as first, opened(sqlite_url) as second:
        held = claim_on("name")
        grant = await grant_of(holder, held)
        readers = [claim_on("name", mode="shared", waiter_ttl_ms=60_000) for _ in range(2)]
        heard = [Heard(), Heard()]
        for driver, reader, each in zip((first, second), readers, heard):
            assert not await is_granted(driver, reader)
            await driver.listen(each)
        await holder.release([lease_of(held, grant)])
        for driver, reader, each in zip((first, second), readers, heard):
            await asyncio.wait_for(each.wait_for(reader), 30)
            assert await is_granted(driver, reader)


async def test_a_withdrawn_first_waiter_wakes_the_next(sqlite_url: str, only_bell: None) -> None:
    async with opened(sqlite_url) as holder, opened(sqlite_url) as waiter:
        await grant_of(holder, claim_on("name", mode="shared"))
        writer = claim_on("name", waiter_ttl_ms=60_000)
        reader = claim_on("name", mode="shared", waiter_ttl_ms=60_000)
        assert not await is_granted(holder, writer)
        assert not await is_granted(waiter, reader)
        heard = Heard()
        await waiter.listen(heard)
        await holder.release([LeaseRef("name", writer.claim_id)])
        await asyncio.wait_for(heard.wait_for(reader), 30)


def count_statements(driver: SqliteDriver) -> List[str]:
    database = driver._connection._database
    assert database is not None
    statements: List[str] = []
    database.connection.set_trace_callback(statements.append)
    return statements


async def test_without_waiters_nothing_runs(sqlite_url: str) -> None:
    async with opened(sqlite_url) as driver, opened(sqlite_url) as other:
        await grant_of(other, claim_on("name"))
        waiter = claim_on("name", waiter_ttl_ms=60_000)
        assert not await is_granted(driver, waiter)
        stop = await driver.listen(Heard())
        await driver.release([waiter_ref(waiter)])
        await stop()
        statements = count_statements(driver)
        for at in range(20):
            await grant_of(other, claim_on(f"other {at}"))
        await asyncio.sleep(0.3)  # For a timer that should not be there.
        assert statements == []


def waiter_ref(claim: Claim) -> LeaseRef:
    return LeaseRef(claim.lock_name, claim.claim_id)


async def test_a_waiter_only_reads_while_others_work_on_the_file(sqlite_url: str) -> None:
    async with opened(sqlite_url) as driver, opened(sqlite_url) as other:
        held = claim_on("name")
        grant = await grant_of(other, held)
        waiter = claim_on("name", waiter_ttl_ms=60_000)
        assert not await is_granted(driver, waiter)
        heard = Heard()
        await driver.listen(heard)
        statements = count_statements(driver)
        for at in range(30):
            await grant_of(other, claim_on(f"other {at}"))
            await other.renew([Renewal("name", held.claim_id, grant.fencing_token, 60_000)])
            await asyncio.sleep(0.01)
        assert {statement.split()[0] for statement in statements} <= {"SELECT", "PRAGMA"}
        # Once, to learn when the lease before it ends.
        assert len(heard.woken) <= 1


async def test_a_waiter_that_becomes_the_first_asks_once_to_learn_when_the_lease_before_it_ends(
    sqlite_url: str,
) -> None:
    async with opened(sqlite_url) as driver, opened(sqlite_url) as other:
        await grant_of(other, claim_on("name"))
        first, second = claim_on("name", waiter_ttl_ms=60_000), claim_on("name", waiter_ttl_ms=60_000)
        assert not await is_granted(other, first)
        assert not await is_granted(driver, second)
        heard = Heard()
        await driver.listen(heard)
        await other.release([waiter_ref(first)])
        await asyncio.wait_for(heard.wait_for(second), 30)
        await asyncio.sleep(0.45)  # For two more polls.
        assert len(heard.woken) == 1


async def test_a_dropped_driver_leaves_no_thread(sqlite_url: str) -> None:
    driver = await open_sqlite(sqlite_url)
    thread = driver._thread._thread
    assert thread is not None and thread.is_alive()
    del driver
    for _ in range(1_000):
        # The thread may still have the last job in its hands.
        gc.collect()
        thread.join(0.01)
        if not thread.is_alive():
            break
    assert not thread.is_alive()


async def test_where_inotify_has_no_room_the_waiter_polls(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(path: str) -> bell_module.BellWatch:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(bell_module, "BellWatch", no_room)
    await hand_over(sqlite_url)


async def test_an_ended_loop_does_not_stop_the_driver_from_working_in_another(sqlite_path: Path) -> None:
    driver = sqlite_driver(sqlite_path)

    def in_own_loop() -> None:
        async def listen() -> None:
            await grant_of(driver, claim_on("name"))
            await driver.acquire([claim_on("name", waiter_ttl_ms=1_000)])
            await driver.listen(Heard())

        asyncio.run(listen())

    await asyncio.to_thread(in_own_loop)
    assert not await is_granted(driver, claim_on("name"))
    await driver.close()
    assert sqlite3.connect(sqlite_path).execute("SELECT COUNT(*) FROM holdfast_leases").fetchone() == (1,)
