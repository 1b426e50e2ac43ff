"""Failure 42: one file under two names, or one name for two files.

SQLite finds a database's write-ahead log by the database's name. Two processes that open one database under two names,
or one name with two logs, do not see each other's leases. The driver in this process has to notice it. The other
process is one of Node, which opens the path anew.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any, Awaitable, Callable, List

import pytest

from holdfast.core.driver import InspectQuery, Renewal
from holdfast.drivers._sqlite.mounts import is_mount_point
from holdfast.errors import StoreError
from support.node_worker import NodeWorker
from support.sqlite_driver import (
    NODE_DRIVER,
    Heard,
    claim_on,
    grant_of,
    in_node,
    is_granted,
    lease_of,
    opened,
)

StartNode = Callable[..., Awaitable[NodeWorker]]


class Other:
    """A driver in another process."""

    def __init__(self, worker: NodeWorker) -> None:
        self._worker = worker

    async def grant(self, claim: Any) -> int:
        [answer] = await self._worker.call("acquire", [in_node(claim)])
        assert answer["granted"], answer
        return int(answer["fencingToken"])

    async def is_granted(self, claim: Any) -> bool:
        [answer] = await self._worker.call("acquire", [in_node(claim)])
        return bool(answer["granted"])


@pytest.fixture
def other(node_worker: StartNode) -> Callable[[Path], Awaitable[Other]]:
    async def start(path: Path) -> Other:
        worker = await node_worker(NODE_DRIVER)
        await worker.call("open", f"sqlite:{path}")
        return Other(worker)

    return start


OpenOther = Callable[[Path], Awaitable[Other]]


def renewal(claim: Any, token: int) -> Renewal:
    return Renewal(claim.lock_name, claim.claim_id, token, 60_000)


async def test_a_file_with_two_hard_links_is_refused_under_both_names(sqlite_path: Path) -> None:
    async with opened(f"sqlite:{sqlite_path}"):
        pass
    second = sqlite_path.with_name("other.db")
    os.link(sqlite_path, second)
    for path in (sqlite_path, second):
        with pytest.raises(StoreError, match="has 2 hard links"):
            async with opened(f"sqlite:{path}"):
                pass


async def test_a_hard_link_that_is_made_while_the_file_is_open_stops_all_grants_until_it_is_removed(
    sqlite_path: Path,
) -> None:
    async with opened(f"sqlite:{sqlite_path}") as driver:
        held = claim_on("held")
        grant = await grant_of(driver, held)
        second = sqlite_path.with_name("other.db")
        os.link(sqlite_path, second)
        with pytest.raises(StoreError, match="has 2 hard links"):
            await driver.acquire([claim_on("name")])
        with pytest.raises(StoreError, match="has 2 hard links"):
            await driver.renew([renewal(held, grant.fencing_token)])
        second.unlink()
        assert await driver.renew([renewal(held, grant.fencing_token)]) == ["renewed"]
        assert await is_granted(driver, claim_on("name"))


MOUNTS = r"""
28 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
40 28 254:0 /srv/locks.db /data/locks.db rw,relatime - ext4 /dev/vda rw,discard
41 28 254:0 /srv/a\040b.db /data/a\040b.db rw,relatime - ext4 /dev/vda rw,discard
42 28 254:0 /srv/hidden.db /mnt/hidden.db rw,relatime - ext4 /dev/vda rw,discard
43 28 0:48 / /mnt rw - tmpfs tmpfs rw,size=64k
"""


@pytest.mark.parametrize(
    "path, is_mounted",
    [
        ("/data/locks.db", True),
        ("/data/a b.db", True),
        ("/data/other.db", False),
        ("/mnt/hidden.db", False),
    ],
)
def test_a_mount_point_is_found_in_the_table_of_mounts(path: str, is_mounted: bool) -> None:
    assert is_mount_point(path, MOUNTS) == is_mounted


def test_the_table_of_this_machine_can_be_read() -> None:
    assert not is_mount_point(__file__, Path("/proc/self/mountinfo").read_text())


def may_mount() -> bool:
    """CAP_SYS_ADMIN is bit 21. Root in a container often lacks it."""
    line = next(each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("CapEff"))
    return bool(int(line.split()[1], 16) >> 21 & 1)


@pytest.mark.skipif(not may_mount(), reason="only root can mount")
async def test_a_file_that_is_a_mount_point_is_refused(sqlite_path: Path) -> None:
    async with opened(f"sqlite:{sqlite_path}"):
        pass
    inside = sqlite_path.parent / "container/locks.db"
    inside.parent.mkdir()
    inside.touch()
    script = f"""
