"""Tracks the block of a lease, so that the same name inside it is entered again instead of waiting for itself."""

from __future__ import annotations

from inspect import CO_ASYNC_GENERATOR, CO_GENERATOR
from types import FrameType
from typing import TYPE_CHECKING, Any, Iterator, Optional

from ._inner_lease import InnerLease, beneath
from ._options import Share
from .core.claim_ids import Chain, is_in, is_outermost
from .core.emitter import current_frame
from .core.holder import ClaimRequest
from .core.lease import HeldLease, Lease
from .errors import DeadlockError, DeadlockStep, InvalidArgumentError

if TYPE_CHECKING:
    from ._block import LeaseBlock


class Frame:
    """One block that runs under a lease.

    A frame ends with its block. A task that was started inside and goes on still carries the context, but it finds the
    frame ended and has to ask the store like any other.
    """

    __slots__ = ("owner", "lease", "share", "outer", "inner", "blocks", "ended", "again")

    def __init__(self, owner: Reentry, lease: Lease, share: Share, outer: Optional[Frame]) -> None:
        self.owner = owner
        self.lease = lease
        self.share = share
        self.outer = outer
        self.inner: list[InnerLease] = []
        """Entries by `hold` or `acquire` that were not released."""
        self.blocks: set[LeaseBlock[Any]] = set()
        """Blocks that have entered this frame's lease again and have not ended."""
        self.ended = False
        self.again: Optional[Lease] = None
        """The lease that the block has acquired on this name after its own one had ended."""

    def enter(self) -> InnerLease:
        lease = InnerLease(self.lease, self._left)
        lease.frame = self
        self.inner.append(lease)
        return lease

    def _left(self, lease: InnerLease) -> None:
        if lease in self.inner:
            self.inner.remove(lease)

    def end(self) -> None:
        """Entries that were not released are lost: the lock is released now, and nothing says when they would end."""
        self.ended = True
        for lease in self.inner:
            lease.lose("the block that it was entered in has ended")
        self.inner = []


def innermost_frame() -> Optional[Frame]:
    """The innermost block that runs here and has not ended."""
    return _not_ended(current_frame.get())


def leave_ended_frames() -> None:
    """Blocks may end in any order, and in another task or thread than they began in. So a block that ends does not
    restore what was current when it began: a block inside it may go on, or the one around it may have ended."""
    frame = current_frame.get()
    if frame is not None and frame.ended:
        current_frame.set(_not_ended(frame))


def _not_ended(frame: Optional[Frame]) -> Optional[Frame]:
    while frame is not None and frame.ended:
        frame = frame.outer
    return frame


def _frames() -> Iterator[Frame]:
    """From the innermost outwards."""
    frame = innermost_frame()
    while frame is not None:
        yield frame
        # Ended frames are forgotten: with blocks that overlap, each one begins before the last has ended, and the chain
        # would grow for ever.
        frame.outer = _not_ended(frame.outer)
        frame = frame.outer


def is_in_generator(frame: Optional[FrameType]) -> bool:
    """Whether a `with` in this frame of Python is suspended with a generator. What runs meanwhile in the same thread or
    task is not inside the block: it must not enter the lease again.

    A generator that contextlib drives is different. It is a `with` under another name, and counts as the code that has
    it. pytest's fixtures and other generators count as generators.
    """
    while frame is not None:
        if not is_contextlib(frame):
            flags = frame.f_code.co_flags
            if not flags & (CO_GENERATOR | CO_ASYNC_GENERATOR):
                return False
            if frame.f_back is None or not is_contextlib(frame.f_back):
                return True
        frame = frame.f_back
    return False


