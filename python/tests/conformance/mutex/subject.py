from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Awaitable, Callable, Optional, Protocol, Sequence

from holdfast.core.driver import Driver
from holdfast.core.lock_info import LockInfo
from holdfast.errors import LeaseLostError


class Handle(Protocol):
    """A lock that was taken."""

    @property
    def held(self) -> bool: ...

    @property
    def loss(self) -> Optional[LeaseLostError]:
        """Why it was lost, if it was."""

    @property
    def fencing_token(self) -> int: ...

    async def release(self) -> bool:
        """True if it was still held."""


@dataclass(frozen=True)
class Taken:
    """The outcome of `take`. Contention is a value; everything else is raised."""

    handle: Optional[Handle] = None
    holder: Optional[LockInfo] = None

    @property
    def acquired(self) -> bool:
        return self.handle is not None


class Take(Protocol):
    def __call__(self, lock_name: str, **options: Any) -> Awaitable[Taken]:
        """Takes the options of `DistributedLock.acquire`, and waits by default."""


@dataclass(frozen=True)
class MutexInstance:
    """One process's instance."""

    take: Take
    close: Callable[[], Awaitable[None]]
    asks_before_waiting: int = 1
    """How often it has asked the store when it begins to wait."""


class Open(Protocol):
    def __call__(self, driver: Driver, *, holder_id: str, **options: Any) -> MutexInstance: ...


@dataclass(frozen=True)
class MutexSubject:
    name: str
    """The name of the form in TypeScript, which is part of the titles."""
    open: Open
    needs: Sequence[str] = ()
    """What it needs of a driver beyond exclusive claims."""
