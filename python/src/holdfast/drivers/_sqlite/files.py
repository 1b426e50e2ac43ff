"""The database file and the files beside it.

SQLite finds the write-ahead log and its index by name, and a process that comes later opens the files that have these
names then. A lease excludes others only while the names lead to the files that this connection writes to.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from typing import Callable, Optional

from ...errors import HoldfastError, StoreError
from .mounts import refuse_mount

Identity = tuple[int, int]
"""Device and inode. While SQLite has a file open, its inode number is not given to another file."""


class MovedError(StoreError):
    """A file was removed or replaced, or a link leads to another file, which other processes use."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"the file {path} was removed or replaced while it was open; close the database and open it again"
        )


class OpenFiles:
    """The files as one connection has them open: the database under the path that the caller wrote and under its path
    without links, the write-ahead log, and its index.

    Make it after SQLite has opened all of them, and before the first write. Raises if SQLite works on a file that was
    removed: connections of one process share their index, so a new connection gets the removed one as long as an old
    connection is open.
    """

    def __init__(self, path: str, asked: str) -> None:
        self._path = path
        paths = [path, f"{path}-wal", f"{path}-shm"]
        files = {each: identity_of(each) for each in paths}
        self.identity = files[path]
        if asked != path:
            files[asked] = self.identity
        self._files = tuple(files.items())
        self.assert_current()
        _assert_open({each: files[each] for each in paths})

    def assert_current(self) -> None:
        """Raises if what is written now might be in a file that other processes do not read. Takes about 10 µs."""
        for path, identity in self._files:
            try:
                found = os.stat(path)
            except OSError:
                raise MovedError(path) from None
            if (found.st_dev, found.st_ino) != identity:
                raise MovedError(path)
            if path == self._path:
                refuse_links(path, found)


def identity_of(path: str) -> Identity:
    try:
        found = os.stat(path)
    except OSError:
        raise MovedError(path) from None
    return found.st_dev, found.st_ino


def refuse_links(path: str, found: Optional[os.stat_result]) -> None:
    """Raises for a file with several names: under another name it has another write-ahead log."""
    # The links of a folder are its subfolders.
    if found is None or found.st_nlink <= 1 or not stat.S_ISREG(found.st_mode):
        return
    raise StoreError(
        f"the lock file {path} has {found.st_nlink} hard links: a process that opens it under another name does not "
        "see the same locks; remove the other links, or make them symbolic"
    )


def prepare_file(path: str) -> None:
    """Creates the folder and the file if they are missing, private to this user. Existing ones keep their permissions:
    a team may share them."""
    folder = os.path.dirname(path)
    _attempt(f"the folder {folder} for the lock file cannot be created", lambda: _make_folder(folder))
    refuse_place(path)
    # SQLite creates the files beside it with the same permissions.
    _attempt(f"the lock file {path} cannot be created", lambda: _create(path))


def refuse_place(path: str) -> None:
    """Raises for a file that SQLite's own locks do not protect. The file need not exist yet."""
    _attempt(f"the lock file {path} cannot be checked", lambda: _check_place(path))


def _check_place(path: str) -> None:
    # Without links, because one may lead from a local folder to a network share.
    refuse_mount(path, os.path.realpath(path))
    try:
        refuse_links(path, os.stat(path))
    except FileNotFoundError:
        pass


def _assert_open(files: dict[str, Identity]) -> None:
    """Only Linux lists the open files of a process."""
    if sys.platform != "linux":
        return
    opened: set[Identity] = set()
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            found = os.stat(f"/proc/self/fd/{descriptor}")
        except OSError:
            continue
        opened.add((found.st_dev, found.st_ino))
    for path, identity in files.items():
        if identity not in opened:
            raise StoreError(
                f"the file {path} was removed or replaced while it was open, and this process still works on the old "
                "one; restart the process"
            )


def _make_folder(folder: str) -> None:
    """Every missing folder is made with 0700. `os.makedirs` sets that for the last one only."""
    if os.path.isdir(folder):
        return
    parent = os.path.dirname(folder)
    if parent != folder:
        _make_folder(parent)
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass


def _create(path: str) -> None:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_CLOEXEC", 0), 0o600))
    except FileExistsError:
        pass


_TRANSIENT = {
    errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EIO, errno.EAGAIN, errno.EBUSY, errno.ENOMEM
}  # fmt: skip
"""Errors that may disappear with time. A missing folder, or one of another user, will not."""


def _attempt(failure: str, step: Callable[[], None]) -> None:
    try:
        step()
    except HoldfastError:
        raise
    except OSError as error:
        raise StoreError(f"{failure}: {error}", retryable=error.errno in _TRANSIENT) from error
