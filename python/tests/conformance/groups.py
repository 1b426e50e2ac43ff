"""The groups of the suite, in the order in which failures are best read."""

from __future__ import annotations

from typing import List, Sequence

from .driver.force import force
from .driver.claim_groups import claim_groups
from .driver.damaged import damaged
from .driver.expiry import expiry
from .driver.inspection import inspection
from .driver.leases import leases
from .driver.lists import lists
from .driver.queue import queue
from .driver.rate import rate
from .driver.rate_changes import rate_changes
from .driver.rate_policies import rate_policies
from .driver.sharing import sharing
from .driver.tokens import tokens
from .driver.values import values
from .driver.wake_ups import wake_ups
from .faults.acquire import acquire_faults
from .faults.messages import message_faults
from .faults.release import release_faults
from .faults.renewal import renewal_faults
from .faults.waiting import waiting_faults
from .mutex.exclusion import mutex_exclusion
from .mutex.loss import mutex_loss
from .mutex.subject import MutexSubject
from .mutex.subjects import LOCK_SUBJECTS, MUTEX_FORMS, MUTEX_SUBJECTS
from .mutex.waiting import mutex_waiting
from .primitives.deadlocks import deadlocks
from .primitives.ending import ending
from .primitives.forced_releases import forced_releases
from .primitives.hand_over import hand_over, uses
from .primitives.hold_times import hold_times
from .primitives.inspect_and_ping import inspect_and_ping
from .primitives.instance import instance
from .primitives.readers_and_writers import readers_and_writers
from .primitives.semaphores import semaphores
from .primitives.several_locks import several_locks
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
    force,
    claim_groups,
    inspection,
    values,
    rate,
    rate_policies,
    rate_changes,
    damaged,
]

SHARING_GROUPS: List[Group] = [readers_and_writers, semaphores, several_locks, deadlocks]
LOCK_GROUPS: List[Group] = [instance, inspect_and_ping, hand_over, uses, ending, hold_times, forced_releases]
FAULT_GROUPS: List[Group] = [acquire_faults, renewal_faults, release_faults, waiting_faults]


def _mutex_groups(subjects: Sequence[MutexSubject]) -> List[Group]:
    builders = [mutex_exclusion, mutex_waiting, mutex_loss]
    return [build(subject) for subject in subjects for build in builders]


GROUPS = [
    *DRIVER_GROUPS,
    *_mutex_groups(MUTEX_SUBJECTS),
    *(mutex_exclusion(form) for form in MUTEX_FORMS),
    *SHARING_GROUPS,
    *LOCK_GROUPS,
    *FAULT_GROUPS,
    message_faults,
]
SECOND_CLIENT_GROUPS = [*DRIVER_GROUPS, *_mutex_groups(LOCK_SUBJECTS), *LOCK_GROUPS, *FAULT_GROUPS]


def cases_of(kind: StoreKind) -> List[Case]:
    """The cases that run on a store, whether its driver meets their needs or not."""
    groups = SECOND_CLIENT_GROUPS if kind.second_client else GROUPS
    return [case for group in groups for case in group.cases if kind.damageable or group is not damaged]
