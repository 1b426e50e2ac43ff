"""Failure 73: two copies of SQLite in one process.

POSIX locks belong to the process, so two copies of SQLite in one process do not exclude each other. The second copy is
the system's library, loaded again from a copy of its file.
"""

from __future__ import annotations

import asyncio
import ctypes
import shutil
import sqlite3
from pathlib import Path
from typing import Iterator

import pytest

from holdfast.core.driver import Renewal
from holdfast.drivers.sqlite import sqlite_driver
from holdfast.errors import StoreError
from support.sqlite_driver import claim_on, grant_of, is_granted, opened

REFUSED = r"locks\.db is open in this process through two copies of SQLite"
LOOKED_SECONDS = 1.3
"""Longer than a driver takes to look for another copy again."""


def _library() -> Path:
    """The one that Python's sqlite3 has loaded."""
    sqlite3.connect(":memory:").close()
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(None, 5)[-1]
        if "libsqlite3" in path:
            return Path(path)
    raise AssertionError("this Python has SQLite built in: use one with the system's library")


class SecondCopy:
    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._handle = ctypes.c_void_p()

    def open(self, path: Path) -> None:
        assert self._library.sqlite3_open(str(path).encode(), ctypes.byref(self._handle)) == 0
        self.run("SELECT count(*) FROM sqlite_master")

    def run(self, sql: str) -> None:
        assert self._library.sqlite3_exec(self._handle, sql.encode(), None, None, None) == 0

    def close(self) -> None:
        handle, self._handle = self._handle, ctypes.c_void_p()
        assert self._library.sqlite3_close(handle) == 0


@pytest.fixture
def second(tmp_path: Path) -> Iterator[SecondCopy]:
    copied = tmp_path / "libsecond.so"
    shutil.copy(_library(), copied)
    copy = SecondCopy(ctypes.CDLL(str(copied)))
    yield copy
    copy.close()


async def test_a_url_is_refused_while_the_program_uses_the_file_through_another_copy_whose_connection_stays_as_it_is(
    sqlite_path: Path, second: SecondCopy
) -> None:
    async with opened(f"sqlite:{sqlite_path}"):
        pass
    second.open(sqlite_path)
    second.run("CREATE TABLE customers (name TEXT)")
    with pytest.raises(StoreError, match=REFUSED):
        async with opened(f"sqlite:{sqlite_path}"):
            pass
    # A connection that was closed would have removed the log, or the locks, of the other one.
    assert sqlite_path.with_name(f"{sqlite_path.name}-wal").exists()
    second.run("INSERT INTO customers VALUES ('Ann')")


async def test_a_copy_that_the_program_opens_later_is_noticed_and_nothing_is_granted_until_it_is_closed(
    sqlite_path: Path, second: SecondCopy
) -> None:
    async with opened(f"sqlite:{sqlite_path}") as driver:
        held = claim_on("held")
        grant = await grant_of(driver, held)
        renewal = Renewal(held.lock_name, held.claim_id, grant.fencing_token, 60_000)
        second.open(sqlite_path)
        # On a busy machine a look takes long, and the next one comes later.
        with pytest.raises(StoreError, match=REFUSED):
            for _ in range(150):
                await is_granted(driver, claim_on("early"))
                await asyncio.sleep(0.1)
        with pytest.raises(StoreError, match=REFUSED):
            await driver.renew([renewal])
        second.close()
        # Its end has dropped the locks of this process, so the file is opened again.
        assert await driver.renew([renewal]) == ["renewed"]
        await grant_of(driver, claim_on("name"))
        await asyncio.sleep(LOOKED_SECONDS)
        await grant_of(driver, claim_on("late"))


async def test_the_same_copy_is_allowed_any_number_of_times(sqlite_path: Path) -> None:
    async with opened(f"sqlite:{sqlite_path}") as driver, opened(f"sqlite:{sqlite_path}") as other:
        await grant_of(driver, claim_on("name"))
        beside = sqlite_driver(sqlite3.connect(sqlite_path))
        await asyncio.sleep(LOOKED_SECONDS)
        for each in (driver, other, beside):
            assert not await is_granted(each, claim_on("name"))
        await beside.close()
