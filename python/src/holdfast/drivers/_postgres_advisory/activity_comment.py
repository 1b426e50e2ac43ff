"""The comment before each statement of a session, in which other clients can read its leases in `pg_stat_activity`.

So nothing is stored, and the list ends with the connection. The server shows only the first
`track_activity_query_size` bytes of a statement (1,024 by default). A few leases fit as JSON, some dozens compressed.
A lease that does not fit is held all the same, and shown by its key.
"""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass
from typing import Any, List, Optional, Sequence

_START = "/*holdfast "
# The space keeps a slash at the end of the text from beginning another comment.
_END = " */"
_MAX_ENTRIES = 64
# What a server shows is far shorter. A comment may be forged, and must not cost more memory than this.
_MAX_INFLATED_BYTES = 1 << 20


@dataclass(frozen=True)
class ActivityEntry:
    """A lease or a request of a connection."""

    lock_name: str
    claim_id: str
    holder_id: str
    shared: bool
    fencing_token: Optional[int] = None
    """None while the statement behind the comment is the one that requests the lock."""
    acquired_at_ms: Optional[float] = None


def write_activity_comment(entries: Sequence[ActivityEntry], max_bytes: int) -> str:
    """`entries` are newest first, so that the oldest ones are left out if there is no room."""
    if not entries:
        return ""
    free = max_bytes - len(_START) - len(_END) - 1
    count = min(len(entries), _MAX_ENTRIES)
    while count > 0:
        text = json.dumps([_packed(entry) for entry in entries[:count]], ensure_ascii=False, separators=(",", ":"))
        plain = _without_stars(text)
        if len(plain.encode()) <= free:
            return f"{_START}{plain}{_END}"
        deflated = base64.b64encode(_deflated(text.encode())).decode("ascii")
        if len(deflated) <= free:
            return f"{_START}{deflated}{_END}"
        count //= 2
    return f"{_START}[]{_END}"


def read_activity_comment(query: Optional[str]) -> Optional[List[ActivityEntry]]:
    """None: the query has no comment of this driver. An empty list: it was cut off, or a later version wrote it."""
    if query is None or not query.startswith(_START):
        return None
    text, _, _ = query[len(_START) :].partition(_END)
    try:
        if not text.startswith("["):
            text = _inflated(base64.b64decode(text, validate=True)).decode()
        return [_unpacked(*each) for each in json.loads(text)]
    except (ValueError, TypeError, OverflowError, RecursionError, zlib.error):
        return []


def _packed(entry: ActivityEntry) -> Sequence[Any]:
    start = [entry.lock_name, entry.claim_id, entry.holder_id, int(entry.shared)]
    return start if entry.fencing_token is None else [*start, entry.fencing_token, entry.acquired_at_ms]


def _unpacked(
    lock_name: object,
    claim_id: object,
    holder_id: object,
    shared: object,
    fencing_token: object = None,
    acquired_at_ms: object = None,
    *_later: object,
) -> ActivityEntry:
    if not (isinstance(lock_name, str) and isinstance(claim_id, str) and isinstance(holder_id, str)):
        raise TypeError("not an entry")
    # A lone surrogate has no UTF-8 form. No client of ours writes one.
    f"{lock_name}{claim_id}{holder_id}".encode()
    token = int(fencing_token) if isinstance(fencing_token, (int, float)) else None
    at_ms = float(acquired_at_ms) if isinstance(acquired_at_ms, (int, float)) else None
    return ActivityEntry(lock_name, claim_id, holder_id, shared == 1, token, at_ms)


def _without_stars(text: str) -> str:
    """Without a star, nothing in the text can end the comment or begin another. JSON reads the escape as a star."""
    return text.replace("*", "\\u002a")


def _deflated(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compressor.compress(data) + compressor.flush()


def _inflated(data: bytes) -> bytes:
    return zlib.decompressobj(wbits=-zlib.MAX_WBITS).decompress(data, _MAX_INFLATED_BYTES)
