"""The statements of `protocol/postgres/advisory.sql`.

Some are prepared once for each session, and executed behind the activity comment.
"""

from __future__ import annotations

import re
from typing import Optional, Sequence

from ... import _protocol
from .held_locks import LockRequest

STATEMENTS = _protocol.statements("postgres/advisory.sql")

_PREPARED = ("take", "take_list", "unlock", "unlock_list", "cancel", "ping", "prove", "lacks", "locks")


def preparation(session_id: str, lead: int) -> str:
    """No other session has this id, so a session that knows the statements is the one that prepared them.

    `lead` is by how much its tokens are ahead.
    """
    texts = [STATEMENTS[name].replace(':"name"', _prepared_name(name, session_id)) for name in _PREPARED]
    return "".join(text.replace(":lead", f"{lead}::bigint") + ";\n" for text in texts)


def deallocation(session_id: str) -> str:
    return "".join(f"DEALLOCATE {_prepared_name(name, session_id)};\n" for name in _PREPARED)


def execution(name: str, session_id: str, values: Sequence[Optional[str]]) -> str:
    """Values are numbers, booleans, or lists of them, so nothing in them can be taken as SQL."""
    literals = ",".join("NULL" if value is None else f"'{_plain(value)}'" for value in values)
    return f"EXECUTE {_prepared_name(name, session_id)}" + (f"({literals})" if literals else "")


def waiting(lock: LockRequest, waited_ms: float) -> str:
    """SQL that returns when the session has the lock. `waited_ms`: for how long the claim has waited before."""
    text = STATEMENTS["wait"].replace(":key", f"'{lock.key}'").replace(":shared", boolean(lock.shared))
    return text.replace(":waited", str(round(waited_ms)))


def restoring(before: str) -> str:
    """SQL that restores the settings of a session from JSON."""
    return f"SELECT set_config(key, value, false) FROM json_each_text({_literal(before)});\n"


def unlocking(locks: Sequence[LockRequest]) -> str:
    return "".join(f"SELECT pg_advisory_unlock{'_shared' if each.shared else ''}({each.key});\n" for each in locks)


def unpublishing(xid: int) -> str:
    return (
        "SELECT pg_advisory_unlock_shared((x >> 32)::integer, ((x << 32) >> 32)::integer) "
        f"FROM (SELECT {xid}::bigint) AS last (x);\n"
    )


def boolean(value: bool) -> str:
    return "true" if value else "false"


def keys_of(locks: Sequence[LockRequest]) -> str:
    return "{" + ",".join(str(each.key) for each in locks) + "}"


def modes_of(locks: Sequence[LockRequest]) -> str:
    return "{" + ",".join("t" if each.shared else "f" for each in locks) + "}"


def positions(text: Optional[str]) -> Sequence[int]:
    """The elements of an array of numbers."""
    return [] if text is None or text == "{}" else [int(each) for each in text[1:-1].split(",")]


def _prepared_name(name: str, session_id: str) -> str:
    return f"holdfast_{name}_{session_id}"


def _plain(value: str) -> str:
    if re.fullmatch(r"[-0-9a-z,{}]*", value) is None:
        raise AssertionError(f"not a list of numbers: {value}")
    return value


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
