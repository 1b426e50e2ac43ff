"""Our errors in other processes: a pool that cannot unpickle the error of a job never returns it."""

from __future__ import annotations

import concurrent.futures
import copy
import datetime
import inspect
import multiprocessing
import pickle
import threading
from typing import Any, Callable, Dict, Type

import pytest

from holdfast import LockInfo, SyncDistributedLock, errors
from holdfast.drivers._postgres.connections import NotSentError
from holdfast.drivers._sqlite.files import MovedError
from holdfast.errors import HoldfastError

AT = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
HOLDER = LockInfo("job", "host:1", AT, AT, 7, {"why": ["tests"]})


def _with_cause() -> HoldfastError:
    try:
        raise errors.StoreError("it is down", retryable=False) from OSError("no route")
    except HoldfastError as error:
        return error


EXAMPLES: Dict[Type[HoldfastError], Callable[[], HoldfastError]] = {
    errors.ClosedError: lambda: errors.ClosedError("it is closed"),
    errors.DeadlockError: lambda: errors.DeadlockError("it would wait for itself", "job"),
    errors.InvalidArgumentError: lambda: errors.InvalidArgumentError("seconds", -1, "a number from 0"),
    errors.LeaseLostError: lambda: errors.LeaseLostError("job", 7, "it expired"),
    errors.MissingClientError: lambda: errors.MissingClientError("the redis driver", ["redis"]),
    errors.NotAcquiredError: lambda: errors.NotAcquiredError("job", "it is held", HOLDER),
    errors.NotHeldError: lambda: errors.NotHeldError("job"),
    errors.OverloadError: lambda: errors.OverloadError("too many"),
    errors.RateLimitedError: lambda: errors.RateLimitedError("user:7", 1.5),
    errors.ResultNotKeptError: lambda: errors.ResultNotKeptError("job", "it is too large"),
    errors.StaleTokenError: lambda: errors.StaleTokenError("account", 6, 7),
    errors.StoreError: _with_cause,
    errors.UnsupportedError: lambda: errors.UnsupportedError("there are no limits"),
}
EVERY = [*EXAMPLES.values(), lambda: NotSentError("busy"), lambda: MovedError("/tmp/locks.db")]


def test_each_class_of_errors_has_an_example() -> None:
    classes = {each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, HoldfastError)}
    assert classes - {HoldfastError} == set(EXAMPLES)


def seen(error: HoldfastError) -> Any:
    return type(error), error.code, str(error), error.args, vars(error)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("make", EVERY)
def test_failure_83_an_error_survives_pickle_and_copy_with_all_that_it_says(
    make: Callable[[], HoldfastError], protocol: int
) -> None:
    error = make()
    assert seen(pickle.loads(pickle.dumps(error, protocol))) == seen(error)
    assert seen(copy.copy(error)) == seen(error)
    assert seen(copy.deepcopy(error)) == seen(error)


def test_failure_83_what_cannot_be_sent_is_described() -> None:
    """The value is the caller's, and may be of a class that the other process does not know."""

    class Local:
        pass

    for value in (threading.Lock(), Local(), lambda: 1, iter([])):
        error = errors.InvalidArgumentError("metadata", value, "a dict")
        other = pickle.loads(pickle.dumps(error))
        assert str(other) == str(error) and other.argument == "metadata"
        assert other.value == f"an object ({type(value).__name__})"
    error = errors.NotAcquiredError("job", "held")
    error.seen_by = threading.Lock()  # type: ignore[attr-defined]
    assert pickle.loads(pickle.dumps(error)).lock_name == "job"


def test_failure_83_a_subclass_of_the_application_survives_too() -> None:
    error = Refined("job", 7)
    other = pickle.loads(pickle.dumps(error))
    assert type(other) is Refined and seen(other) == seen(error)


class Refined(errors.StoreError):
    def __init__(self, job: str, tries: int) -> None:
        super().__init__(f"{job} failed {tries} times")
        self.job = job


def take(url: str) -> bool:
    with SyncDistributedLock(url) as lock, lock.lock("job"):
        return True


@pytest.mark.timeout(50)
@pytest.mark.parametrize("kind", ["spawn", "futures"])
def test_failure_83_a_refused_lock_is_an_error_of_its_job_and_ends_no_pool(kind: str, sqlite_url: str) -> None:
    context = multiprocessing.get_context("spawn")
    with SyncDistributedLock(sqlite_url) as lock, lock.lock("job"):
        if kind == "spawn":
            with context.Pool(1) as pool:
                with pytest.raises(errors.NotAcquiredError) as refused:
                    pool.apply_async(take, (sqlite_url,)).get(30)
        else:
            with concurrent.futures.ProcessPoolExecutor(1, context) as executor:
                with pytest.raises(errors.NotAcquiredError) as refused:
                    executor.submit(take, sqlite_url).result(30)
        assert refused.value.lock_name == "job" and refused.value.holder is not None
        assert refused.value.holder.holder_id == lock.holder_id
