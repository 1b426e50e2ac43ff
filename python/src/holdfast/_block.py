"""`async with lock.lock(name) as lease:` – a block that runs under leases."""

from __future__ import annotations

import asyncio
import sys
from contextlib import ExitStack
from contextvars import Context
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Generic, Optional, Sequence, Type, TypeVar

from ._inner_lease import InnerLease, beneath
from ._options import Share
from ._reentry import Frame, innermost_frame, is_in_generator, leave_ended_frames
from .core.emitter import current_frame
from .core.events import Running
from .core.holder import Holder
from .core.lease import HeldLease, Lease
from .errors import HoldfastError, LeaseLostError

if TYPE_CHECKING:
    from ._claims import Claims

T = TypeVar("T")


class LeaseBlock(Generic[T]):
    """Takes its leases, runs the block under them and releases them.

    If a lease is lost, the task that runs the block is cancelled, and the block raises the `LeaseLostError`. It raises
    it, too, if the block succeeded but a lease was lost before its release. An error of the block itself is never
    hidden, and neither is a cancellation from outside.
    """

    def __init__(self, claims: Claims, share: Share) -> None:
        self._claims = claims
        self._share = share
        self._leases: Sequence[Lease] = ()
        self._holder: Optional[Holder] = None
        self._frames: list[Frame] = []
        self._entered_frames: list[Frame] = []
        self._around: Optional[ExitStack] = None
        """What listeners of `running` put around the block."""
        self._waiting: list[asyncio.Future[None]] = []
        self._in_generator = False
        self._runner: object = None
        """The task or thread that runs the block."""
        self._active = False
        self._task: Optional[asyncio.Task[Any]] = None
        self._cancelling = 0
        self._cancel_sent = False

    @property
    def frame(self) -> Optional[Frame]:
        """The innermost frame of the block while it runs. The synchronous API puts it into its thread's context."""
        return self._frames[-1] if self._frames else None

    def __repr__(self) -> str:
        leases = ", ".join(map(repr, self._leases)) or "not entered"
        return f"<{type(self).__name__.lstrip('_')}: {leases}>"

    async def _take(self) -> tuple[Sequence[Lease], T]:
        """The leases, and what the block's `as` gets. Raises if not all of them could be taken. What it enters again it
        passes to `_keep` in the same step."""
        raise NotImplementedError

    def _keep(self, entered: InnerLease) -> None:
        """The block around it does not release the lease before this block has ended. Must be called in the step in
        which it was entered: that block could end in between and not know of this one."""
        frame = entered.frame
        if frame is not None:
            frame.blocks.add(self)
            self._entered_frames.append(frame)
            # It ends with this block. A release by name in the block around it does not mean it.
            if entered in frame.inner:
                frame.inner.remove(entered)

    async def __aenter__(self) -> T:
        return await self.enter_from(sys._getframe().f_back)

    async def enter_from(self, frame: Optional[FrameType]) -> T:
        """Enters and begins, for the `async with` in this frame of Python."""
        task = asyncio.current_task()
        value = await self.enter(is_in_generator(frame), task)
        try:
            self.begin_running()
        except BaseException as error:
            # `async with` does not leave a block that it has not entered.
            await self.leave(error, task)
            raise
        return value

    def begin_running(self) -> None:
        """The block begins. In the context of the code that has it: listeners of `running` may change that."""
        events = self._claims.instance.events
        if not events.hears(Running):
            return
        for lease in self._leases:
            held = beneath(lease)
            is_reentry = isinstance(lease, InnerLease) and lease.frame is not None
            if isinstance(held, HeldLease) and not is_reentry:
                event = Running(*held.event_base, self._in_generator)
                events.emit(event)
                if self._around is None:
                    self._around = ExitStack()
                try:
                    for around in event.around:
                        self._around.enter_context(around)
                except BaseException:
                    self.end_running(*sys.exc_info())
                    raise

    def end_running(self, *exc_info: Any) -> None:
        around, self._around = self._around, None
        if around is not None:
            around.__exit__(*exc_info)

    async def enter(self, in_generator: bool, runner: object) -> T:
        """`runner`: the task or thread that runs the block. `in_generator`: other code of it runs while the block is
        suspended."""
        if self._active:
            raise RuntimeError("this block has been entered already: call lock() again for another one")
        self._active = True
        self._cancel_sent = False
        self._in_generator = in_generator
        self._runner = runner
        try:
            self._leases, value = await self._take()
            for lease in self._leases:
                _assert_begun(lease)
        except BaseException:
            leases, self._leases = self._leases, ()
            self._leave()
            await _release_all(leases)
            raise
        self._task = asyncio.current_task()
        if self._task is not None:
            self._cancelling = self._task.cancelling()
        self._holder = self._claims.instance.current
        if self._holder is not None:
            self._holder.running.begin()
        for lease in self._leases:
            if not in_generator:
                self._frames.append(Frame(self._claims.reentry, lease, self._share, self.frame or innermost_frame()))
            held = beneath(lease)
            if isinstance(held, HeldLease):
                held.users += 1
            lease.add_loss_callback(self._on_loss)
        if self.frame is not None:
            current_frame.set(self.frame)
        return value

    async def __aexit__(
        self,
        exc_type: Optional[Type[BaseException]],
        exc: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        try:
            self.end_running(exc_type, exc, traceback)
        finally:
            await self.leave(exc, asyncio.current_task())

    async def leave(self, exc: Optional[BaseException], runner: object) -> None:
        leases, self._leases = self._leases, ()
        for lease in leases:
            lease.remove_loss_callback(self._on_loss)
        is_ours = self._take_back_cancellation(exc)
        cancelled: Optional[asyncio.CancelledError] = None
        # In a forked process, the blocks of other threads and tasks run in the parent, and never end here.
        is_forked = self._holder is not None and self._holder.abandoned
        for frame in self._frames:
            if frame.blocks and not is_forked:
                try:
                    await self._inner_blocks_ended(runner, stop=exc is not None)
                except asyncio.CancelledError as error:
                    cancelled = error
                break
        for frame in self._frames:
            frame.end()
        leave_ended_frames()
        for lease in leases:
            held = beneath(lease)
            if isinstance(held, HeldLease):
                held.users -= 1
        try:
            # Cancelled here, it waits only until the release has reached the store.
            await _release_all(leases)
        finally:
            self._leave()
        if cancelled is not None:
            raise cancelled
        loss = next((lease.loss_error for lease in leases if not lease.held and lease.loss_error is not None), None)
        if loss is not None and (exc is None or is_ours):
            raise loss.with_traceback(None)

    def stop(self, reason: str) -> None:
        """The block around this one has ended, and releases the lease that this one has entered."""
        if self._in_generator:
            # The task may be outside the generator. Nothing there would take the cancellation back.
            for lease in self._leases:
                lease.remove_loss_callback(self._on_loss)
        for lease in self._leases:
            if isinstance(lease, InnerLease):
                lease.lose(reason)

    async def ended(self) -> None:
        if self._active:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future

    def _on_loss(self, error: LeaseLostError) -> None:
        # Not at once: the task may be running, for example in `lease.held`. Its cancellation would then be delivered at
        # an await after the block, if the block has none left.
        if self._task is not None:
            self._task.get_loop().call_soon(self._cancel_body, context=Context())

    def _cancel_body(self) -> None:
        if self._leases and not self._cancel_sent and self._task is not None and not self._task.done():
            self._cancel_sent = True
            self._task.cancel("holdfast: a lease was lost")

    def _take_back_cancellation(self, exc: Optional[BaseException]) -> bool:
        """Whether the block ends because of the cancellation that this class has sent, and of no other one."""
        if not self._cancel_sent or self._task is None:
            return False
        return self._task.uncancel() <= self._cancelling and isinstance(exc, asyncio.CancelledError)

    async def _inner_blocks_ended(self, runner: object, *, stop: bool) -> None:
        """Waits for the blocks that other tasks have entered inside this one: the lock must not be released under them.
        If this block failed or is cancelled, they are asked to stop.

        It does not wait for those that cannot end meanwhile, or may never end: that of the task or thread that ends
        this one, and that of a generator, which goes on when its consumer likes."""
        while True:
            blocks = [block for frame in self._frames for block in frame.blocks]
            awaited = [block for block in blocks if not block._in_generator and block._runner != runner]
            try:
                for block in blocks:
                    if stop or block not in awaited:
                        block.stop("the block that it was entered in has ended")
                if not awaited:
                    return
                for block in awaited:
                    await block.ended()
            except asyncio.CancelledError:
                for frame in self._frames:
                    for block in frame.blocks:
                        block.stop("the block that it was entered in was cancelled")
                raise

    def _leave(self) -> None:
        for frame in self._entered_frames:
            frame.blocks.discard(self)
        self._entered_frames = []
        self._frames = []
        self._task = None
        self._runner = None
        self._active = False
        if self._holder is not None:
            self._holder.running.end()
            self._holder = None
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)


async def _release_all(leases: Sequence[Lease]) -> None:
    """In one list. A release that failed is repeated in the background."""
    releasing = [lease.begin_dispose() for lease in leases]
    try:
        for future in releasing:
            try:
                await future
            except HoldfastError:
                pass
    except BaseException as error:
        for future in releasing:
            # No one else reads their errors.
            future.add_done_callback(_read)
        if isinstance(error, asyncio.CancelledError):
            # Like `Lease.answer_to`.
            await asyncio.gather(*(lease.wait_released() for lease in leases))
        raise


def _read(future: asyncio.Future[bool]) -> None:
    if not future.cancelled():
        future.exception()


def _assert_begun(lease: Lease) -> None:
    """Since the grant, the lease may have expired or been released by `release_all`."""
    if not lease.held:
        reason = "it was released before the block began"
        raise lease.loss_error or LeaseLostError(lease.lock_name, lease.fencing_token, reason)
