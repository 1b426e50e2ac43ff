from __future__ import annotations

from typing import Tuple

import pytest

from conformance.stores import StoreKind
from conformance.suite import Case, Outcome, Skipped


def test_conformance(conformance_case: Tuple[StoreKind, Case], outcome: Outcome) -> None:
    if isinstance(outcome, Skipped):
        pytest.skip(outcome.reason)
    if outcome is not None:
        raise outcome
