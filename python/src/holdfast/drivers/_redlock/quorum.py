"""Asks all nodes at once, and decides as soon as a quorum allows it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Awaitable, Callable, Generic, Optional, Sequence, TypeVar, Union

from ...errors import HoldfastError, StoreError
from .._redis.failures import store_error

N = TypeVar("N")
A = TypeVar("A")
O = TypeVar("O")


@dataclass(frozen=True)
class NodeError:
    """A node that failed or did not answer in time."""

    node: str
    """Its place in the list, counted from 1, as errors name it: `node 3`."""
    error: Exception


@dataclass
class Votes(Generic[A]):
    """The answers of the nodes so far to one entry of a list."""

    pending: int
    """How many nodes have neither answered nor failed."""
    answers: list[A] = field(default_factory=list)
    errors: list[NodeError] = field(default_factory=list)


@dataclass(frozen=True)
class Ask(Generic[N, A, O]):
    """A question to all nodes, with several entries."""

    entries: int
    call: Callable[[N], Awaitable[Sequence[Union[A, Exception]]]]
    decide: Callable[[Votes[A], int], Optional[O]]
    """None while the entry is undecided. It must decide when no node is pending."""
    late: Optional[Callable[[N, int, A], None]] = None
    """Called with each answer that arrived after its entry was decided, because it may have to be undone."""
    settled: Optional[Callable[[N, Sequence[Union[A, Exception]]], None]] = None
    """Called with the answers of each node when they have been counted, also after its timeout."""


@dataclass(frozen=True)
class Nodes(Generic[N]):
    all: Sequence[N]
    timeout_seconds: float
    """The time of each node. A later answer counts as an error, and is still passed to `late`."""
    failed: Callable[[NodeError], None]
    """Called once for each node that failed or timed out, also if the others were enough."""
    tasks: set[asyncio.Future[Any]] = field(default_factory=set)
    """What goes on in the background. Without this, the event loop might forget it."""

    def name_of(self, node: N) -> str:
        return f"node {self.all.index(node) + 1}"

    def in_background(self, node: N, what: str, place: str, work: Awaitable[Sequence[Any]]) -> None:
        """For work that no caller waits for."""

        def done(task: asyncio.Future[Sequence[Any]]) -> None:
            self.tasks.discard(task)
            if task.cancelled():
                return
            error = task.exception() or next((each for each in task.result() if isinstance(each, Exception)), None)
            if isinstance(error, Exception):
                self.failed(NodeError(self.name_of(node), store_error(what, error, place)))

        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(done)

    async def ask(self, ask: Ask[N, A, O]) -> list[O]:
        """Calls every node at once and returns when every entry is decided: it waits for a quorum, never for the
        slowest node. The other calls go on in the background."""
        entries, call, decide, late, settled = ask.entries, ask.call, ask.decide, ask.late, ask.settled
        if entries == 0:
            return []
        loop = asyncio.get_running_loop()
        outcomes: list[Optional[O]] = [None] * entries
        votes: list[Votes[A]] = [Votes(len(self.all)) for _ in range(entries)]
        decided: asyncio.Future[None] = loop.create_future()

        def count(entry: int, name: str, answer: Union[A, Exception]) -> None:
            tally = votes[entry]
            tally.pending -= 1
            if isinstance(answer, Exception):
                tally.errors.append(NodeError(name, answer))
            else:
                tally.answers.append(answer)
            if outcomes[entry] is None:
                outcomes[entry] = decide(tally, entry)
                if not decided.done() and all(outcome is not None for outcome in outcomes):
                    decided.set_result(None)

        def start(node: N) -> None:
            name = self.name_of(node)
            counted = False

            def count_all(answers: Sequence[Union[A, Exception]]) -> None:
                nonlocal counted
                error = next((each for each in answers if isinstance(each, Exception)), None)
                if error is not None and not counted:
                    self.failed(NodeError(name, error))
                for entry, answer in enumerate(answers):
                    was_decided = outcomes[entry] is not None
                    if not counted:
                        count(entry, name, answer)
                    if was_decided and late is not None and not isinstance(answer, Exception):
                        late(node, entry, answer)
                counted = True

            def too_late() -> None:
                error = StoreError(f"no answer within {self.timeout_seconds * 1_000:g} ms")
                count_all([error] * entries)

            def done(task: asyncio.Future[Sequence[Union[A, Exception]]]) -> None:
                timer.cancel()
                self.tasks.discard(task)
                if task.cancelled():
                    failure: Optional[BaseException] = StoreError("the call was cancelled")
                else:
                    failure = task.exception()
                if failure is None:
                    count_all(task.result())
                    if settled is not None:
                        settled(node, task.result())
                elif not counted:
                    wrapped = failure if isinstance(failure, HoldfastError) else store_error("answer", failure)
                    count_all([wrapped] * entries)

            timer = loop.call_later(self.timeout_seconds, too_late)
            task = asyncio.ensure_future(call(node))
            self.tasks.add(task)
            task.add_done_callback(done)

        for node in self.all:
            start(node)
        await decided
        return [outcome for outcome in outcomes if outcome is not None]


def quorum_error(what: str, quorum: int, nodes: int, errors: Sequence[NodeError]) -> StoreError:
    """Names each node that failed, and its error."""
    failures = "; ".join(f"{each.node}: {each.error}" for each in errors)
    # The number of nodes that answered is unknown: the decision was made when too few were left.
    count = f"{len(errors)} of {nodes} nodes failed, {quorum} are needed"
    permanent = [each for each in errors if not (isinstance(each.error, StoreError) and each.error.retryable)]
    # If a quorum can never be reached, for example with a wrong password on most nodes, a retry cannot help.
    error = StoreError(f"redlock could not {what}: {count}; {failures}", retryable=nodes - len(permanent) >= quorum)
    error.__cause__ = errors[0].error if errors else None
    return error
