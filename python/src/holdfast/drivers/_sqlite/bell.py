"""The bell: a file beside the database. A process that waits for a lock watches it. A process that has made room writes
one byte to it. Where the system cannot watch files, waiting processes poll."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import sys
from typing import Callable, Optional

_O_NOFOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
_O_NONBLOCK: int = getattr(os, "O_NONBLOCK", 0)
_O_CLOEXEC: int = getattr(os, "O_CLOEXEC", 0)


def bell_of(path: str) -> str:
    return f"{path}-bell"


def ring_bell(path: str) -> None:
    """Call it after the commit, so that a process that is notified sees what was committed."""
    try:
        _with_bell(bell_of(path), os.O_WRONLY, lambda bell: os.write(bell, b"."))
    except OSError:
        # No process waits, or the bell cannot be written. Waiting processes poll, and a committed call must not fail.
        pass


def create_bell(path: str) -> None:
    """Every process that may write to the database may ring it."""
    database = os.stat(path)
    try:
        _with_bell(bell_of(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, lambda bell: _share(bell, database))
    except FileExistsError:
        # It may belong to root, if it was created before the database got another owner.
        _with_bell(bell_of(path), os.O_RDONLY, lambda bell: _share(bell, database) if _is_root() else None)


def _with_bell(path: str, flags: int, work: Callable[[int], object]) -> None:
    """Never follows a link, and opens only a file with one name: in a folder that others may write to, they could
    direct the write into another file. O_NONBLOCK, because a pipe in its place would block the process."""
    bell = os.open(path, flags | _O_NOFOLLOW | _O_NONBLOCK | _O_CLOEXEC, 0o600)
    try:
        found = os.fstat(bell)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise OSError(errno.EINVAL, "it is not a plain file with one name", path)
        work(bell)
    finally:
        os.close(bell)


def _share(bell: int, database: os.stat_result) -> None:
    """As SQLite does with its own files: if root or another member of a group creates the bell, it still belongs to the
    owner of the database."""
    made = os.fstat(bell)
    if made.st_uid != database.st_uid and _is_root():
        os.fchown(bell, database.st_uid, database.st_gid)
    elif made.st_gid != database.st_gid:
        try:
            os.fchown(bell, made.st_uid, database.st_gid)
        except PermissionError:
            # This process is not in the database's group. A user whom the mode excludes has to poll.
            pass
    os.fchmod(bell, database.st_mode & 0o666)


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


_IN_MODIFY = 0x2
_IN_DELETE_SELF = 0x400
_IN_MOVE_SELF = 0x800
_IN_IGNORED = 0x8000
_IN_DONT_FOLLOW = 0x2000000
_EVENT = struct.Struct("iIII")


class BellWatch:
    """Linux's inotify on one file. Its file descriptor becomes readable when the bell rings."""

    def __init__(self, path: str) -> None:
        """Raises `OSError` if the bell cannot be watched."""
        self.fd = -1
        libc = ctypes.CDLL(None, use_errno=True)
        self.fd = _checked(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        try:
            mask = ctypes.c_uint32(_IN_MODIFY | _IN_DELETE_SELF | _IN_MOVE_SELF | _IN_DONT_FOLLOW)
            _checked(libc.inotify_add_watch(self.fd, os.fsencode(bell_of(path)), mask))
        except BaseException:
            self.close()
            raise

    def drain(self) -> bool:
        """Reads the events. False if the bell is gone, and nothing more will be reported."""
        is_there = True
        while True:
            try:
                data = os.read(self.fd, 4_096)
            except BlockingIOError:
                return is_there
            at = 0
            while at < len(data):
                _, mask, _, length = _EVENT.unpack_from(data, at)
                at += _EVENT.size + length
                if mask & (_IN_DELETE_SELF | _IN_MOVE_SELF | _IN_IGNORED):
                    is_there = False

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def open_watch(path: str) -> Optional[BellWatch]:
    """None where files cannot be watched: not every file system reports changes, and the number of watches is
    limited."""
    if sys.platform != "linux":
        return None
    try:
        create_bell(path)
        return BellWatch(path)
    except OSError:
        return None
