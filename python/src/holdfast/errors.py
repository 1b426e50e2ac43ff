"""The errors of Holdfast.

Contention is a value: `acquire` returns a result that is false. Everything else that keeps a lock from being held is an
error. Every error is a `HoldfastError` with a literal `code`, the same as in the TypeScript client. No error shows a
password, neither in its message nor in its cause.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Optional, Sequence, Type

if TYPE_CHECKING:
    from .core.lock_info import LockInfo

__all__ = [
    "ClosedError",
    "DeadlockError",
    "DeadlockStep",
    "HoldfastError",
    "InvalidArgumentError",
    "LeaseLostError",
    "MissingClientError",
    "NotAcquiredError",
    "NotHeldError",
    "OverloadError",
    "RateLimitedError",
    "ResultNotKeptError",
    "StaleTokenError",
    "StoreError",
    "UnsupportedError",
]


class HoldfastError(Exception):
    """The base of all errors of Holdfast."""

    code: ClassVar[str]

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle and copy. Without it, Python would call the class with the message alone, which fails: a process
        pool that cannot read the error of a job never returns it."""
        said = {name: _portable(value) for name, value in vars(self).items()}
        return _restored, (type(self), self.args, said)


class InvalidArgumentError(HoldfastError, ValueError):
    """An argument is invalid. Nothing was sent to the store."""

    code: ClassVar[Literal["INVALID_ARGUMENT"]] = "INVALID_ARGUMENT"

    def __init__(self, argument: str, value: object, rule: str, message: Optional[str] = None) -> None:
        super().__init__(message or f"{argument} must be {rule}, but is {_describe(value)}")
        self.argument = argument
        self.value = value
        self.rule = rule


class NotAcquiredError(HoldfastError):
    """Another claim holds the lock. `holder` is who, if the store shows it."""

    code: ClassVar[Literal["NOT_ACQUIRED"]] = "NOT_ACQUIRED"

    def __init__(self, lock_name: str, message: str, holder: Optional[LockInfo] = None) -> None:
        super().__init__(message)
        self.lock_name = lock_name
        self.holder = holder


class LeaseLostError(HoldfastError):
    """The lease ended before its holder released it: expired, force-released, or ended by `release_all` or `close`."""

    code: ClassVar[Literal["LEASE_LOST"]] = "LEASE_LOST"

    def __init__(self, lock_name: str, fencing_token: int, reason: str) -> None:
        super().__init__(f'the lease on "{lock_name}" (fencing token {fencing_token}) was lost: {reason}')
        self.lock_name = lock_name
        self.fencing_token = fencing_token


class NotHeldError(HoldfastError):
    """The lease is no longer held because its own holder has released it, or handed it over."""

    code: ClassVar[Literal["NOT_HELD"]] = "NOT_HELD"

    def __init__(self, lock_name: str, how: str = "released") -> None:
        super().__init__(f'the lease on "{lock_name}" is no longer held: it was {how}')
        self.lock_name = lock_name


class StoreError(HoldfastError):
    """The store could not be reached, failed, or did not answer in time. The outcome of the call is unknown.

    `retryable` is false if trying again cannot help, for example because the login was refused.
    """

    code: ClassVar[Literal["STORE_UNAVAILABLE"]] = "STORE_UNAVAILABLE"

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        super().__init__(message)
        self.retryable = retryable


class ClosedError(HoldfastError):
    """The instance or its driver was closed. Create a new one to go on."""

    code: ClassVar[Literal["CLOSED"]] = "CLOSED"


class DeadlockStep(NamedTuple):
    """One step of a cycle of waiting claims."""

    holder_id: str
    """Who waits."""
    lock_name: str
    """For which lock."""
    held_by: str
    """Who holds that lock, or waits for it before."""


class DeadlockError(HoldfastError):
    """Claims wait for each other, and this one gives up: it came last. Or a claim would wait for itself: the block that
    makes it holds a lease that conflicts with it. Release your locks, as an error that leaves a block does, and try
    again."""

    code: ClassVar[Literal["DEADLOCK"]] = "DEADLOCK"

    def __init__(self, message: str, lock_name: str, cycle: Sequence[DeadlockStep] = ()) -> None:
        super().__init__(message)
        self.lock_name = lock_name
        self.cycle = tuple(cycle)
        """Who waits for which lock, held by whom. It starts with this claim."""


class UnsupportedError(HoldfastError):
    """The driver does not support the operation."""

    code: ClassVar[Literal["UNSUPPORTED"]] = "UNSUPPORTED"


class MissingClientError(HoldfastError, ImportError):
    """The driver needs a client package that is not installed."""

    code: ClassVar[Literal["MISSING_CLIENT"]] = "MISSING_CLIENT"

    def __init__(self, driver: str, packages: Sequence[str]) -> None:
        commands = ", or ".join(f"pip install {each}" for each in packages)
        super().__init__(f"{driver} needs a client that is not installed: {commands}")
        self.packages = tuple(packages)


class OverloadError(HoldfastError):
    """A documented limit was reached, such as the number of pending claims of an instance."""

    code: ClassVar[Literal["OVERLOADED"]] = "OVERLOADED"


class StaleTokenError(HoldfastError):
    """A protected resource refused a write because it has seen a larger fencing token."""

    code: ClassVar[Literal["STALE_TOKEN"]] = "STALE_TOKEN"

    def __init__(self, resource: str, fencing_token: int, largest_token: Optional[int] = None) -> None:
        seen = "a larger one" if largest_token is None else str(largest_token)
        super().__init__(
            f'the write to "{resource}" with fencing token {fencing_token} was refused: {seen} has been seen'
        )
        self.resource = resource
        self.fencing_token = fencing_token
        self.largest_token = largest_token


class RateLimitedError(HoldfastError):
    """The rate limit is exceeded."""

    code: ClassVar[Literal["RATE_LIMITED"]] = "RATE_LIMITED"

    def __init__(self, key: str, retry_after_seconds: float) -> None:
        shown = math.ceil(retry_after_seconds * 1_000) / 1_000
        super().__init__(f'"{key}" is over its rate limit, and can be tried again in {shown:g} s')
        self.key = key
        self.retry_after_seconds = retry_after_seconds


class ResultNotKeptError(HoldfastError):
    """A once-only job has finished, but its result could not be stored because it is not JSON or is too large."""

    code: ClassVar[Literal["RESULT_NOT_KEPT"]] = "RESULT_NOT_KEPT"

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f'the job "{key}" is done, but its result was not kept: {reason}')
        self.key = key


def _restored(made: Type[HoldfastError], args: tuple[Any, ...], said: dict[str, Any]) -> HoldfastError:
    error = made.__new__(made, *args)
    error.args = args
    vars(error).update(said)
    return error


def _portable(value: Any) -> Any:
    """The value, or what the message says of it if another process may be unable to read it: it is the caller's, and
    its class may exist only here."""
    if type(value) in (str, int, float, bool, type(None)) or type(value).__module__.startswith("holdfast."):
        return value
    if type(value) in (list, tuple):
        return type(value)(map(_portable, value))
    return _describe(value)


def _describe(value: Any) -> str:
    if isinstance(value, str):
        value = str.__str__(value)
        if len(value) > 60:
            return f"a string of {len(value)} characters ({json.dumps(value[:40])}…)"
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**30:
        # Python refuses to print the largest ones.
        return f"a whole number of {value.bit_length()} bits"
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    return f"an object ({type(value).__name__})"
