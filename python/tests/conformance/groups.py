"""The groups of the suite, in the order in which failures are best read."""

from __future__ import annotations

from typing import List

from .driver.expiry import expiry
from .driver.leases import leases
from .driver.lists import lists
from .driver.sharing import sharing
from .driver.tokens import tokens
from .stores import StoreKind
from .suite import Case, Group

DRIVER_GROUPS: List[Group] = [leases, lists, expiry, tokens, sharing]


def cases_of(kind: StoreKind) -> List[Case]:
    """The cases that run on a store, whether its driver meets their needs or not."""
    return [case for group in DRIVER_GROUPS for case in group.cases]
