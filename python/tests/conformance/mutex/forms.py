"""The forms in which a primitive is used, each as a mutex."""

from __future__ import annotations

import asyncio
from typing import Any, AsyncContextManager, Awaitable, Callable, Dict, Optional, Union

from holdfast import Lease, Term
from holdfast.errors import LeaseLostError, NotAcquiredError

from .subject import Take, Taken


class LeaseHandle:
    """A lease or a term as a handle, with the release of its form."""

    def __init__(self, lease: Union[Lease, Term], release: Callable[[], Awaitable[bool]]) -> None:
        self._lease = lease
        self._release = release

    @property
    def held(self) -> bool:
        return self._lease.held

    @property
    def loss(self) -> Optional[LeaseLostError]:
        return self._lease.lost.error

    @property
    def fencing_token(self) -> int:
        return self._lease.fencing_token

    async def release(self) -> bool:
        return await self._release()


def answering(acquire: Callable[..., Awaitable[Any]]) -> Take:
    """A form that returns a result."""

    async def take(lock_name: str, **options: Any) -> Taken:
        result = await acquire(lock_name, **waiting_by_default(options))
        return Taken(LeaseHandle(result.lease, result.lease.release)) if result else Taken(holder=result.holder)

    return take


def holding(hold: Callable[..., Awaitable[Lease]]) -> Take:
    """A form that raises on contention."""

    async def take(lock_name: str, **options: Any) -> Taken:
        try:
            lease = await hold(lock_name, **waiting_by_default(options))
            return Taken(LeaseHandle(lease, lease.release))
        except NotAcquiredError as error:
            return Taken(holder=error.holder)

    return take


def running(enter: Callable[..., AsyncContextManager[Lease]]) -> Take:
    """A form that runs a block, which is in a task of its own. The release of its handle ends the block."""

    async def take(lock_name: str, **options: Any) -> Taken:
        taken: asyncio.Future[Taken] = asyncio.get_running_loop().create_future()
        asked_to_end = asyncio.Event()

        async def run() -> bool:
            try:
                async with enter(lock_name, **waiting_by_default(options)) as lease:
                    taken.set_result(Taken(LeaseHandle(lease, lambda: release(lease))))
                    await asked_to_end.wait()
                return True
            except LeaseLostError:
                # Once the handle exists, it reports the loss.
                if not taken.done():
                    raise
                return False

        async def release(lease: Lease) -> bool:
            was_held = lease.held
            asked_to_end.set()
            return await job and was_held

        job = asyncio.ensure_future(run())
        try:
            await asyncio.wait([job, taken], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            # As if the block were in the caller's own task.
            job.cancel()
            await asyncio.wait([job])
            if not job.cancelled():
                job.exception()
            raise
        if taken.done():
            return taken.result()
        try:
            await job
        except NotAcquiredError as error:
            return Taken(holder=error.holder)
        raise AssertionError("the block has ended before it began")

    return take


def waiting_by_default(options: Dict[str, Any]) -> Dict[str, Any]:
    says_so = "blocking" in options or "blocking_timeout_seconds" in options
    return options if says_so else {**options, "blocking": True}
