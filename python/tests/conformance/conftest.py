"""Runs the cases of one store at the same time, and reports each of them as its own test."""

from __future__ import annotations

import os
from typing import Dict, Iterator, List, Tuple

import pytest

# The cases are not in test modules, and their assertions shall explain themselves nevertheless.
pytest.register_assert_rewrite("conformance")

from conformance.groups import cases_of  # noqa: E402
from conformance.stores import STORES, StoreKind  # noqa: E402
from conformance.suite import Case, Outcome, run_cases  # noqa: E402


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "conformance_case" not in metafunc.fixturenames:
        return
    pairs = [(kind, case) for kind in STORES for case in cases_of(kind)]
    metafunc.parametrize(
        "conformance_case",
        [pytest.param(pair, marks=_marks(*pair)) for pair in pairs],
        ids=[f"{kind.name}: {case}" for kind, case in pairs],
    )


def _marks(kind: StoreKind, case: Case) -> List[pytest.MarkDecorator]:
    return [
        pytest.mark.conformance(case.title),
        # One worker gets all cases of a store, because it runs them at the same time.
        pytest.mark.xdist_group(f"conformance-{kind.name}"),
        # The first test of a store waits for all of them.
        pytest.mark.timeout(300),
    ]


@pytest.fixture(scope="session")
def outcomes() -> Iterator[Dict[Tuple[str, Case], Outcome]]:
    yield {}


@pytest.fixture
def outcome(
    request: pytest.FixtureRequest,
    conformance_case: Tuple[StoreKind, Case],
    outcomes: Dict[Tuple[str, Case], Outcome],
) -> Outcome:
    """The first test of a store runs all cases of the store that were selected. The others find their outcome."""
    kind, case = conformance_case
    if (kind.name, case) not in outcomes:
        ran = run_cases(kind, _beside(request, kind, case))
        outcomes.update({(kind.name, each): outcome for each, outcome in ran.items()})
    return outcomes[kind.name, case]


def _beside(request: pytest.FixtureRequest, kind: StoreKind, case: Case) -> List[Case]:
    """The cases that this process will report, too."""
    # Only with `--dist loadgroup`, which appends the group to the test's id, one worker gets all cases of a store.
    if "PYTEST_XDIST_WORKER" in os.environ and "@" not in request.node.nodeid.rpartition("]")[2]:
        return [case]
    selected = [getattr(item, "callspec", None) for item in request.session.items]
    pairs = [spec.params.get("conformance_case") for spec in selected if spec is not None]
    return [each for pair in pairs if pair is not None for of, each in [pair] if of is kind]
