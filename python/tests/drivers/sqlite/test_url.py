"""What every URL of a lock file means, or why it is refused. The tables are those of the TypeScript client."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.drivers._sqlite.url import default_path, sqlite_path, sqlite_url
from holdfast.drivers.sqlite import default_url, open_sqlite, sqlite_driver
from holdfast.errors import InvalidArgumentError, StoreError
from support.node_process import REPOSITORY
from support.sqlite_driver import claim_on, grant_of, is_granted, opened


@pytest.mark.parametrize(
    "url, path",
    [
        ("sqlite:", None),
        ("sqlite:locks.db", "locks.db"),
        ("SQLite:locks.db", "locks.db"),
        ("sqlite:./a/locks.db", "./a/locks.db"),
        ("sqlite:../locks.db", "../locks.db"),
        ("sqlite:/var/lib/locks.db", "/var/lib/locks.db"),
        ("sqlite:///var/lib/locks.db", "/var/lib/locks.db"),
        ("sqlite:/my folder/locks.db", "/my folder/locks.db"),
        ("sqlite:/my%20folder/locks.db", "/my folder/locks.db"),
        ("sqlite:///my%20folder/locks.db", "/my folder/locks.db"),
        ("sqlite:/a%2520b", "/a%20b"),
        ("sqlite:/a%3Fb%23c", "/a?b#c"),
        ("sqlite:/m%C3%BCll", "/müll"),
        ("sqlite:/müll", "/müll"),
        ("sqlite:/a@b+c=d&e", "/a@b+c=d&e"),
        ("sqlite:C:\\locks.db", "C:\\locks.db"),
    ],
)
def test_a_url_means_a_path(url: str, path: str) -> None:
    assert sqlite_path(url, "linux") == path


def test_a_path_on_windows_may_follow_three_slashes() -> None:
    assert sqlite_path("sqlite:///C:/locks.db", "win32") == "C:/locks.db"
    assert sqlite_path("sqlite:/C:/locks.db", "win32") == "C:/locks.db"
    assert sqlite_path("sqlite:/C:/locks.db", "linux") == "/C:/locks.db"


@pytest.mark.parametrize("path", ["/a b", "/100%", "/a%20b", "/a?b#c", "/müll", "/a\nb", "/a@b"])
def test_a_path_has_a_url(path: str) -> None:
    assert sqlite_path(sqlite_url(path)) == path


@pytest.mark.parametrize(
    "url, rule",
    [
        ("sqlite://x.db", r"sqlite:x\.db for a path in the working folder, or sqlite:///x\.db for one from the root"),
        ("sqlite://localhost/x.db", r"sqlite:localhost/x\.db for a path"),
        ("sqlite://", "for a path in the working folder"),
        ("sqlite:///", "the path of a file"),
        ("sqlite:folder/", "the path of a file"),
        ("sqlite:file:x.db", "no file: URL"),
        ("sqlite:file:///x.db", "no file: URL"),
        ("sqlite:FILE:x.db", "no file: URL"),
        ("sqlite:x.db?cache=shared", r"without parameters: in a file name, \? is written %3F"),
        ("sqlite:x.db?", "without parameters"),
        ("sqlite:x.db?key=s3cret", r'without parameters.* but is "sqlite:x.db\?…"'),
        ("sqlite://me:s3cret@host/x.db", "for a path in the working folder"),
        ("sqlite:?mode=ro", "without parameters"),
        ("sqlite:x.db#1", "# is written %23"),
        ("sqlite:100%.db", "url path must be percent-encoded UTF-8: a percent sign itself is written %25"),
        ("sqlite:%ff.db", "url path must be percent-encoded UTF-8"),
        ("sqlite:a%00b", "without NUL"),
        ("sqlite:x.db\n", "without control characters"),
        ("sqlite:\udcff.db", "without control characters and lone surrogates"),
        ("memory:", "sqlite: followed by"),
        ("", "sqlite: followed by"),
    ],
    ids=ascii,
)
async def test_any_other_url_is_refused(url: str, rule: str) -> None:
    with pytest.raises(InvalidArgumentError, match=rule) as raised:
        await open_sqlite(url)
    assert "s3cret" not in repr(raised.value)


@pytest.mark.parametrize("url", ["sqlite::memory:", "sqlite:%3Amemory:", "sqlite:///:memory:"])
async def test_a_database_in_memory_is_refused_because_it_excludes_no_other_process(url: str) -> None:
    with pytest.raises(StoreError, match="excludes no other process; use memory:"):
        await open_sqlite(url)
    assert not os.path.exists(":memory:")


@pytest.mark.parametrize("path", ["", "sqlite:x.db", "file:x.db", "folder/", "a\0b", b"x.db", 7, None], ids=ascii)
def test_what_is_no_path_is_refused(path: object) -> None:
    with pytest.raises(InvalidArgumentError, match="path_or_connection"):
        sqlite_driver(path)  # type: ignore[arg-type]


def test_a_path_in_memory_is_refused() -> None:
    with pytest.raises(StoreError, match="excludes no other process"):
        sqlite_driver(":memory:")


async def test_a_path_with_spaces_and_percent_signs_is_one_file_in_every_spelling(tmp_path: Path) -> None:
    path = tmp_path / "a b?mode=memory#c%20d.db"
    encoded = path.as_uri().removeprefix("file://")
    urls = [f"sqlite:{encoded}", f"sqlite://{encoded}", f"sqlite:{encoded.replace('%20', ' ')}"]
    async with opened(urls[0]) as first, opened(urls[1]) as second, opened(urls[2]) as third:
        await grant_of(first, claim_on("name"))
        assert not await is_granted(second, claim_on("name"))
        assert not await is_granted(third, claim_on("name"))
        assert path.exists()
        assert first.place == sqlite_url(str(path))
        async with opened(first.place) as again:
            assert not await is_granted(again, claim_on("name"))


async def test_a_path_is_absolute_so_that_the_process_may_change_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    driver = sqlite_driver("locks.db")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    await grant_of(driver, claim_on("name"))
    await driver.close()
    assert (tmp_path / "locks.db").exists()


def test_the_default_is_in_the_users_state_folder() -> None:
    home = str(Path.home())
    assert default_path({"XDG_STATE_HOME": "/state"}, "linux") == "/state/holdfast/locks.db"
    assert default_path({}, "linux") == f"{home}/.local/state/holdfast/locks.db"
    assert default_path({}, "darwin") == f"{home}/Library/Application Support/holdfast/locks.db"
    assert default_path({"LOCALAPPDATA": "/local"}, "win32") == "/local/holdfast/locks.db"


@pytest.mark.parametrize("state", ["state", "./state", "../state", ""])
def test_a_relative_state_folder_is_ignored_because_every_working_folder_would_have_its_own_locks(state: str) -> None:
    assert default_path({"XDG_STATE_HOME": state}, "linux") == f"{Path.home()}/.local/state/holdfast/locks.db"


@pytest.mark.parametrize("variable", ["HOME", "XDG_STATE_HOME"])
def test_the_default_is_the_file_that_node_uses(tmp_path: Path, variable: str) -> None:
    env = {**os.environ, "HOME": "/nowhere", "XDG_STATE_HOME": "", "NODE_OPTIONS": "", variable: str(tmp_path)}
    mine = "from holdfast.drivers.sqlite import default_url; print(default_url())"
    theirs = """
      import { openSqlite } from 'holdfast/drivers/sqlite'
      const driver = await openSqlite('sqlite:')
      console.log(driver.extensions.reopen.args[0])
    """
    node = ["node", "--input-type=module", "--eval", theirs]
    answers = [
        subprocess.run(command, cwd=REPOSITORY, env=env, check=True, capture_output=True, text=True).stdout
        for command in ([sys.executable, "-c", mine], node)
    ]
    assert answers[0] == answers[1]


def test_the_default_url_can_be_opened_as_any_other() -> None:
    assert sqlite_path(default_url()) == default_path()
