"""Follows who leads: `LeaderElection.observe`."""

from __future__ import annotations

from typing import TYPE_CHECKING, AsyncIterator, Awaitable, Callable, Optional, Union

from .._instance import Instance
from ..core.tasks import Watch, pause
from ..errors import StoreError

if TYPE_CHECKING:
    from ..election import Leader


class Changes:
    """Counts the terms that this instance has begun or ended, so that its observers look at once."""

    def __init__(self) -> None:
        self.count = 0
        self._watchers: set[Callable[[], None]] = set()

    def notify(self) -> None:
        self.count += 1
        watchers, self._watchers = self._watchers, set()
        for changed in watchers:
            changed()

    def after(self, count: int) -> Watch:
        """A reason to stop: there were changes after this count."""

        def watch(changed: Callable[[], None]) -> Callable[[], None]:
            if self.count != count:
                changed()
            else:
                self._watchers.add(changed)
            return lambda: self._watchers.discard(changed)

        return watch


async def observe_leader(
    instance: Instance,
    look: Callable[[], Awaitable[Optional[Leader]]],
    every_ms: float,
    on_error: Optional[Callable[[StoreError], object]],
    changes: Changes,
) -> AsyncIterator[Optional[Leader]]:
    shown: Union[int, None, bool] = False
    """The term that was shown last: None for no leader, False before the first."""
    while not instance.closed:
        # Read before the look: a change during the look is a reason for another one.
        count = changes.count
        try:
            leader = await look()
        except Exception as error:
            if instance.closed:
                return
            if not isinstance(error, StoreError) or not error.retryable:
                raise
            if on_error is not None:
                on_error(error)
        else:
            if instance.closed:
                return
            term = None if leader is None else leader.term
            if shown is False or term != shown:
                shown = term
                yield leader
        await pause(instance.clock, every_ms, instance.watch_closing, changes.after(count))
