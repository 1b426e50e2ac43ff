"""Runs the cases of one store at the same time, and reports each of them as its own test."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional

import pytest

from .stores import StoreKind
from .suite import Case, Outcome, Skipped, run_cases

NOT_RUN = Exception("the case has not run yet")


class StoreRun:
    """What the cases of a store have in common."""

    def __init__(self, kind: StoreKind) -> None:
        self.kind = kind
        self.outcomes: Dict[Case, Outcome] = {}
        self.marks = [
            # The first test of a store waits for all of them.
            pytest.mark.timeout(300).mark,
        ]


class CaseItem(pytest.Item):
    """A case on a store. The first of a store runs all that were selected. The others find their outcome."""

    run: StoreRun
    case: Case
    check: Callable[[Outcome], None]

    @classmethod
    def make(cls, parent: pytest.Module, check: Any, run: StoreRun, case: Case) -> CaseItem:
        item: CaseItem = cls.from_parent(parent, name=f"test_conformance[{run.kind.name}: {case}]")
        item.check, item.run, item.case = check, run, case
        item.own_markers.extend(run.marks)
        return item

    def runtest(self) -> None:
        outcomes = self.run.outcomes
        if self.case not in outcomes:
            outcomes.update(run_cases(self.run.kind, self._selected()))
        self.check(outcomes[self.case])

    def _selected(self) -> List[Case]:
        """The cases that this process will report, too."""
        return [each.case for each in self.session.items if isinstance(each, CaseItem) and each.run is self.run]

    def only_report(self) -> Optional[pytest.TestReport]:
        """All that is to say of a case that has passed or was skipped. None if it has failed, or has not run yet."""
        outcome = self.run.outcomes.get(self.case, NOT_RUN)
        if outcome is None:
            return self._report("passed", None)
        if isinstance(outcome, Skipped):
            return self._report("skipped", (str(self.path), 0, f"Skipped: {outcome.reason}"))
        return None

    def _report(self, outcome: Any, text: Any) -> pytest.TestReport:
        """`is_only`: no report of a teardown follows."""
        return pytest.TestReport(self.nodeid, self.location, {}, outcome, text, "call", is_only=True)
