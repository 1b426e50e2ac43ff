"""Which block a `with` on a shared object leaves."""

from __future__ import annotations

from types import FrameType
from typing import Generic, List, Optional, TypeVar

from ._reentry import is_contextlib

B = TypeVar("B")


class Entered(Generic[B]):
    """The blocks that were entered through one object and not left.

    Several tasks or threads, and generators that are suspended in one of them, may be inside at the same time, and may
    leave in any order. A `with` enters and leaves in the same frame of Python. Where something else does that, such as
    an `ExitStack` or a method `__aenter__` of the caller, the newest block of the task or thread is left.
    """

    def __init__(self) -> None:
        self._entries: List[_Entry[B]] = []

    def add(self, frame: Optional[FrameType], runner: object, block: B) -> None:
        self._entries.append(_Entry(_own(frame), runner, block))

    def take(self, frame: Optional[FrameType], runner: object) -> B:
        """Raises `RuntimeError` if nothing was entered."""
        frame = _own(frame)
        best: Optional[_Entry[B]] = None
        # A copy: other threads add and remove theirs.
        for entry in list(self._entries):
            if best is None or entry.closeness(frame, runner) >= best.closeness(frame, runner):
                best = entry
        if best is None:
            raise RuntimeError("this lock was not entered: leave it once for each time that it was entered")
        self._entries.remove(best)
        return best.block


class _Entry(Generic[B]):
    __slots__ = ("frame", "runner", "block")

    def __init__(self, frame: Optional[FrameType], runner: object, block: B) -> None:
        self.frame = frame
        self.runner = runner
        self.block = block

    def closeness(self, frame: Optional[FrameType], runner: object) -> int:
        return 2 * (self.frame is frame) + (self.runner == runner)


def _own(frame: Optional[FrameType]) -> Optional[FrameType]:
    """None for frames of contextlib: an ExitStack enters and leaves in different ones."""
    return None if frame is None or is_contextlib(frame) else frame
