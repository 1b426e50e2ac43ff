"""Which label a name gets. The same cases as in test/telemetry/templates.test.ts."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import InvalidArgumentError
from holdfast._telemetry.templates import OTHER, template_finder

PATTERNS = ["order:{id}", "user:{id}:profile", "day:{y}-{m}-{d}", "cron", "a.b+c:{x}", "{any}!"]


@pytest.mark.parametrize(
    ("name", "template"),
    [
        ("order:123", "order:{id}"),
        ("order:", OTHER),
        ("order:1:2", OTHER),
        ("my order:1", OTHER),
        ("user:7:profile", "user:{id}:profile"),
        ("user:7:password", OTHER),
        ("day:2026-08-01", "day:{y}-{m}-{d}"),
        ("day:2026-08-", OTHER),
        ("day:--", OTHER),
        ("day:a--b-c", "day:{y}-{m}-{d}"),
        ("cron", "cron"),
        ("cronx", OTHER),
        ("a.b+c:x", "a.b+c:{x}"),
        ("aXbbc:x", OTHER),
        ("!", OTHER),
        ("!!", "{any}!"),
    ],
)
def test_a_name_gets_the_first_pattern_that_matches(name: str, template: str) -> None:
    assert template_finder(PATTERNS)(name) == template


def test_no_name_takes_long_however_hostile() -> None:
    hostile = template_finder(["{a}-{b}-{c}-{d}-{e}-{f}-{g}-{h}!"])
    # A regular expression would try about 255⁷ ways. The test ends by its timeout if this does.
    assert hostile("-" * 255) == OTHER


@pytest.mark.parametrize("templates", [["{a}{b}"], [""], ["x\0"], [7], "order:{id}", [f"n{at}" for at in range(101)]])
def test_what_is_no_list_of_patterns_is_refused(templates: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="templates"):
        template_finder(templates)


def test_a_function_has_at_most_100_results_and_other() -> None:
    results = {template_finder_of_names(f"user-{at}") for at in range(10_000)}
    assert len(results) == 101


template_finder_of_names = template_finder(lambda name: name)


def test_what_a_function_returns_or_raises_never_reaches_a_label_unless_it_is_a_short_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    odd = iter([None, 7, "", "x" * 256, "a\0b", "\ud800"])
    find = template_finder(lambda _: next(odd))
    # The last ones raise, and the logger warns once.
    assert [find("name") for _ in range(8)] == [OTHER] * 8
    assert [record.getMessage() for record in caplog.records] == ["the function of `templates` raised an error"]
