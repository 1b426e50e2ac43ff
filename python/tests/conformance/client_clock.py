from __future__ import annotations

import time
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Iterator

_ahead_ms: ContextVar[float] = ContextVar("ahead_ms", default=0)
_right_time, _right_time_ns = time.time, time.time_ns
_users = 0


@contextmanager
def client_clock_ahead(ms: float) -> Iterator[None]:
    """Inside the block the client's wall clock is ahead by `ms`, for this task and those that it starts. Everything
    else that the process does meanwhile, such as other cases, keeps the right time."""
    global _users
    if _users == 0:
        time.time = lambda: _right_time() + _ahead_ms.get() / 1_000
        time.time_ns = lambda: _right_time_ns() + int(_ahead_ms.get() * 1_000_000)
    _users += 1
    token = _ahead_ms.set(ms)
    try:
        yield
    finally:
        _ahead_ms.reset(token)
        _users -= 1
        if _users == 0:
            time.time, time.time_ns = _right_time, _right_time_ns
