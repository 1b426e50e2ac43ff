"""The guard in memory. Those of the drivers are tested beside them, and together in test_fence_guards.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List

import pytest

from holdfast.errors import InvalidArgumentError, OverloadError, StaleTokenError
from holdfast.fence import Fence


@dataclass(frozen=True)
class Held:
    fencing_token: int


def test_accepts_the_same_and_a_larger_token_and_refuses_a_smaller_one() -> None:
    fence = Fence()
    for token in (5, 5, 7, Held(7), Held(9)):
        fence.accept("account", token)
    for stale in (8, 1, Held(5)):
        with pytest.raises(StaleTokenError) as refused:
            fence.accept("account", stale)
        assert refused.value.code == "STALE_TOKEN"
        assert (refused.value.resource, refused.value.largest_token) == ("account", 9)
    fence.accept("account", 9)
    fence.accept("another", 1)
    assert (fence.largest("account"), fence.largest("unknown"), len(fence)) == (9, None, 2)


def test_reset_forgets_the_largest_token_of_one_resource() -> None:
    fence = Fence()
    fence.accept("moved", 1_000_000)
    fence.accept("other", 1_000_000)
    assert [fence.reset("moved"), fence.reset("moved")] == [True, False]
    fence.accept("moved", 7)
    for resource in ("moved", "other"):
        with pytest.raises(StaleTokenError):
            fence.accept(resource, 6)


@pytest.mark.parametrize("presents_first, lost", [(True, 0), (False, 10)])
def test_loses_no_update_if_the_token_is_presented_before_the_read(presents_first: bool, lost: int) -> None:
    fence = Fence()
    balance: List[int] = [100]

    def begin(token: int) -> int:
        if presents_first:
            fence.accept("account", token)
        return balance[0]

    def write(value: int, token: int) -> bool:
        try:
            fence.accept("account", token)
        except StaleTokenError:
            return False
        balance[0] = value
        return True

    # The first holder reads and is paused. Its lease ends. The second reads. Then the first writes, then the second.
    first, second = begin(1), begin(2)
    written = write(first + 10, 1)
    assert write(second + 1, 2)
    assert (111 if written else 101) - balance[0] == lost


def test_what_is_no_token_is_refused() -> None:
    fence = Fence()
    wrong: List[Any] = [0, -1, 1.5, float("nan"), "7", None, True, object(), 2**53]
    for token in wrong:
        with pytest.raises(InvalidArgumentError) as refused:
            fence.accept("account", token)
        assert refused.value.argument == "token"
    for resource in ("", "a\0", "\ud800", 7):
        with pytest.raises(InvalidArgumentError) as refused:
            fence.accept(resource, 1)  # type: ignore[arg-type]
        assert refused.value.argument == "resource"
    assert len(fence) == 0


def test_a_full_fence_refuses_new_resources_and_forgets_none_by_itself() -> None:
    fence = Fence(max_resources=2)
    fence.accept("a", 5)
    fence.accept("b", 5)
    with pytest.raises(OverloadError):
        fence.accept("c", 5)
    with pytest.raises(StaleTokenError):
        fence.accept("a", 4)
    assert fence.reset("a")
    fence.accept("c", 1)
    for bound in (0, 1.5, True, 10_000_001):
        with pytest.raises(InvalidArgumentError):
            Fence(max_resources=bound)  # type: ignore[arg-type]


def test_an_empty_fence_is_true() -> None:
    assert Fence()
