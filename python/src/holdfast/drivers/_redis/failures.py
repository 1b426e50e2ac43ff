"""What went wrong at a server or on the way to it, and how Holdfast reports it."""

from __future__ import annotations

import re
from typing import Optional

from ...core.secrets import message_of, safe_cause
from ...errors import ClosedError, HoldfastError, StoreError

def is_no_script(error: BaseException) -> bool:
    return "NOSCRIPT" in message_of(error)


def is_forbidden(error: BaseException) -> bool:
    """The server's access control lists forbid it."""
    text = message_of(error)
    return "NOPERM" in text or "has no permissions" in text


def is_read_only(error: BaseException) -> bool:
    """The server is a replica and accepts no writes."""
    pattern = r"(?i)\bREADONLY\b|\bMASTERDOWN\b|can't write against a read only|previous master is now a slave"
    return re.search(pattern, message_of(error)) is not None


def is_forbidden_command(error: BaseException) -> bool:
    """The access control list forbids the command, or the command was renamed."""
    return is_forbidden(error) or "unknown command" in message_of(error).lower()


def closed_error() -> ClosedError:
    return ClosedError("the redis driver is closed")


def store_error(what: str, error: BaseException, place: Optional[str] = None) -> HoldfastError:
    """Wraps an error of the client once: where it happened, what the server or the network said, and what to do."""
    if isinstance(error, HoldfastError):
        return error
    where = "" if place is None else f" at {place}"
    text = message_of(error)
    permanent, hint = False, ""
    for pattern, advice, is_permanent in _HINTS:
        if re.search(pattern, text):
            permanent, hint = is_permanent, f" ({advice})"
            break
    wrapped = StoreError(f"redis failed to {what}{where}: {text}{hint}", retryable=not permanent)
    wrapped.__cause__ = safe_cause(error)
    return wrapped


def entry_error(what: str, answer: object, place: Optional[str] = None) -> Optional[HoldfastError]:
    """The error of one entry of a list. The other entries have their answers."""
    if not isinstance(answer, list) or len(answer) != 2 or answer[0] not in (b"e", "e"):
        return None
    text = answer[1].decode("utf-8", "replace") if isinstance(answer[1], bytes) else str(answer[1])
    return store_error(what, Exception(text), place)


def no_answer(what: str, timeout_ms: float, place: str) -> StoreError:
    return StoreError(f"redis at {place} did not answer within {timeout_ms:g} ms when asked to {what}")


_HINTS = (
    (
        r"(?i)^READONLY|-READONLY|can't write against a read only",
        "this server is a replica: connect to the master, or through Sentinel",
        False,
    ),
    (
        r"(?i)OOM command not allowed|^OOM",
        "the server is out of memory: raise maxmemory, or use a separate server for locks",
        False,
    ),
    ("WRONGTYPE", "another program has written a key of this lock: delete that key", True),
    (
        "NOPERM INFO",
        "the user lacks the right to INFO, by which Redlock notices that a server was restarted: allow +info, or set "
        "`persistent` if no server can lose data",
        True,
    ),
    (r"(?i)^LOADING", "the server is still loading its data", False),
    (r"(?i)CLUSTERDOWN", "the Cluster does not serve this slot at the moment", False),
    (
        r"(?i)cluster support disabled",
        "the server is no node of a Cluster: use redis:// instead of redis+cluster://",
        True,
    ),
    (r"(?i)TRYAGAIN|too many redirections", "the slot is being moved to another node: try again", False),
    (
        r"(?i)called without any password configured|Client sent AUTH, but no password is set",
        "the server has no password: leave it out",
        True,
    ),
    (r"(?i)\bDB index|^NOPERM .*\bselect\b", "the database cannot be selected: use one that the server has", True),
    (
        r"(?i)NOAUTH|WRONGPASS|invalid username-password|invalid password",
        "the user name or the password is wrong, or missing: redis://user:password@host",
        True,
    ),
    (
        r"(?i)NOPERM|has no permissions|ACL failure in script|user executing the script can't",
        "the user lacks a right: it needs the keys lock:* and holdfast:*, the channels holdfast:*, and scripting",
        True,
    ),
    (r"(?i)unknown command.*(EVAL|SSUBSCRIBE)", "the server is too old, or forbids scripts", True),
    (
        r"(?i)certificate verify failed",
        "the server's TLS certificate is not accepted: trust its authority, and use the host name in the certificate",
        True,
    ),
    (
        r"(?i)wrong version number|record layer failure|packet length too long",
        "the server does not speak TLS on this port: use redis:// instead of rediss://, or tls=false",
        True,
    ),
    (r"(?i)Protocol Error", "the server does not speak the Redis protocol on this port", False),
)
