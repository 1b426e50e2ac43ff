"""The test vectors of `protocol/vectors`, which the TypeScript client has computed."""

from __future__ import annotations

import json
import re
import sqlite3
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

import pytest

from holdfast import _protocol
from holdfast.core.claim_ids import Chain
from holdfast.core.driver import Claim, Grant, LeaseRef, RateLimit, RateRequest, Renewal
from holdfast.drivers._memory.store import MemoryStore
from holdfast.drivers._postgres import arrays, notifications
from holdfast.drivers._postgres_advisory.activity_comment import (
    ActivityEntry,
    read_activity_comment,
    write_activity_comment,
)
from holdfast.drivers._postgres_advisory.held_locks import advisory_key
from holdfast.drivers._redis import keys, records
from holdfast.drivers._redlock.broadcast import _lock_name_in
from holdfast.drivers._shared.gcra import Moment, policy_of, take_step


def vectors(file: str, part: str = "vectors") -> List[Dict[str, Any]]:
    examples: List[Dict[str, Any]] = json.loads(_protocol.read(f"vectors/{file}.json"))[part]
    assert examples, f"{file}.json has no {part}"
    return examples


def each(file: str, part: str = "vectors") -> Any:
    """One test for each example."""
    return pytest.mark.parametrize("example", vectors(file, part), ids=lambda example: None)


def in_python(fields: Mapping[str, Any]) -> Dict[str, Any]:
    """The same fields under the names that they have in Python."""
    return {re.sub("[A-Z]", lambda upper: f"_{upper[0].lower()}", name): value for name, value in fields.items()}


def claim_of(fields: Mapping[str, Any]) -> Claim:
    return Claim(**in_python({name: value for name, value in fields.items() if name != "proposal"}))


def given(record: Any) -> Dict[str, Any]:
    """The fields of a dataclass that have a value."""
    return {name: value for name, value in asdict(record).items() if value is not None}


class FixedRandom:
    def __init__(self, id: str) -> None:
        self._id = id

    def id(self) -> str:
        return self._id

    def fraction(self) -> float:
        return 0.0


# Claim ids


@each("claim-ids", "children")
def test_the_id_of_a_claim_inside_others(example):
    chain = Chain(example["chain"], FixedRandom(example["random"]))
    ids = [chain.next_claim_id() for _ in range(37)]
    assert [ids[0], ids[9], ids[36]] == [example["first"], example["tenth"], example["thirtySeventh"]]
    group = Chain(example["chain"], FixedRandom(example["random"]))
    assert group.next_member_id() == example["member"]


# Tokens


