"""The primitives that are tested as a mutex."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import Any, AsyncIterator, Callable, List, Sequence

from holdfast import DistributedLock
from holdfast.core.driver import Driver
from holdfast.core.lease import Lease

from .forms import answering, holding, running
from .subject import MutexInstance, MutexSubject, Take


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


WITH_LOCK = subject("DistributedLock.withLock", DistributedLock, lambda lock: running(lock.lock))

MUTEX_SUBJECTS: List[MutexSubject] = [
    subject("DistributedLock.acquire", DistributedLock, lambda lock: answering(lock.acquire)),
    subject("DistributedLock.hold", DistributedLock, lambda lock: holding(lock.hold)),
    WITH_LOCK,
]
"""They run all groups. Of the other primitives it is the form that contains their other forms."""

if hasattr(DistributedLock, "locks"):
    # It asks for all names at once, and then waits for one after the other.
    MUTEX_SUBJECTS.append(
        subject("DistributedLock.withLocks", DistributedLock, one_of_several, asks_before_waiting=2)
    )
