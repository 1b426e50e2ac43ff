"""Runs any number of tasks with one timer."""

from __future__ import annotations

import asyncio
import heapq
import math
from typing import Any, List, Optional, Protocol

from .clock import Clock, Random
from .limits import MAX_SLEEP_MS

Entry = List[Any]
"""`[at_ms, order, task]`. The task is None if the entry no longer counts. A list, because heapq then compares in C."""


class Scheduled(Protocol):
    """Something that has to run at a certain time."""

    schedule: Optional[Entry]
    """Belongs to the scheduler."""

    def due(self) -> None:
        """Reads the clock and decides what is due. It may be called too early."""


class Scheduler:
    """A heap, so that 10,000 leases need one timer of the event loop.

    While it has tasks, its timer fires at least once a second, and it compares the two clocks. The monotonic clock does
    not advance while the machine is suspended. Without the comparison, no timer would fire in time after that to report
    that the leases have expired.
    """

    def __init__(self, clock: Clock, random: Random) -> None:
        self._clock = clock
        self._phase = random.fraction()
        self._heap: list[Entry] = []
        self._stale = 0
        self._order = 0
        self._timer: Optional[asyncio.TimerHandle] = None
        self._timer_at_ms = math.inf
        self._wall_offset_ms = 0.0

    def round(self, at_ms: float, step_ms: float) -> float:
        """Rounds a time down to a grid. Tasks that may run a little early use it, so that similar tasks run at the same
        time and their requests go to the store in one list."""
        phase_ms = self._phase * step_ms
        return math.floor((at_ms - phase_ms) / step_ms) * step_ms + phase_ms

    def set(self, task: Scheduled, at_ms: float) -> None:
        """Runs the task at `at_ms` on the monotonic clock. Replaces the time that was set before."""
        known = task.schedule
        if known is not None:
            if known[0] == at_ms:
                return
            known[2] = None
            self._stale += 1
        elif len(self._heap) == self._stale:
            self._wall_offset_ms = self._read_wall_offset()
        self._order += 1
        entry: Entry = [at_ms, self._order, task]
        task.schedule = entry
        heapq.heappush(self._heap, entry)
        if at_ms < self._timer_at_ms:
            self._arm()

    def clear(self, task: Scheduled) -> None:
        entry = task.schedule
        if entry is None:
            return
        task.schedule = None
        entry[2] = None
        self._stale += 1
        # Most leases are released long before they are due, so their entries would pile up.
        if self._stale > 64 and self._stale * 2 > len(self._heap):
            self._heap = [each for each in self._heap if each[2] is not None]
            heapq.heapify(self._heap)
            self._stale = 0

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._timer_at_ms = math.inf

    def _tick(self) -> None:
        self._timer = None
        self._timer_at_ms = math.inf
        offset_ms = self._read_wall_offset()
        jumped = offset_ms - self._wall_offset_ms > _WALL_JUMP_MS
        self._wall_offset_ms = offset_ms
        now_ms = self._clock.monotonic() * 1_000
        # All due tasks are collected before any runs, so that a task that is due again at once cannot block this loop.
        if jumped:
            due = [each[2] for each in sorted(self._heap) if each[2] is not None]
        else:
            due = []
            heap = self._heap
            while heap and (heap[0][2] is None or heap[0][0] <= now_ms):
                entry = heapq.heappop(heap)
                if entry[2] is None:
                    self._stale -= 1
                    continue
                # The task stays scheduled, so that `clear` by another task of this list is noticed below.
                entry[0] = math.inf
                heapq.heappush(heap, entry)
                due.append(entry[2])
        for task in due:
            if task.schedule is not None:
                task.due()
        self._arm()

    def _arm(self) -> None:
        heap = self._heap
        while heap and heap[0][2] is None:
            heapq.heappop(heap)
            self._stale -= 1
        if not heap:
            return
        now_ms = self._clock.monotonic() * 1_000
        at_ms = min(heap[0][0], now_ms + MAX_SLEEP_MS)
        if at_ms >= self._timer_at_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ms = at_ms
        self._timer = self._clock.call_later(at_ms - now_ms, self._tick)

    def _read_wall_offset(self) -> float:
        now = self._clock.now()
        return now.wall_ms - now.monotonic_ms


_WALL_JUMP_MS = 5
"""More than NTP slews the clock between two ticks."""
