"""The groups of the suite, in the order in which failures are best read."""

from __future__ import annotations

from importlib.util import find_spec
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




def _engine_groups(lock_only: bool) -> List[Group]:
    if find_spec("holdfast.lock") is None:
        return []
    from .faults.acquire import acquire_faults
    from .faults.release import release_faults
    from .faults.renewal import renewal_faults
    from .faults.waiting import waiting_faults
    from .mutex.exclusion import mutex_exclusion
    from .mutex.loss import mutex_loss
    from .mutex.subjects import LOCK_SUBJECTS, MUTEX_SUBJECTS
    from .mutex.waiting import mutex_waiting

    mutexes = [
        build(subject)
        for subject in (LOCK_SUBJECTS if lock_only else MUTEX_SUBJECTS)
        for build in (mutex_exclusion, mutex_waiting, mutex_loss)
    ]
    return [*mutexes, acquire_faults, renewal_faults, release_faults, waiting_faults]


GROUPS = [*DRIVER_GROUPS, *_engine_groups(False)]
LOCK_ONLY_GROUPS = [*DRIVER_GROUPS, *_engine_groups(True)]


def cases_of(kind: StoreKind) -> List[Case]:
    """The cases that run on a store, whether its driver meets their needs or not."""
    return [case for group in (LOCK_ONLY_GROUPS if kind.lock_only else GROUPS) for case in group.cases]
