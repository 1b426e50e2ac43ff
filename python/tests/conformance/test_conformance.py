from __future__ import annotations

import pytest

from conformance.suite import Outcome, Skipped


def test_conformance(outcome: Outcome) -> None:
    """Called for each case on each store: see conftest.py."""
    if isinstance(outcome, Skipped):
        pytest.skip(outcome.reason)
    if outcome is not None:
        raise outcome