def is_contextlib(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") == "contextlib"


class Reentry:
    """The blocks of one instance."""

    def enter(self, request: ClaimRequest, share: Share) -> Optional[InnerLease]:
        """Enters the lease that the running block holds on this name, if that covers the request. Raises
        `DeadlockError` if the request conflicts with that lease and would wait: it would wait for itself. A request
        that does not wait is left to the store, which refuses it."""
        if current_frame.get() is None:
            return None
        if share.limit is not None:
            self._assert_room(request, share)
            return None
        too_little: Optional[Lease] = None
        for frame in self._frames_of(request.lock_name):
            if not frame.lease.held:
                continue
            if frame.share.mode == "exclusive" or share.mode == "shared":
                return frame.enter()
            too_little = frame.lease
        if too_little is None or request.wait_ms == 0:
            return None
        raise _waits_for_itself(
            too_little, "it holds it as a reader, and a writer has to wait until every reader is gone"
        )

    def assert_outside(self, request: ClaimRequest, why: str) -> None:
        """For what cannot be entered again. Raises `DeadlockError` if the running block holds this name and would
        wait."""
        if request.wait_ms > 0:
            for frame in self._frames_of(request.lock_name):
                if frame.lease.held:
                    raise _waits_for_itself(frame.lease, why)

    @property
    def chain(self) -> Optional[Chain]:
        """The chain for a claim that is made now: that of the innermost block with a lease of its own, in any
        instance. A released lease blocks no one, although the store may keep it for `min_hold_seconds`."""
        if current_frame.get() is None:
            return None
        joined: list[HeldLease] = []
        found: Optional[Chain] = None
        for frame in _frames():
            if not frame.lease.held:
                continue
            if isinstance(frame.lease, HeldLease):
                found = frame.lease.chain
                break
            # A frame that has entered a lease again is inside the frame that holds it.
            if isinstance(frame.lease, InnerLease) and frame.lease.frame is None:
                lease = beneath(frame.lease)
                assert isinstance(lease, HeldLease)
                joined.append(lease)
        # A lease that is shared with `reacquire="extend"` may have been claimed inside other blocks than these.
        for lease in reversed(joined):
            if is_in(found, lease.claim.claim_id):
                found = lease.chain
        return found

    def chain_under(self, lease: Optional[Lease]) -> Optional[Chain]:
        """The chain for a claim that is made while the caller keeps this lease. None if it has ended, or if it is
        shared with `reacquire="extend"` and was claimed inside blocks that may not be the caller's."""
        if lease is None or not lease.held:
            return None
        held = beneath(lease)
        assert isinstance(held, HeldLease)
        is_joined = isinstance(lease, InnerLease) and lease.frame is None
        return None if is_joined and not is_outermost(held.claim.claim_id) else held.chain

    def current_lease(self) -> Lease:
        """The lease of the innermost block of this instance that runs here."""
        for frame in _frames():
            if frame.owner is self:
                return frame.lease
        rule = "called inside a block or a decorated function of this instance"
        raise InvalidArgumentError("current_lease", None, rule, f"current_lease() must be {rule}")

    def depth_on(self, lease: Lease) -> int:
        """How many of the nested blocks that run here run under this lease."""
        if current_frame.get() is None:
            return 0
        return sum(1 for frame in _frames() if beneath(frame.lease) is lease)

    def innermost(self, lock_name: str) -> Optional[Lease]:
        """The innermost lease of the running block on this name. A release by name means this one."""
        if current_frame.get() is None:
            return None
        for frame in self._frames_of(lock_name):
            lease: Lease = frame.inner[-1] if frame.inner else frame.lease
            # The block's own lease may have ended, by release or loss, and the name may have been acquired again.
            return lease if isinstance(lease, InnerLease) or lease.held else None
        return None

    def means(self, lease: HeldLease) -> bool:
        """Whether the name of a lease means this lease to the running block. If the block began with a lease of its own
        on that name, which has ended, it means no other one, unless the block has acquired the name again."""
        if current_frame.get() is None:
            return True
        frame = next(self._frames_of(lease.lock_name), None)
        return frame is None or frame.again is lease

    def acquired(self, lease: Lease) -> None:
        """The running block has acquired a name."""
        if current_frame.get() is not None:
            frame = next(self._frames_of(lease.lock_name), None)
            if frame is not None:
                frame.again = beneath(lease)

    def _assert_room(self, request: ClaimRequest, share: Share) -> None:
        """Permits are counted: a second claim takes more of them."""
        if request.wait_ms == 0 or share.limit is None:
            return
        frames = [frame for frame in self._frames_of(request.lock_name) if frame.lease.held]
        held = sum(frame.share.permits for frame in frames)
        if frames and held + share.permits > share.limit:
            why = f"it holds {held} of {share.limit} permits, and wants {share.permits} more"
            raise _waits_for_itself(frames[0].lease, why)

    def _frames_of(self, lock_name: str) -> Iterator[Frame]:
        return (frame for frame in _frames() if frame.owner is self and frame.lease.lock_name == lock_name)


def _waits_for_itself(lease: Lease, why: str) -> DeadlockError:
    name = lease.lock_name
    message = f'the block that runs here would wait for itself on "{name}": {why}'
    return DeadlockError(message, name, [DeadlockStep(lease.holder_id, name, lease.holder_id)])