import asyncio
from holdfast.drivers.sqlite import open_sqlite
for path in ({str(sqlite_path)!r}, {str(inside)!r}):
    try:
        asyncio.run(open_sqlite("sqlite:" + path))
        print("opened")
    except Exception as error:
        print(error)
"""
    # Mounts in a namespace of its own disappear with the process.
    shell = f'mount --bind "{sqlite_path}" "{inside}" && exec "{sys.executable}" -c "$0"'
    command = ["unshare", "--mount", "sh", "-ec", shell, script]
    outside, refused = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert outside == "opened"
    assert 'container/locks.db is a mount point (as with "docker run -v file:file")' in refused


@pytest.mark.parametrize("suffixes", [["-shm"], ["-wal", "-shm"]])
async def test_if_the_files_beside_it_are_replaced_what_another_process_holds_is_not_granted(
    sqlite_path: Path, other: OpenOther, suffixes: List[str]
) -> None:
    async with opened(f"sqlite:{sqlite_path}") as driver:
        held = claim_on("held")
        grant = await grant_of(driver, held)
        for suffix in suffixes:
            os.unlink(f"{sqlite_path}{suffix}")
        rival = await other(sqlite_path)
        assert await rival.grant(claim_on("name")) > grant.fencing_token
        assert not await is_granted(driver, claim_on("name"))
        # Leases in a removed log are lost. If only the index was removed, the log is read again.
        kept = "-wal" not in suffixes
        assert await driver.renew([renewal(held, grant.fencing_token)]) == ["renewed" if kept else "lost"]
        assert await rival.is_granted(claim_on("held")) == (not kept)
        await grant_of(driver, claim_on("late"))
        assert not await rival.is_granted(claim_on("late"))


async def test_two_drivers_of_one_process_which_share_open_files_grant_nothing_until_both_use_the_new_log(
    sqlite_path: Path, other: OpenOther
) -> None:
    async with opened(f"sqlite:{sqlite_path}") as first, opened(f"sqlite:{sqlite_path}") as second:
        for suffix in ("-wal", "-shm"):
            os.unlink(f"{sqlite_path}{suffix}")
        rival = await other(sqlite_path)
        await rival.grant(claim_on("name"))
        for driver in (first, second, first, second):
            try:
                assert not await is_granted(driver, claim_on("name"))
            except StoreError as error:
                assert "still works on the old one" in str(error)
        for driver in (first, second):
            assert not await is_granted(driver, claim_on("name"))


@pytest.mark.parametrize("suffixes", [["-wal"], ["-wal", "-shm"]])
async def test_if_the_log_is_removed_while_no_other_process_has_it_open_held_locks_stay_held(
    sqlite_path: Path, other: OpenOther, suffixes: List[str]
) -> None:
    async with opened(f"sqlite:{sqlite_path}") as driver:
        held = claim_on("held")
        grant = await grant_of(driver, held)
        for suffix in suffixes:
            os.unlink(f"{sqlite_path}{suffix}")
        assert not await is_granted(driver, claim_on("held"))
        assert await driver.renew([renewal(held, grant.fencing_token)]) == ["renewed"]
        assert not await (await other(sqlite_path)).is_granted(claim_on("held"))


@pytest.mark.parametrize("link", ["current", "current.db"])
async def test_if_a_link_in_the_path_is_retargeted_all_continue_in_the_new_file(
    tmp_path: Path, other: OpenOther, link: str
) -> None:
    def retarget(release: str) -> None:
        (tmp_path / "next").symlink_to(release if link == "current" else f"{release}/locks.db")
        (tmp_path / "next").rename(tmp_path / link)

    for release in ("1", "2"):
        (tmp_path / release).mkdir()
        async with opened(f"sqlite:{tmp_path}/{release}/locks.db"):
            pass
    retarget("1")
    asked = tmp_path / ("current/locks.db" if link == "current" else link)
    async with opened(f"sqlite:{asked}") as driver:
        held = claim_on("held")
        grant = await grant_of(driver, held)
        retarget("2")
        rival = await other(asked)
        assert await rival.grant(claim_on("name")) > grant.fencing_token
        assert not await is_granted(driver, claim_on("name"))
        assert await driver.renew([renewal(held, grant.fencing_token)]) == ["lost"]
        await grant_of(driver, claim_on("late"))
        assert not await rival.is_granted(claim_on("late"))
    # The file that was left behind is intact.
    async with opened(f"sqlite:{tmp_path}/1/locks.db") as before:
        page = await before.inspect(InspectQuery(lock_name="held"))
        assert [lease.claim_id for lease in page.leases] == [held.claim_id]


async def test_if_the_file_moves_with_its_link_the_log_that_stays_behind_is_no_longer_written(
    tmp_path: Path, other: OpenOther
) -> None:
    for release in ("1", "2"):
        (tmp_path / release).mkdir()
    (tmp_path / "current").symlink_to("1")
    async with opened(f"sqlite:{tmp_path}/current/locks.db") as driver:
        await grant_of(driver, claim_on("held"))
        (tmp_path / "1/locks.db").rename(tmp_path / "2/locks.db")
        (tmp_path / "next").symlink_to("2")
        (tmp_path / "next").rename(tmp_path / "current")
        rival = await other(tmp_path / "current/locks.db")
        await rival.grant(claim_on("name"))
        assert not await is_granted(driver, claim_on("name"))


def remove_all(path: Path) -> None:
    for suffix in ("-shm", "-wal", ""):
        os.unlink(f"{path}{suffix}")


def remove_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


def replace(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute(f"VACUUM INTO '{path}.copy'")
    connection.close()
    copy = sqlite3.connect(f"{path}.copy", isolation_level=None)
    copy.execute("DELETE FROM holdfast_leases")
    copy.close()
    for suffix in ("-shm", "-wal"):
        os.unlink(f"{path}{suffix}")
    os.rename(f"{path}.copy", path)


@pytest.mark.parametrize("remove", [remove_all, remove_folder, replace])
async def test_if_the_file_is_removed_or_replaced_leases_are_lost_all_drivers_continue_in_the_new_one_and_tokens_rise(
    tmp_path: Path, remove: Callable[[Path], None]
) -> None:
    path = tmp_path / "folder/locks.db"
    url = f"sqlite:{path}"
    async with opened(url) as a, opened(url) as b:
        held, rival, late = claim_on("name"), claim_on("name"), claim_on("name")
        grant = await grant_of(a, held)
        remove(path)
        assert (await grant_of(b, rival)).fencing_token > grant.fencing_token
        assert await a.renew([renewal(held, grant.fencing_token)]) == ["lost"]
        assert await a.release([lease_of(held, grant)]) == [False]
        # Three drivers, one of them just opened, are on one file again.
        async with opened(url) as c:
            for driver in (a, c):
                assert not await is_granted(driver, late)
        page = await a.inspect(InspectQuery(lock_name="name"))
        assert [lease.claim_id for lease in page.leases] == [rival.claim_id]


async def test_a_file_that_is_replaced_by_another_kind_of_file_is_an_error_and_no_grant(sqlite_path: Path) -> None:
    async with opened(f"sqlite:{sqlite_path}") as driver:
        await grant_of(driver, claim_on("name"))
        text = sqlite_path.with_name("text")
        text.write_text("no database\n" * 100)
        for suffix in ("-shm", "-wal"):
            os.unlink(f"{sqlite_path}{suffix}")
        text.rename(sqlite_path)
        for _ in range(3):
            with pytest.raises(StoreError, match="not an SQLite database"):
                await driver.acquire([claim_on("other")])
        sqlite_path.unlink()
        assert await is_granted(driver, claim_on("other"))


async def test_a_waiter_is_told_that_its_file_is_gone_and_waits_in_the_new_one(sqlite_path: Path) -> None:
    url = f"sqlite:{sqlite_path}"
    async with opened(url) as holder, opened(url) as driver:
        await grant_of(holder, claim_on("name"))
        waiting = claim_on("name", waiter_ttl_ms=60_000)
        assert not await is_granted(driver, waiting)
        heard = Heard()
        await driver.listen(heard)
        remove_all(sqlite_path)
        while not heard.causes:
            heard.changed.clear()
            await heard.changed.wait()
        assert "was removed or replaced" in str(heard.causes[0])
        await driver.listen(heard)
        assert await is_granted(driver, waiting)
