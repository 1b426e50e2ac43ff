"""Collects the requests that are made in one turn of the event loop and sends them as one list."""

from __future__ import annotations

import asyncio
import logging
from typing import Awaitable, Callable, Generic, Optional, Protocol, Sequence, TypeVar, Union

from ..errors import HoldfastError, StoreError
from .calls import Calls
from .clock import Clock, Instant
from .limits import MAX_LIST
from .store_answers import printed

log = logging.getLogger("holdfast")

Request = TypeVar("Request")
Answer = TypeVar("Answer")
AnswerIn = TypeVar("AnswerIn", contravariant=True)


class Receiver(Protocol[AnswerIn]):
    """The sender of a request. It is called back, because a future for every request costs more than its path."""

    def answered(self, answer: AnswerIn, sent: Instant, now: Instant) -> None:
        """`sent`: when the list left. `now`: when its answer came. All requests of a list get the same objects."""

    def failed(self, error: HoldfastError, sent: Instant) -> None:
        """The outcome is unknown."""

    def late(self, answer: AnswerIn) -> None:
        """The answer to a request that has failed before because it was late."""


class Batch(Generic[Request, Answer]):
    def __init__(
        self,
        what: str,
        calls: Calls,
        clock: Clock,
        send: Callable[[Sequence[Request]], Awaitable[Sequence[Union[Answer, Exception]]]],
        is_answer: Callable[[object], bool],
        inseparable: Optional[Callable[[Request, Request], bool]] = None,
        after: Optional[Callable[[Sequence[Request]], None]] = None,
    ) -> None:
        """`inseparable`: whether two adjacent requests must stay in one list. `after`: called after each answer."""
        self._what = what
        self._calls = calls
        self._clock = clock
        self._send = send
        self._is_answer = is_answer
        self._inseparable = inseparable
        self._after = after
        self._requests: list[Request] = []
        self._receivers: list[Receiver[Answer]] = []
        self._unsent = False
        """Whether a task will send the requests."""

    def add(self, request: Request, receiver: Receiver[Answer]) -> None:
        # The task begins in the next turn of the event loop, when all requests of this turn have been added.
        if not self._requests:
            self._start()
        self._requests.append(request)
        self._receivers.append(receiver)

    def ask(self, request: Request) -> asyncio.Future[Answer]:
        future: asyncio.Future[Answer] = self._calls.loop.create_future()
        self.add(request, FutureReceiver(future))
        return future

    def _start(self) -> None:
        self._unsent = True
        self._calls.start(self._flush(), self._cancelled)

    def _cancelled(self) -> None:
        if self._unsent:
            self._start()

    async def _flush(self) -> None:
        self._unsent = False
        requests, receivers = self._requests, self._receivers
        self._requests, self._receivers = [], []
        cut = self._cut(requests)
        if cut < len(requests):
            self._requests, self._receivers = requests[cut:], receivers[cut:]
            self._start()
            requests, receivers = requests[:cut], receivers[:cut]
        if requests:
            await self._call(requests, receivers, self._clock.now())

    def _cut(self, requests: Sequence[Request]) -> int:
        """Where the list ends. A group that does not fit begins the next list."""
        if MAX_LIST >= len(requests):
            return len(requests)
        inseparable = self._inseparable
        cut = MAX_LIST
        if inseparable is not None:
            while cut > 0 and inseparable(requests[cut - 1], requests[cut]):
                cut -= 1
        return cut or MAX_LIST

    async def _call(self, requests: list[Request], receivers: list[Receiver[Answer]], sent: Instant) -> None:
        """Runs in a task of its own. It answers its receivers, so it must not raise except when it is cancelled."""
        calls = self._calls

        def fail(error: HoldfastError) -> None:
            for index, receiver in enumerate(receivers):
                try:
                    receiver.failed(error if index == 0 else _another(error), sent)
                except Exception:
                    log.exception("a request to the %s store could not be failed", calls.driver.name)

        if calls.failed_with is not None:
            fail(calls.failed_with)
            return
        call = calls.begin(self._what, sent.monotonic_ms, fail)
        try:
            answers = self._checked(len(requests), await self._send(requests))
        except BaseException as error:
            if calls.loop.is_closed():
                # It is collected after its event loop. No receiver is left, and nothing can be repeated.
                if isinstance(error, Exception):
                    return
                raise
            if calls.end(call):
                fail(calls.as_error(self._what, error))
            if isinstance(error, Exception):
                return
            raise
        in_time = calls.end(call)
        now = self._clock.now()
        for receiver, answer in zip(receivers, answers):
            # A mistake in one of them must not keep the others waiting for ever.
            try:
                if not in_time:
                    if not isinstance(answer, HoldfastError):
                        receiver.late(answer)
                elif isinstance(answer, HoldfastError):
                    receiver.failed(answer, sent)
                else:
                    receiver.answered(answer, sent, now)
            except Exception:
                log.exception("an answer of the %s store could not be delivered", calls.driver.name)
        if self._after is not None:
            self._after(requests)

    def _checked(self, count: int, answers: Sequence[Union[Answer, Exception]]) -> list[Union[Answer, HoldfastError]]:
        """An entry that is not a valid answer becomes an error: it must be read neither as success nor as failure."""
        name = self._calls.driver.name
        if not isinstance(answers, (list, tuple)) or len(answers) != count:
            returned = f"{len(answers)} answers" if isinstance(answers, (list, tuple)) else "no list"
            raise StoreError(f"the {name} driver returned {returned} to {count} {self._what} requests")
        checked: list[Union[Answer, HoldfastError]] = []
        for answer in answers:
            if isinstance(answer, Exception):
                checked.append(self._calls.as_error(self._what, answer))
            elif self._is_valid(answer):
                checked.append(answer)
            else:
                shown = printed(answer)
                checked.append(StoreError(f"the {name} driver returned an invalid answer to {self._what}: {shown}"))
        return checked

    def _is_valid(self, answer: Answer) -> bool:
        try:
            return self._is_answer(answer)
        except Exception:  # A number that no float can hold, for example.
            return False


def _another(error: HoldfastError) -> HoldfastError:
    """An error of its own for each caller: two tasks that raise one object would mix up their tracebacks."""
    if type(error) is not StoreError:
        return error
    copy = StoreError(str(error), retryable=error.retryable)
    copy.__cause__ = error.__cause__
    return copy


class FutureReceiver(Generic[Answer]):
    """Sets a future, unless its owner was cancelled in the meantime."""

    __slots__ = ("_future",)

    def __init__(self, future: asyncio.Future[Answer]) -> None:
        self._future = future

    def answered(self, answer: Answer, sent: Instant, now: Instant) -> None:
        if not self._future.done():
            self._future.set_result(answer)

    def failed(self, error: HoldfastError, sent: Instant) -> None:
        if not self._future.done():
            self._future.set_exception(error)

    def late(self, answer: Answer) -> None:
        pass
