"""A bad file is an error that says why, and never a free lock. A good one belongs to its user."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from holdfast.core.driver import InspectQuery
from holdfast.drivers._sqlite import prepare
from holdfast.drivers._sqlite.mounts import network_file_system_of
from holdfast.drivers.sqlite import open_sqlite
from holdfast.errors import StoreError
from support.sqlite_driver import Heard, claim_on, grant_of, is_granted, lease_of, opened

PAGE_BYTES = 4_096


def execute(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


async def refuses(path: Path, message: str, lock_name: str = "name") -> StoreError:
    with pytest.raises(StoreError, match=message) as raised:
        async with opened(f"sqlite:{path}") as driver:
            await driver.acquire([claim_on(lock_name)])
    return raised.value


async def create(path: Path) -> None:
    async with opened(f"sqlite:{path}"):
        pass


@pytest.mark.parametrize("text", ["not a database\n" * 1_000, "hello"], ids=["long", "short"])
async def test_a_text_file_is_refused_and_left_as_it_was(sqlite_path: Path, text: str) -> None:
    sqlite_path.write_text(text)
    error = await refuses(sqlite_path, "locks.db: it is not an SQLite database; choose another path")
    assert not error.retryable
    assert sqlite_path.read_text() == text


@pytest.mark.parametrize("statement", ["CREATE TABLE customers (name TEXT)", "PRAGMA application_id = 7"])
async def test_a_database_of_another_program_is_refused_and_left_as_it_was(sqlite_path: Path, statement: str) -> None:
    execute(sqlite_path, statement)
    before = sqlite_path.read_bytes()
    error = await refuses(sqlite_path, "locks.db is a database of another program; choose another path")
    assert not error.retryable
    assert sqlite_path.read_bytes() == before


async def test_a_newer_format_is_refused_and_left_as_it_was(sqlite_path: Path) -> None:
    await create(sqlite_path)
    execute(sqlite_path, "UPDATE holdfast_format SET version = 2")
    before = sqlite_path.read_bytes()
    error = await refuses(sqlite_path, "has format 2, and this version of Holdfast knows 1; upgrade Holdfast")
    assert not error.retryable
    assert sqlite_path.read_bytes() == before


async def copy_with_leases(path: Path) -> bytes:
    """A lock file with 200 leases, without a write-ahead log beside it."""
    async with opened(f"sqlite:{path}") as driver:
        await driver.acquire([claim_on(f"name {index}") for index in range(200)])
    copy = path.with_name("copy.db")
    execute(path, f"VACUUM INTO '{copy}'")
    return copy.read_bytes()


async def test_a_held_lock_is_not_free_whatever_page_of_the_file_is_damaged(sqlite_path: Path) -> None:
    whole = await copy_with_leases(sqlite_path)
    for page in range(1, len(whole) // PAGE_BYTES):
        damaged = bytearray(whole)
        damaged[page * PAGE_BYTES : (page + 1) * PAGE_BYTES] = b"\xab" * PAGE_BYTES
        path = sqlite_path.with_name(f"damaged-{page}.db")
        path.write_bytes(damaged)
        try:
            # Damage to a page that a claim does not need may go unnoticed.
            async with opened(f"sqlite:{path}") as driver:
                assert not await is_granted(driver, claim_on("name 100"))
        except StoreError as error:
            assert "it is damaged; end all processes that use it, then delete it" in str(error)


async def test_a_truncated_file_is_refused(sqlite_path: Path) -> None:
    whole = await copy_with_leases(sqlite_path)
    path = sqlite_path.with_name("half.db")
    path.write_bytes(whole[: len(whole) // 2])
    await refuses(path, r"half\.db: (it is damaged|the disk failed)", "name 100")


async def test_a_folder_in_place_of_the_file_is_refused(sqlite_path: Path) -> None:
    sqlite_path.mkdir()
    await refuses(sqlite_path, r"locks\.db: it cannot be opened")


async def test_a_folder_that_cannot_be_created_is_refused() -> None:
    error = await refuses(
        Path("/proc/holdfast/locks.db"), "the folder /proc/holdfast for the lock file cannot be created: .*No such file"
    )
    assert not error.retryable


async def test_an_old_sqlite_is_refused(sqlite_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare.sqlite3, "sqlite_version_info", (3, 34, 1))
    await refuses(sqlite_path, r"needs 3\.35 or later")


async def test_a_file_that_this_user_may_not_write_to_is_refused() -> None:
    # Root may write everywhere, so the process changes to another user after it has loaded its modules.
    script = """
import asyncio, os, sys
from holdfast.drivers.sqlite import open_sqlite
from holdfast.errors import StoreError
if os.getuid() == 0:
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
for path in sys.argv[1:]:
    try:
        asyncio.run(open_sqlite("sqlite:" + path))
    except StoreError as error:
        print(error)
