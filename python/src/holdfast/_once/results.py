"""Where the result of a job is kept: in the metadata of a lease that no process holds.

It has to outlive the process that made it, so it is neither renewed nor released. The store ends it with its TTL.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Optional

from ..core.arguments import check_json, check_text
from ..core.driver import Capabilities, Metadata
from ..core.limits import MAX_NAME_LENGTH
from ..core.secrets import message_of
from ..errors import InvalidArgumentError, ResultNotKeptError, UnsupportedError

MAX_KEY_LENGTH = MAX_NAME_LENGTH - len("once:") - len(":done")


@dataclass(frozen=True)
class OnceNames:
    """The lock names of a key. They have the same beginning and different ends, so no run is the result of another
    key."""

    run: str
    done: str


@dataclass(frozen=True)
class FoundResult:
    """A result that is in the store."""

    metadata: Optional[Metadata]
    asked_ms: float
    """On the monotonic clock: when the store was asked. The result was there at some moment after that."""


def names_of(key: object) -> OnceNames:
    text = check_text("key", key, MAX_KEY_LENGTH)
    return OnceNames(run=f"once:{text}:run", done=f"once:{text}:done")


def assert_keeps_results(driver_name: str, capabilities: Capabilities, longest_ttl_ms: float, for_ms: float) -> None:
    """Checked before the job runs: if its result could not be kept, every instance would run it again."""
    if capabilities.expiry == "session":
        raise UnsupportedError(
            f"the {driver_name} driver's leases last as long as a connection, so a result could not outlive the "
            "process that made it"
        )
    if not capabilities.metadata:
        raise UnsupportedError(f"the {driver_name} driver keeps no metadata with a lock, so it cannot keep results")
    if for_ms > longest_ttl_ms:
        rule = f"at most {longest_ttl_ms / 1_000:g}, the longest that the {driver_name} driver keeps anything"
        raise InvalidArgumentError("for_seconds", for_ms / 1_000, rule)


def metadata_from(result: object) -> Metadata:
    """If the result cannot be kept, the reason is kept instead: the job is done, and must not run again."""
    try:
        return {"result": check_json("result", result)}
    except Exception as error:  # Reading the result may run the caller's code, which may raise anything.
        # The message shows the value, and neither a lone surrogate nor NUL in it could be stored.
        text = message_of(error)[:1_000].replace("\0", "")
        return {"notKept": text.encode("utf-8", "backslashreplace").decode()[:1_000]}


def result_from(key: str, metadata: Optional[Metadata]) -> Any:
    """Raises `ResultNotKeptError`."""
    if metadata is None:
        return None
    if metadata.get("notKept") is not None:
        raise ResultNotKeptError(key, str(metadata["notKept"]))
    # A copy for each caller, so that none sees what another does to its result.
    return copy.deepcopy(metadata.get("result"))
