"""A pytest plugin that writes the outcome of every test, for test/python/pytest.test.ts.

Loaded with `-p support.json_report`. The file is named by HOLDFAST_TEST_REPORT. It has one JSON text in each line,
which is written when a test has ended: a run that is killed leaves what it has found out.
"""

from __future__ import annotations

import json
import os
from functools import lru_cache
from typing import Any, Dict, TextIO

_outcomes: Dict[str, Dict[str, Any]] = {}


def pytest_runtest_logreport(report: Any) -> None:
    _record(report)
    # Most cases of the conformance suite have no report of their teardown.
    if report.when == "teardown" or getattr(report, "is_only", False):
        _write(report.nodeid)


def pytest_collectreport(report: Any) -> None:
    # A file that cannot be imported has no tests. It counts as one that failed.
    if report.failed:
        _record(report)
        _write(report.nodeid)


def pytest_sessionfinish(session: Any) -> None:
    # A test whose process has died has no teardown.
    for nodeid in list(_outcomes):
        _write(nodeid)


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


def _write(nodeid: str) -> None:
    print(json.dumps(_outcomes.pop(nodeid)), file=_file(), flush=True)


@lru_cache(maxsize=None)
def _file() -> TextIO:
    return open(os.environ["HOLDFAST_TEST_REPORT"], "a", encoding="utf-8")
