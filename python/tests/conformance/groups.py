"""The groups of the suite, in the order in which failures are best read."""

from __future__ import annotations

from typing import List

from .driver.claim_groups import claim_groups
from .driver.expiry import expiry
from .driver.inspection import inspection
from .driver.leases import leases
from .driver.lists import lists
from .driver.queue import queue
from .driver.rate import rate
from .driver.rate_changes import rate_changes
from .driver.rate_policies import rate_policies
from .driver.sharing import sharing
from .driver.steal import steal
from .driver.tokens import tokens
from .driver.values import values
from .driver.wake_ups import wake_ups
from .stores import StoreKind
from .suite import Case, Group

DRIVER_GROUPS: List[Group] = [
    leases,
    lists,
    expiry,
    tokens,
    sharing,
    queue,
    wake_ups,
    steal,
    claim_groups,
    inspection,
    values,
    rate,
    rate_policies,
    rate_changes,
]


def cases_of(kind: StoreKind) -> List[Case]:
    """The cases that run on a store, whether its driver meets their needs or not."""
    return [case for group in DRIVER_GROUPS for case in group.cases]
