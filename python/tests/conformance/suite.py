"""Groups of cases, and how the cases of one store are run."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Awaitable, Callable, Dict, List, Optional, Sequence, Union

from .context import Context, open_context
from .gate import Gate
from .needs import unmet_reason
from .stores import Store, StoreKind

Body = Callable[[Context], Awaitable[None]]


@dataclass(frozen=True, eq=False)
class Case:
    group: str
    title: str
    needs: Sequence[str]
    body: Body
    own_store: bool = False
    """Opens a store that no other case uses."""

    def __str__(self) -> str:
        return f"{self.group}: {self.title}"


@dataclass
class Group:
    """A group of cases. Every case in it has the group's `needs`, too."""

    title: str
    needs: Sequence[str] = ()
    own_store: bool = False
    cases: List[Case] = field(default_factory=list)

    def case(self, title: str, needs: Sequence[str] = ()) -> Callable[[Body], Body]:
        """Registers the decorated function. The case is skipped if the driver does not meet all needs."""

        def register(body: Body) -> Body:
            self.cases.append(Case(self.title, title, (*self.needs, *needs), body, self.own_store))
            return body

        return register


@dataclass(frozen=True)
class Skipped:
    reason: str


Outcome = Union[None, Skipped, BaseException]
"""None: passed."""

CASE_SECONDS = 120
"""Longer than any case waits for anything. A case that takes longer hangs."""


def run_cases(kind: StoreKind, cases: Sequence[Case]) -> Dict[Case, Outcome]:
    """Opens the store and runs the cases at the same time, because most of them only wait."""
    try:
        return asyncio.run(_run_cases(kind, cases))
    except Exception as error:
        # A store that cannot be opened is not tried again for each of its cases.
        return {case: error for case in cases}


async def _run_cases(kind: StoreKind, cases: Sequence[Case]) -> Dict[Case, Outcome]:
    gate = Gate(kind.at_a_time)
    outcomes: Dict[Case, Outcome] = {}
    async with kind.open() as store:
        async with open_context(store) as probe:
            capabilities = (await probe.driver()).capabilities

        async def run(case: Case) -> None:
            outcomes[case] = await _outcome_of(case, kind, store)
            gate.leave()

        running = []
        async with gate.watching():
            for case in cases:
                reason = unmet_reason(capabilities, case.needs)
                if reason is None:
                    await gate.enter()
                    running.append(asyncio.create_task(run(case)))
                else:
                    outcomes[case] = Skipped(reason)
            await asyncio.gather(*running)
    return outcomes


async def _outcome_of(case: Case, kind: StoreKind, store: Store) -> Optional[BaseException]:
    async def run() -> None:
        async with AsyncExitStack() as cleanup:
            own = await cleanup.enter_async_context(kind.open()) if case.own_store else store
            await case.body(await cleanup.enter_async_context(open_context(own)))

    # In a task of its own, whose outcome is read instead of awaited: a case that fails with `CancelledError` fails
    # alone.
    task = asyncio.create_task(run(), name=str(case))
    done, _ = await asyncio.wait([task], timeout=CASE_SECONDS)
    if not done:
        task.cancel()
        await asyncio.wait([task], timeout=5)
        return TimeoutError(f"the case did not end within {CASE_SECONDS} s")
    if task.cancelled():
        return AssertionError("the case was cancelled from within: a CancelledError escaped from it")
    return task.exception()
