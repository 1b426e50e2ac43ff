"""The database file and the files beside it.

SQLite finds the write-ahead log and its index by name, and a process that comes later opens the files that have these
names then. A lease excludes others only while the names lead to the files that this connection writes to.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from typing import Callable, Optional

from ...errors import HoldfastError, StoreError
from .mounts import refuse_mount

Identity = tuple[int, int]
"""Device and inode. While SQLite has a file open, its inode number is not given to another file."""


class MovedError(StoreError):
    """What this connection has open is no longer what other processes lock. Opening the path again may help."""

    def __init__(self, path: str, what: str = "was removed or replaced while it was open") -> None:
        super().__init__(f"the file {path} {what}; close the database and open it again")


class SecondCopyError(StoreError):
    """Two copies of SQLite in one process, such as those of `sqlite3` and of apsw, exclude each other from nothing:
    POSIX locks belong to the process. And when one of them closes the file, the system drops the locks of both.

    A copy opens the index of the write-ahead log once, for all of its connections and threads. So a second descriptor
    of the index is a second copy, also one that the driver knows nothing of."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"the lock file {path} is open in this process through two copies of SQLite, and file locks do not exclude "
            "within a process; use Python's own sqlite3 for it",
            retryable=False,
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
        self._opened = {each: files[each] for each in paths}
        self._due = 0.0
        self.assert_current()

    def assert_current(self) -> None:
        """Raises if what is written now might be in a file that other processes do not read, or if other processes are
        not excluded from it. Takes about 10 µs. The list of open files is read at most once a second. With many
        sockets it takes half a percent of the time, and is read every ten seconds at least."""
        for path, identity in self._files:
            try:
                found = os.stat(path)
            except OSError:
                raise MovedError(path) from None
            if (found.st_dev, found.st_ino) != identity:
                raise MovedError(path)
            if path == self._path:
                refuse_links(path, found)
        started = time.monotonic()
        if started >= self._due:
            _assert_excluding(self._path, self._opened)
            pause = max(_LOOK_EVERY_SECONDS, (time.monotonic() - started) * 200)
            self._due = started + min(pause, _LOOK_AT_LEAST_EVERY_SECONDS)


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


_LOOK_EVERY_SECONDS = 1.0
_LOOK_AT_LEAST_EVERY_SECONDS = 10.0


def _assert_excluding(database: str, files: dict[str, Identity]) -> None:
    descriptors = _descriptors()
    if not descriptors:
        return
    for path, identity in files.items():
        if identity not in descriptors:
            raise StoreError(
                f"the file {path} was removed or replaced while it was open, and this process still works on the old "
                "one; restart the process"
            )
    own, *others = descriptors[files[f"{database}-shm"]]
    if others:
        raise SecondCopyError(database)
    if _locks_are_lost(own):
        raise MovedError(database, "is no longer locked: another part of this process has closed it")


def _descriptors() -> dict[Identity, list[int]]:
    """The descriptors of this process by file. Empty where the system does not list them."""
    found: dict[Identity, list[int]] = {}
    folder = {"linux": "/proc/self/fd", "darwin": "/dev/fd"}.get(sys.platform)
    try:
        names = os.listdir(folder) if folder else []
    except OSError:
        names = []
    for name in names:
        try:
            each = os.fstat(int(name))
        except OSError:
            # That of the list itself, or another thread has closed it.
            continue
        found.setdefault((each.st_dev, each.st_ino), []).append(int(name))
    return found


_shows_locks = False


def _locks_are_lost(descriptor: int) -> bool:
    """While SQLite has an index open, it holds a lock on it. Only Linux shows it. A system that has never shown one,
    such as a sandbox, cannot tell."""
    global _shows_locks
    try:
        with open(f"/proc/self/fdinfo/{descriptor}", encoding="utf-8") as info:
            is_locked = "lock:" in info.read()
    except OSError:
        return False
    _shows_locks = _shows_locks or is_locked
    return _shows_locks and not is_locked


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
