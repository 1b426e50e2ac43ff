"""One lock instance for the whole process, configured by `HOLDFAST_URL`."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from typing import Any, Callable, Dict, Generic, List, Optional, TypeVar, Union, Unpack, cast

from ._instance import DEFAULT_STORE, DefaultStore, Store
from ._options import InstanceOptions, LockOptions
from .errors import InvalidArgumentError
from .lock import DistributedLock
from .sync.lock import SyncDistributedLock


class ProcessLockOptions(InstanceOptions, total=False):
    """The options of `get_distributed_lock`: those of `DistributedLock`."""

    reacquire: str
    defaults: Optional[LockOptions]


def get_distributed_lock(store: Store = DEFAULT_STORE, **options: Unpack[ProcessLockOptions]) -> DistributedLock:
    """Returns the one `DistributedLock` of this process. The arguments of the first call configure it; without them it
    uses the store that `HOLDFAST_URL` names.

    An instance belongs to one event loop. A program with several at the same time, each in its thread, gets one for
    each; call this function in the loop, and not when a module is imported. After a fork, the child may use it: it
    holds nothing, and opens the store again. After it was closed, the next call makes a new one, with the arguments of
    that call or else those of the last one.

    Raises `InvalidArgumentError` for arguments that differ from those of the first call: the caller would get another
    lock than it asked for.
    """
    return _of_loops.get(_Arguments(store, cast("Dict[str, Any]", options)))


def get_sync_distributed_lock(
    store: Store = DEFAULT_STORE, **options: Unpack[ProcessLockOptions]
) -> SyncDistributedLock:
    """Returns the one `SyncDistributedLock` of this process, for all of its threads. Like `get_distributed_lock`."""
    return _of_threads.get(_Arguments(store, cast("Dict[str, Any]", options)))


class _Arguments:
    def __init__(self, store: object, options: Dict[str, Any]) -> None:
        self.store = store
        self.options = options

    @property
    def is_empty(self) -> bool:
        return isinstance(self.store, DefaultStore) and not self.options

    def assert_same(self, first: _Arguments) -> None:
        """Only the names of what differs: a URL may contain a password."""
        names = [name for name in {**first.options, **self.options} if _differ(name, self.options, first.options)]
        if _differ("store", vars(self), vars(first)):
            names.insert(0, "store")
        if names:
            which = ", ".join(names)
            rule = "left out, or the same as in the first call"
            raise InvalidArgumentError(which, None, rule, f"{which} must be {rule} of this function")


def _differ(name: str, a: Dict[str, Any], b: Dict[str, Any]) -> bool:
    mine, first = a.get(name), b.get(name)
    # Clients and drivers may define `==` in their own way.
    return mine is not first and (type(mine) not in (str, int, float, dict) or mine != first)


L = TypeVar("L", bound=Union[DistributedLock, SyncDistributedLock])


class _Made(Generic[L]):
    def __init__(self, lock: L) -> None:
        self.lock = lock
        self.loop: Optional[weakref.ref[asyncio.AbstractEventLoop]] = None
        """The event loop that has it."""

    @property
    def loops(self) -> List[asyncio.AbstractEventLoop]:
        """Those that have it. One that was made when a module was imported may be in use by an event loop that has not
        called the function."""
        loops = (None if self.loop is None else self.loop(), self.lock._loop)
        return [loop for loop in loops if loop is not None]


class _OnePerProcess(Generic[L]):
    def __init__(self, kind: Callable[..., L], per_loop: bool) -> None:
        self._kind = kind
        self._per_loop = per_loop
        self._mutex = threading.Lock()
        self._first: Optional[_Arguments] = None
        self._made: List[_Made[L]] = []
        """One, unless several event loops run at the same time."""

    def get(self, asked: _Arguments) -> L:
        with self._mutex:
            loop = asyncio._get_running_loop() if self._per_loop else None
            self._made = [made for made in self._made if not made.lock.closed]
            if self._first is None or (not self._made and not asked.is_empty):
                first = asked
            else:
                first = self._first
                if not asked.is_empty:
                    asked.assert_same(first)
            made = next((each for each in self._made if loop is None or loop in each.loops), None)
            if made is None:
                made = next((each for each in self._made if all(used.is_closed() for used in each.loops)), None)
            if made is None:
                made = _Made(self._kind(first.store, **first.options))
                self._made.append(made)
                self._first = first
            if loop is not None:
                made.loop = weakref.ref(loop)
            return made.lock

    def after_fork(self) -> None:
        """The child has only the thread that forked, and another thread may have held the mutex. The event loops of the
        parent do not run here. An instance knows by itself that it is in a child."""
        self._mutex = threading.Lock()
        for made in self._made:
            made.loop = None


_of_loops = _OnePerProcess(DistributedLock, per_loop=True)
_of_threads = _OnePerProcess(SyncDistributedLock, per_loop=False)



def _after_fork() -> None:
    _of_loops.after_fork()
    _of_threads.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
