from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from holdfast.drivers._postgres_advisory.activity_comment import (
    ActivityEntry,
    read_activity_comment,
    write_activity_comment,
)
from holdfast.drivers._postgres_advisory.statements import execution
from holdfast.drivers.postgres_advisory import advisory_key

VECTORS = Path(__file__).resolve().parents[4] / "protocol/vectors/advisory-keys.json"


def test_failure_27_keys_are_64_bits_by_the_published_hash() -> None:
    for vector in json.loads(VECTORS.read_text("utf-8"))["vectors"]:
        assert str(advisory_key(vector["lockName"])) == vector["key"]


@pytest.mark.parametrize("room", [1_024, 130])
@pytest.mark.parametrize(
    "lock_name", ["*/ DROP TABLE x; --", "/*", "/", "*", "\\u002a", '"quoted"', "ü日本🔒", "'; --", "$1", "%s", ":x"]
)
def test_a_comment_keeps_every_name_unchanged_and_no_name_can_end_it(lock_name: str, room: int) -> None:
    entry = ActivityEntry(lock_name, "c", "h" * 40, False, 7, 1.5)
    comment = write_activity_comment([entry], room)
    assert comment.index("*/") == len(comment) - 2
    assert comment.rindex("/*") == 0
    assert len(comment.encode()) < room
    assert read_activity_comment(comment + "SELECT 1") == [entry]


def test_entries_that_do_not_fit_are_left_out_oldest_first() -> None:
    names = [hashlib.sha256(bytes([number])).hexdigest() for number in range(16)]
    entries = [ActivityEntry(name, "claim", "holder", True) for name in names]
    shown = read_activity_comment(write_activity_comment(entries, 300))
    assert shown and shown == entries[: len(shown)] and len(shown) < 16


@pytest.mark.parametrize(
    "text",
    [
        '[["cut of',
        "not base64!",
        "AAAA",
        "[1]",
        '[["a"]]',
        '[["a","b",3,0]]',
        '[["\\ud800","b","c",0]]',
        '[["a","b","c",0,Infinity]]',
        "[" * 100_000,
        "null",
    ],
)
def test_a_comment_that_was_cut_off_or_forged_shows_nothing(text: str) -> None:
    assert read_activity_comment(f"/*holdfast {text} */SELECT 1") == []


def test_other_statements_have_no_comment() -> None:
    assert read_activity_comment("SELECT 1") is None
    assert read_activity_comment(None) is None
    assert write_activity_comment([], 1_024) == ""


def test_nothing_but_numbers_becomes_part_of_a_statement() -> None:
    with pytest.raises(AssertionError):
        execution("take", "session", ["1'); DROP TABLE x; --"])