@each("tokens", "floors")
def test_the_next_token_of_sqlite(example):
    database = sqlite3.connect(":memory:")
    database.executescript(_protocol.read("sqlite/schema.sql"))
    database.execute(_protocol.statements("sqlite/statements.sql")["restore_counter"])
    database.execute("UPDATE holdfast_counter SET last_token = ?", [example["last"]])
    next_token = _protocol.statements("sqlite/statements.sql")["next_token"]
    assert database.execute(next_token, [example["nowUs"] // 1_000]).fetchone() == (example["token"],)


@each("tokens", "floors")
def test_the_next_token_of_the_memory_driver(example):
    store = MemoryStore()
    store._last_token = example["last"]
    assert store._next_token(example["nowUs"] / 1_000) == example["token"]


# Rate limits


@each("rate-limits")
def test_the_id_spacing_and_reach_of_a_limit(example):
    policy = policy_of(RateRequest("", 1, [RateLimit(example["limit"], example["periodMs"], example["burst"])]))
    assert policy.ids == (example["id"],)
    assert policy.spacings_ms == (example["spacingMs"],)
    assert policy.fulls_ms == (example["fullMs"],)


@pytest.mark.parametrize("example", vectors("rate-steps"), ids=lambda example: example["title"])
def test_a_step_of_rate_limits(example):
    change = example.get("change")
    request = RateRequest(
        name="",
        cost=example["cost"],
        limits=[RateLimit(**in_python(limit)) for limit in example["limits"]],
        reset=change == "reset",
        block_ms=change["blockMs"] if isinstance(change, dict) else None,
    )
    moments = [Moment(**in_python(moment)) for moment in example["before"]]
    answer = take_step(request, moments, example["nowMs"])
    assert moments == [Moment(**in_python(moment)) for moment in example["after"]]
    assert given(answer) == {**in_python(example["answer"]), "used_ms": tuple(example["answer"]["usedMs"])}


# Redis


@each("redis-keys", "locks")
def test_the_keys_of_a_lock(example):
    plain, data, order = keys.lock_keys(example["prefix"], example["lockName"])
    assert (plain, data, order) == (example["plain"], example["data"], example["order"])
    assert keys.plain_of_data(data) == example["plainOfData"]
    assert keys.slot_of(plain) == example["slot"]
    assert keys.slot_of(data) == keys.slot_of(order) == example["siblingSlot"]
    assert keys.slot_counter(example["slot"]) == example["counter"]
    assert keys.wake_channel("client", example["slot"]) == example["channel"]
    assert keys.is_own_key(plain) == example["reserved"]


@each("redis-keys", "siblings")
def test_a_sibling_of_a_key(example):
    assert keys.sibling_key(example["key"], example["kind"]) == example["sibling"]


@each("redis-keys", "slotTags")
def test_the_tag_of_a_slot(example):
    assert keys.slot_tag(example["slot"]) == example["tag"]
    assert keys.slot_of(example["counter"]) == example["slot"]


@each("redis-values", "ids")
def test_the_text_of_a_claim_id(example):
    assert records.json_text(example["claimId"]) == example["text"]


@each("redis-values", "acquire")
def test_the_arguments_of_an_acquire(example):
    claims = [claim_of(fields) for fields in example["claims"]]
    assert records.acquire_args(claims, example["spares"]) == example["args"]


@each("redis-values", "ballots")
def test_the_keys_and_arguments_of_a_ballot(example):
    proposals = [records.Proposal(claim_of(each["claim"]), each["token"]) for each in example["proposals"]]
    assert keys.ballot_keys("lock:", [each.lock_name for each in proposals], False) == example["keys"]
    assert records.ballot_args(proposals, example["maxAheadUs"], example["longestTtlMs"]) == example["args"]


@each("redis-values", "renew")
def test_the_arguments_of_a_renewal(example):
    assert records.renew_args([Renewal(**in_python(each)) for each in example["renewals"]]) == example["args"]


@each("redis-values", "release")
def test_the_arguments_of_a_release(example):
    assert records.release_args([LeaseRef(**in_python(each)) for each in example["leases"]]) == example["args"]


@each("redis-values", "leases")
def test_the_record_of_a_stored_lease(example):
    record = records.read_lease(example["claim"]["lockName"], example["text"], example["endMs"])
    assert given(record) == in_python(example["record"])
    assert records.is_ours(example["text"])


@each("redis-values", "other")
def test_the_lock_of_another_client(example):
    assert given(records.read_lease("order:123", example["text"], example["endMs"])) == in_python(example["record"])
    assert records.is_ours(example["text"]) == example["isOurs"]


@each("redis-values", "waiters")
def test_the_record_of_a_stored_waiter(example):
    claim = claim_of(example["claim"])
    record = records.read_waiter(claim.lock_name, records.json_text(claim.claim_id), example["text"])
    assert given(record) == in_python(example["record"])


@each("redis-messages", "wakes")
def test_a_message_to_a_waiter(example):
    message = records.read_message(example["message"])
    if example["claimId"] is None:
        assert message is None
        return
    assert message is not None
    assert message.claim_id == example["claimId"]
    grant = example.get("grant")
    assert message.grant == (None if grant is None else Grant(**in_python(grant)))
    assert message.is_proved_by(example["secret"]) == example.get("proved", False)


@each("redis-messages", "forced")
def test_a_message_about_a_forced_release(example):
    found: Optional[Dict[str, Any]] = example["expected"]
    expected = ([], "") if found is None else (found["lost"], found["by"])
    assert records.read_forced(example["message"]) == expected


@each("redis-messages", "released")
def test_a_message_about_a_release(example):
    assert _lock_name_in(example["message"]) == example["lockName"]


# PostgreSQL


@each("postgres-arrays", "texts")
def test_an_array_of_texts(example):
    assert arrays.text_array(example["values"]) == example["literal"]


@each("postgres-arrays", "numbers")
def test_an_array_of_numbers(example):
    assert arrays.number_array(example["values"]) == example["literal"]


@each("postgres-arrays", "booleans")
def test_an_array_of_booleans(example):
    assert arrays.boolean_array(example["values"]) == example["literal"]


@each("postgres-arrays", "readNumbers")
def test_numbers_from_an_array(example):
    assert arrays.parse_floats(example["literal"]) == example["values"]


@each("postgres-arrays", "readBooleans")
def test_booleans_from_an_array(example):
    assert arrays.parse_booleans(example["literal"]) == example["values"]


@each("postgres-notifications", "events")
def test_the_events_of_a_notification(example):
    events = notifications.parse_events(example["payload"])
    assert [(event.claim_id, event.is_proved_by(example["key"], example["call"])) for event in events] == [
        (expected["claimId"], expected["proved"]) for expected in example["events"]
    ]
    assert [event.grant for event in events] == [
        None if expected["grant"] is None else Grant(**in_python(expected["grant"])) for expected in example["events"]
    ]


@each("postgres-notifications", "forced")
def test_a_notification_about_a_forced_release(example):
    found: Optional[Dict[str, Any]] = example["expected"]
    expected = ([], "") if found is None else (found["lost"], found["by"])
    assert notifications.parse_forced(example["payload"]) == expected


@each("advisory-keys")
def test_the_advisory_key_of_a_lock_name(example):
    assert str(advisory_key(example["lockName"])) == example["key"]


@each("postgres-activity-comments", "comments")
def test_a_written_activity_comment(example):
    entries = [ActivityEntry(**in_python(entry)) for entry in example["entries"]]
    assert write_activity_comment(entries, example["maxBytes"]) == example["comment"]


@each("postgres-activity-comments", "queries")
def test_an_activity_comment_that_is_read(example):
    read = read_activity_comment(example["query"])
    expected: Optional[List[Dict[str, Any]]] = example["entries"]
    assert read == (None if expected is None else [ActivityEntry(**in_python(entry)) for entry in expected])


def test_every_file_is_checked_by_some_python_test():
    tests = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.rglob("test_*.py"))
    folder = files("holdfast") / "protocol" / "vectors"
    names = [each.name[: -len(".json")] for each in folder.iterdir()]
    assert names and [name for name in names if f'"{name}"' not in tests and f"{name}.json" not in tests] == []
