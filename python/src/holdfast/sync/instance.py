"""What every class of the synchronous API has."""

from __future__ import annotations

from types import TracebackType
from typing import Optional, Type

from .._instance import Closable
from .._observable import Observable
from ..core.arguments import Seconds
from ..core.emitter import Emitter
from ..core.limits import CLOSE_TIMEOUT_MS
from .portal import portal


class SyncInstance(Observable):
    """An id, `on`, `ping`, `close`, and `with` on the instance itself."""

    _inner: Closable

    @property
    def _events(self) -> Emitter:
        return self._inner._events

    @property
    def holder_id(self) -> str:
        """Identifies this instance to others."""
        return self._inner.holder_id

    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
        return self._inner.closed

    @property
    def _loop(self) -> None:
        """It is used in threads."""

    def ping(self) -> None:
        """Opens the store unless it is open, and proves that it works. Raises `StoreError`."""
        portal().run(self._inner.ping())

    def close(self, *, drain_seconds: Seconds = 0, deadline_seconds: Seconds = CLOSE_TIMEOUT_MS / 1_000) -> None:
        """Gives up what waits, lets running work end for `drain_seconds`, releases what is held, and closes the store
        if this instance opened it. Blocks that still run then lose their leases."""
        portal().run(self._inner.close(drain_seconds=drain_seconds, deadline_seconds=deadline_seconds), is_end=True)

    def __repr__(self) -> str:
        return self._inner._instance.shown_as(type(self).__name__)

    def __exit__(
        self,
        exc_type: Optional[Type[BaseException]],
        exc: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.close()
