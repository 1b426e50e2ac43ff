"""A pytest plugin that writes the outcome of every test as one JSON text, for test/python/pytest.test.ts.

Loaded with `-p support.json_report`. The file is named by HOLDFAST_TEST_REPORT.
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict

_outcomes: Dict[str, Dict[str, Any]] = {}


def pytest_runtest_logreport(report: Any) -> None:
    _record(report)


def pytest_collectreport(report: Any) -> None:
    # A file that cannot be imported has no tests. It counts as one that failed.
    if report.failed:
        _record(report)


def pytest_sessionfinish(session: Any) -> None:
    if hasattr(session.config, "workerinput"):
        return  # One of xdist's processes. The first process has the reports of all of them.
    with open(os.environ["HOLDFAST_TEST_REPORT"], "w", encoding="utf-8") as file:
        json.dump(list(_outcomes.values()), file)


def _record(report: Any) -> None:
    outcome = _outcomes.setdefault(
        report.nodeid, {"id": report.nodeid, "outcome": "passed", "seconds": 0.0, "text": ""}
    )
    outcome["seconds"] += getattr(report, "duration", 0.0)
    if report.failed:
        printed = "".join(f"\n── {title}\n{text}" for title, text in report.sections)
        outcome["outcome"] = "failed"
        outcome["text"] += f"{report.longreprtext}{printed}\n"
    elif report.skipped and outcome["outcome"] == "passed":
        outcome["outcome"] = "skipped"
        outcome["text"] = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
