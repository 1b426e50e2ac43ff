"""Deletes ended rows now and then. Only disk space depends on it."""

from __future__ import annotations

from .connection import Connection

_SWEEPS = ("sweep_leases", "sweep_waiters", "sweep_rates", "sweep_ahead")
_SWEEP_EVERY_MS = 1_000
_MAX_SWEPT = 200
"""Per transaction, because other processes wait for it."""


class Sweeper:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._last_ms = 0

    def sweep(self, now_ms: int) -> None:
        """Call it within a transaction."""
        # In both directions, because the clock may have been set.
        if abs(now_ms - self._last_ms) < _SWEEP_EVERY_MS:
            return
        swept = [self._connection.run(each, now_ms, _MAX_SWEPT) for each in _SWEEPS]
        if max(swept) < _MAX_SWEPT:
            self._last_ms = now_ms
