"""SQLite and fork.

A connection must not be used in a child process that was forked while it was open: SQLite would count on locks that
only the parent has. It must not even be closed there. So every connection of this driver is closed in the parent just
before a fork, at a moment without a transaction. Parent and child both open the file again when they need it next.

If a process was forked without Python's own hooks (by a server in C that embeds Python), its child finds an inherited
connection. SQLite then mixes the locks of that connection into every new connection to the same file, so the child
refuses the file.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from typing import Optional, Protocol

from ...errors import StoreError
from .files import Identity

_GATE_TIMEOUT_SECONDS = 10.0
"""How long a fork waits for a transaction of this driver to end. One takes milliseconds."""


class Forkable(Protocol):
    """Has a connection. Its gate is held while the connection is used."""

    gate: threading.Lock

    def before_fork(self) -> None:
        """Closes the connection. The gate is held."""

    def after_fork_in_child(self) -> Optional[Identity]:
        """Forgets everything that belongs to the parent. Returns the file of a connection that is still open."""


_all: weakref.WeakSet[Forkable] = weakref.WeakSet()
_registering = threading.Lock()
"""Held during a fork, so that no connection is opened between the hook and the fork itself."""
_held: list[Forkable] = []
_inherited: set[Identity] = set()
_pid = os.getpid()


def register(forkable: Forkable) -> None:
    with _registering:
        _all.add(forkable)


def notice_fork() -> None:
    """Notices a fork that has run no hook of Python. Call it before a thread or a connection is used."""
    if os.getpid() != _pid:
        _after_in_child()


def keep_for_ever(value: object) -> None:
    """Never deletes the object, not even at the end of the process: that would close an inherited connection."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def refuse_inherited(path: str) -> None:
    """Raises if this process has inherited an open connection to the file."""
    if not _inherited:
        return
    try:
        found = os.stat(path)
    except OSError:
        return
    if (found.st_dev, found.st_ino) in _inherited:
        raise StoreError(
            f"the lock file {path} was open when this process was forked, and SQLite cannot use it here any more; take "
            "the first lock after the fork, or start the process with spawn",
            retryable=False,
        )


def _before() -> None:
    _registering.acquire(timeout=_GATE_TIMEOUT_SECONDS)
    for each in list(_all):
        if each.gate.acquire(timeout=_GATE_TIMEOUT_SECONDS):
            _held.append(each)
            each.before_fork()


def _after_in_parent() -> None:
    while _held:
        _held.pop().gate.release()
    if _registering.locked():
        _registering.release()


def _after_in_child() -> None:
    global _pid, _registering
    _pid = os.getpid()
    _registering = threading.Lock()
    _held.clear()
    for each in list(_all):
        each.gate = threading.Lock()
        identity = each.after_fork_in_child()
        if identity is not None:
            _inherited.add(identity)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
