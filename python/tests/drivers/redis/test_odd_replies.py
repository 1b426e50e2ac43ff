"""Replies that no script sends, as a broken server or a proxy may."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.drivers._redis.records import read_acquire, read_waiter
from holdfast.errors import StoreError

from support.redis_drivers import claim_on

ODD: Any = [
    [b"y", b"no JSON"],
    [b"y", b'["c",-1,1,500,"h"]'],
    [b"y", b'["c",1e400,1,500,"h"]'],
    [b"y", b'["c","7",1,500,"h"]'],
    [b"y", b'["c",7,"x",500,"h"]'],
    [b"y", b'["c",7,NaN,500,"h"]'],
    [b"y", 7],
    [b"y", None],
    [b"y"],
    # Redlock would propose such a mark to all nodes.
    [b"b", b"NaN"],
    [b"b", b"x"],
    [b"b", 10**300],
    [b"b", -1],
    [b"b", None],
    [b"b"],
    [b"f", b"Infinity"],
    [b"f", b"nan"],
    [b"f", -1],
    [b"f"],
    [b"n", b'["c",1,1,500,"h"]', b"x", 0, 0],
    [b"n", b'["c",1,1,500,"h"]', b"nan", 0, 0],
    [b"n", b"", -1, None, 0],
    [b"z", b"1"],
    [],
    {},
    None,
    b"x",
    -7,
]


@pytest.mark.parametrize("reply", ODD, ids=lambda reply: repr(reply)[:40])
def test_a_reply_that_no_script_sends_is_an_error_and_never_a_grant_or_a_mark(reply: Any) -> None:
    assert isinstance(read_acquire(claim_on("name"), 1, reply), StoreError)


TEXTS = ["", "no JSON", "null", "7", "[]", "[1,2,3]", '{"a":1}', '[1,2,0,0,1,1,1,"c","no JSON"]', "[1" * 9_000]


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text[:40])
def test_a_waiter_whose_text_another_client_wrote_is_shown_with_what_is_known_of_it(text: str) -> None:
    waiter = read_waiter("name", "no JSON", text)
    assert (waiter.lock_name, waiter.claim_id, waiter.holder_id) == ("name", "no JSON", "another client")
    assert waiter.mode == "exclusive" and waiter.permits == 1
