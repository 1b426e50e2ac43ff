"""Makes a test of each case on each store. items.py says how they run."""

from __future__ import annotations

import os
from typing import List, Optional

import pytest

# The cases are not in test modules, and their assertions shall explain themselves nevertheless.
pytest.register_assert_rewrite("conformance")

from conformance.groups import cases_of  # noqa: E402
from conformance.items import CaseItem, StoreRun  # noqa: E402
from conformance.stores import STORES  # noqa: E402


def pytest_pycollect_makeitem(collector: pytest.Module, name: str, obj: object) -> Optional[List[CaseItem]]:
    # Not by parametrization: thousands of functions with fixtures would cost each process seconds.
    if name != "test_conformance":
        return None
    # The test command deals the stores out to several processes.
    part, parts = map(int, os.environ.get("HOLDFAST_TEST_PART", "0/1").split("/"))
    runs = [StoreRun(kind) for kind in STORES[part::parts]]
    return [CaseItem.make(collector, obj, run, case) for run in runs for case in cases_of(run.kind)]


def pytest_runtest_protocol(item: pytest.Item, nextitem: Optional[pytest.Item]) -> Optional[bool]:
    # A case that has not failed needs one report, without setup and teardown. The last one tears its file down.
    is_last = nextitem is None or nextitem.parent is not item.parent
    report = item.only_report() if isinstance(item, CaseItem) and not is_last else None
    if report is None:
        return None
    item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)  # Shows the progress.
    return True
