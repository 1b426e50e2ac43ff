"""The primitives that are tested as a mutex. Their names are those of TypeScript, because titles are the same."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import Any, AsyncIterator, Callable, List, Optional, Sequence

from holdfast import DistributedLock, Lease, LeaderElection, NotAcquiredError, ReadWriteLock, Semaphore
from holdfast.core.driver import Driver

from .forms import LeaseHandle, answering, holding, running
from .subject import MutexInstance, MutexSubject, Take, Taken


def subject(
    name: str,
    make: Callable[..., Any],
    take_by: Callable[[Any], Take],
    *,
    needs: Sequence[str] = (),
    asks_before_waiting: int = 1,
) -> MutexSubject:
    """One form of a primitive, as a mutex."""

    def open(driver: Driver, *, holder_id: str, **options: Any) -> MutexInstance:
        primitive = make(driver, holder_id=holder_id, **options)
        return MutexInstance(take_by(primitive), primitive.close, asks_before_waiting)

    return MutexSubject(name, open, needs)


def one_of_several(lock: DistributedLock) -> Take:
    @asynccontextmanager
    async def enter(lock_name: str, **options: Any) -> AsyncIterator[Lease]:
        async with lock.locks([lock_name], **options) as leases:
            yield leases[0]

    return running(enter)


def one_permit(driver: Driver, **options: Any) -> Semaphore:
    return Semaphore(driver, limit=1, **options)


def open_elections(driver: Driver, **options: Any) -> MutexInstance:
    """One election for each name. Without a heartbeat, the term ends by its own limit."""
    elections: List[LeaderElection] = []

    async def take(
        name: str,
        *,
        timeout_seconds: float = 30,
        blocking: bool = True,
        blocking_timeout_seconds: float = 10,
        heartbeat: Optional[bool] = None,
    ) -> Taken:
        election = LeaderElection(driver, name=name, timeout_seconds=timeout_seconds, **options)
        elections.append(election)
        try:
            term = await election.campaign(
                blocking_timeout_seconds=blocking_timeout_seconds if blocking else 0,
                max_term_seconds=0.05 if heartbeat is False else None,
            )
        except NotAcquiredError as error:
            return Taken(holder=error.holder)
        return Taken(LeaseHandle(term, term.resign))

    async def close() -> None:
        await asyncio.gather(*(election.close() for election in elections))

    return MutexInstance(take, close)


LOCK_SUBJECTS: List[MutexSubject] = [
    subject("DistributedLock.acquire", DistributedLock, lambda lock: answering(lock.acquire)),
    subject("DistributedLock.hold", DistributedLock, lambda lock: holding(lock.hold)),
    subject("DistributedLock.withLock", DistributedLock, lambda lock: running(lock.lock)),
]

MUTEX_SUBJECTS: List[MutexSubject] = [
    *LOCK_SUBJECTS,
    # It asks for all names at once, and then waits for one after the other.
    subject("DistributedLock.withLocks", DistributedLock, one_of_several, asks_before_waiting=2),
    subject("ReadWriteLock.withWrite", ReadWriteLock, lambda lock: running(lock.write)),
    subject("Semaphore.withPermits", one_permit, lambda semaphore: running(semaphore.permits), needs=["limit"]),
    MutexSubject("LeaderElection.campaign", open_elections),
]
"""They run all groups. Of the other primitives it is the form that contains their other forms."""

MUTEX_FORMS: List[MutexSubject] = [
    subject("ReadWriteLock.acquireWrite", ReadWriteLock, lambda lock: answering(lock.acquire_write)),
    subject("ReadWriteLock.holdWrite", ReadWriteLock, lambda lock: holding(lock.hold_write)),
    subject("Semaphore.acquire", one_permit, lambda semaphore: answering(semaphore.acquire), needs=["limit"]),
    subject("Semaphore.hold", one_permit, lambda semaphore: holding(semaphore.hold), needs=["limit"]),
]
"""They run only the group that takes no time: they differ from the forms above in how they ask."""