"""
    # Not below pytest's own folder, which other users may not enter.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "locks.db")
        await create(path)
        path.chmod(0o444)
        path.parent.chmod(0o555)
        command = [sys.executable, "-c", script, str(path.with_name("new.db")), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        path.parent.chmod(0o755)
    new, old = done.stdout.splitlines()
    assert "new.db cannot be created: [Errno 13]" in new
    assert "this user cannot write to it" in old or "it cannot be opened" in old


async def test_folders_and_files_are_private_to_this_user(tmp_path: Path) -> None:
    path = tmp_path / "a/b/locks.db"
    async with opened(f"sqlite:{path}") as driver:
        await grant_of(driver, claim_on("name"))
        await driver.acquire([claim_on("name", waiter_ttl_ms=1_000)])
        await driver.listen(Heard())
        for folder in (tmp_path / "a", tmp_path / "a/b"):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        for suffix in ("", "-wal", "-shm", "-bell"):
            assert stat.S_IMODE(os.stat(f"{path}{suffix}").st_mode) == 0o600


async def test_an_existing_file_keeps_its_permissions_because_a_team_may_share_it(sqlite_path: Path) -> None:
    sqlite_path.touch()
    sqlite_path.chmod(0o660)
    async with opened(f"sqlite:{sqlite_path}") as driver:
        await grant_of(driver, claim_on("name"))
        for suffix in ("", "-wal", "-shm"):
            assert stat.S_IMODE(os.stat(f"{sqlite_path}{suffix}").st_mode) == 0o660


async def test_the_file_says_what_it_is(sqlite_path: Path) -> None:
    await create(sqlite_path)
    connection = sqlite3.connect(sqlite_path)
    assert connection.execute("PRAGMA application_id").fetchone() == (0x484F4C44,)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


async def test_the_write_ahead_log_is_cut_again_after_another_program_kept_it_from_being_emptied(
    sqlite_path: Path,
) -> None:
    def megabytes() -> float:
        return os.stat(f"{sqlite_path}-wal").st_size / 1_024**2

    async with opened(f"sqlite:{sqlite_path}") as driver:
        # Every claim writes some pages, as its metadata is large.
        async def work() -> None:
            claims = [claim_on(f"name {index}", metadata={"text": "x" * 16_000}) for index in range(100)]
            grants = await driver.acquire(claims)
            leases = [lease_of(claim, grant) for claim, grant in zip(claims, grants)]  # type: ignore[arg-type]
            await driver.release(leases)

        reader = sqlite3.connect(sqlite_path, isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM holdfast_format").fetchall()
        for _ in range(50):
            await work()
            if megabytes() > 6:
                break
        assert megabytes() > 6
        reader.execute("COMMIT")
        for _ in range(3):
            await work()
        assert megabytes() < 5


TABLE = r"""
23 28 0:21 / /proc rw,nosuid,nodev,noexec,relatime shared:14 - proc proc rw
28 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
97 28 0:45 / /shared rw,relatime shared:50 - nfs4 server:/export/shared rw,vers=4.2,rsize=1048576,hard,proto=tcp
98 97 254:3 / /shared/local rw,relatime - xfs /dev/vdb1 rw,attr2
99 28 0:46 / /mnt/team\040share rw,relatime shared:52 master:3 - cifs //server/team\040share rw,vers=3.1.1
100 28 0:47 / /mnt/over rw - nfs server:/old rw
101 100 0:48 / /mnt/over rw - tmpfs tmpfs rw,size=64k
102 28 0:49 / /mnt/back\134slash rw - fuse.sshfs me@host: rw,user_id=0
103 28 0:50 / /mnt/c rw - 9p C:\134 rw,aname=drvfs
106 28 0:53 / /mnt/bucket rw - fuse.some-cloud bucket rw
107 28 0:54 / /mnt/plain rw - fuse program rw
108 28 0:55 / /mnt/container rw - fuse.fuse-overlayfs fuse-overlayfs rw
109 28 8:17 / /mnt/stick rw - fuseblk /dev/sdb1 rw
"""


@pytest.mark.parametrize(
    "path, kind",
    [
        ("/var/lib/app", None),
        ("/shared", "nfs4"),
        ("/shared/ann/.local/state", "nfs4"),
        ("/shared/local/ann", None),
        ("/sharedly", None),
        ("/mnt/team share/locks", "cifs"),
        ("/mnt/over/locks", None),
        ("/mnt/back\\slash", "fuse.sshfs"),
        ("/mnt/c/Users/ann", "9p"),
        ("/mnt/bucket/x", "fuse.some-cloud"),
        ("/mnt/plain/x", "fuse"),
        ("/mnt/container/x", None),
        ("/mnt/stick/x", None),
    ],
)
def test_a_network_share_is_found_in_the_table_of_mounts(path: str, kind: str) -> None:
    assert network_file_system_of(path, TABLE) == kind


async def test_a_file_on_a_network_share_is_refused(sqlite_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.drivers._sqlite.mounts._NETWORK_TYPES", _Everything())
    error = await refuses(sqlite_path, r"locks\.db is on a network share \(\w+\), where SQLite's locks do not exclude")
    assert not error.retryable
    assert not sqlite_path.exists()


class _Everything:
    def __contains__(self, item: object) -> bool:
        return True


async def test_closing_is_final_and_harmless_to_repeat(sqlite_url: str) -> None:
    from holdfast.errors import ClosedError

    driver = await open_sqlite(sqlite_url)
    held = claim_on("name")
    await grant_of(driver, held)
    await driver.close()
    await driver.close()
    for call in (
        lambda: driver.acquire([claim_on("name")]),
        lambda: driver.inspect(InspectQuery()),
        lambda: driver.listen(Heard()),
    ):
        with pytest.raises(ClosedError):
            await call()
    async with opened(sqlite_url) as other:
        assert not await is_granted(other, claim_on("name"))


