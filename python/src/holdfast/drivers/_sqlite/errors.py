"""What SQLite's errors mean for a lock file, and what to do about them."""

from __future__ import annotations

import sqlite3
from typing import Optional

from ...errors import HoldfastError, StoreError

_CODES = {
    5: "SQLITE_BUSY",
    6: "SQLITE_LOCKED",
    8: "SQLITE_READONLY",
    10: "SQLITE_IOERR",
    11: "SQLITE_CORRUPT",
    13: "SQLITE_FULL",
    14: "SQLITE_CANTOPEN",
    15: "SQLITE_PROTOCOL",
    26: "SQLITE_NOTADB",
}

# Python 3.10 does not tell the code. The messages of SQLite have not changed for many years.
_MESSAGES = {
    "database is locked": "SQLITE_BUSY",
    "database table is locked": "SQLITE_LOCKED",
    "attempt to write a readonly database": "SQLITE_READONLY",
    "disk I/O error": "SQLITE_IOERR",
    "database disk image is malformed": "SQLITE_CORRUPT",
    "database or disk is full": "SQLITE_FULL",
    "unable to open database file": "SQLITE_CANTOPEN",
    "locking protocol": "SQLITE_PROTOCOL",
    "file is not a database": "SQLITE_NOTADB",
}

_TRANSIENT = {"SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL", "SQLITE_IOERR", "SQLITE_FULL"}
"""Errors that may disappear with time, or when another process goes on."""

_REASONS = {
    "SQLITE_BUSY": "another connection has kept the write lock for too long, as a process does that is paused during a "
    "transaction",
    "SQLITE_LOCKED": "the connection itself has an open transaction",
    "SQLITE_PROTOCOL": "many processes open it and close it at the same time",
    "SQLITE_READONLY": "this user cannot write to it, or to its folder",
    "SQLITE_IOERR": "the disk failed or is full, or the file was removed or replaced while in use",
    "SQLITE_CORRUPT": "it is damaged; end all processes that use it, then delete it (locks are lost, tokens still "
    "rise)",
    "SQLITE_FULL": "the disk is full",
    "SQLITE_CANTOPEN": "it cannot be opened. Does its folder exist, and may this user write to it?",
    "SQLITE_NOTADB": "it is not an SQLite database; choose another path",
}


def sqlite_code(error: BaseException) -> Optional[str]:
    """SQLite's primary result code."""
    if not isinstance(error, sqlite3.Error):
        return None
    code: Optional[int] = getattr(error, "sqlite_errorcode", None)
    if code is not None:
        return _CODES.get(code & 0xFF)
    said = str(error)
    return next((name for message, name in _MESSAGES.items() if message in said), None)


def is_busy(error: BaseException) -> bool:
    """SQLite gives up with SQLITE_PROTOCOL when it has lost a race for the index of the log many times."""
    return sqlite_code(error) in ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL")


def store_error_from(error: BaseException, path: str) -> HoldfastError:
    """Wraps an error of SQLite. It says what is wrong with the file and what to do, and then what SQLite said."""
    if isinstance(error, HoldfastError):
        return error
    code = sqlite_code(error)
    reason = _REASONS.get(code or "", "SQLite could not work with it")
    wrapped = StoreError(
        f"the lock file {path}: {reason} ({code or 'no code'}: {error})", retryable=code is None or code in _TRANSIENT
    )
    wrapped.__cause__ = error
    return wrapped
