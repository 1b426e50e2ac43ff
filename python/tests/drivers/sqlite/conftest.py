"""Fixtures of the SQLite tests."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def usual_busy_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The conformance suite, which may have run in this process, has a longer one."""
    monkeypatch.setattr("holdfast.drivers.sqlite.MAX_BUSY_SECONDS", 2.0)
