"""Settings and states of a server that endanger locks."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import warnings
from dataclasses import dataclass
from typing import Any, Callable, Literal, Optional, Sequence

from ...core.tasks import ignore_outcome, start_task
from .failures import closed_error, is_forbidden_command
from .link import Link, Node
from .records import text_of


log = logging.getLogger("holdfast")


@dataclass(frozen=True)
class RedisWarning:
    """A setting or a state of a server that endangers locks. `message` says what it is and what to do."""

    code: Literal["REPLICA", "TOO_OLD", "EVICTION", "REDLOCK_REPLICAS"]
    message: str


@dataclass(frozen=True)
class ServerFacts:
    version: tuple[int, int]
    role: str
    eviction_policy: str
    max_memory: int


async def server_facts(node: Node) -> Optional[ServerFacts]:
    """None if the server does not tell: the user may not run INFO."""
    (reply,) = await node.exchange("read INFO", [("INFO",)])
    if isinstance(reply, Exception):
        if is_forbidden_command(reply):
            return None
        raise reply
    info = text_of(reply)
    if info_field(info, "redis_version") == "":
        return None  # A proxy that hides it.
    # Valkey reports 7.2.4 here, the version that it is compatible with, and not its own.
    major, minor = (re.findall(r"\d+", info_field(info, "redis_version")) + ["0", "0"])[:2]
    max_memory = info_field(info, "maxmemory")
    return ServerFacts(
        version=(int(major), int(minor)),
        role=info_field(info, "role"),
        eviction_policy=info_field(info, "maxmemory_policy"),
        max_memory=int(max_memory) if max_memory.isdigit() else 0,
    )


def info_field(info: str, name: str) -> str:
    match = re.search(rf"^{name}:(.*)$", info, re.MULTILINE)
    return match[1].strip() if match else ""


def warnings_of(facts: ServerFacts) -> list[RedisWarning]:
    found = []
    if facts.role == "slave":
        message = "this Redis is a read-only replica and cannot grant locks. Connect to the master, or through Sentinel"
        found.append(RedisWarning("REPLICA", message))
    if facts.version < (6, 2):
        version = ".".join(map(str, facts.version))
        found.append(RedisWarning("TOO_OLD", f"this Redis is {version}: locks need 6.2 or later"))
    if facts.eviction_policy not in ("", "noeviction"):
        when = "when its memory is full" if facts.max_memory > 0 else "as soon as maxmemory is set"
        message = (
            f"this Redis may evict locks {when} (maxmemory-policy {facts.eviction_policy}). An evicted lock is granted "
            "again while it is held. Set maxmemory-policy noeviction, or use a separate server for locks"
        )
        found.append(RedisWarning("EVICTION", message))
    return found


def warn(warning: RedisWarning) -> None:
    """If the caller gave no listener."""
    warnings.warn(f"holdfast: {warning.message}", RuntimeWarning, stacklevel=2)


def harmless(listener: Callable[[RedisWarning], None]) -> Callable[[RedisWarning], None]:
    """A listener that raises, or `python -W error`, must not end what reports a warning: claims wait for it."""

    def report(warning: RedisWarning) -> None:
        try:
            listener(warning)
        except Exception:
            log.warning("a listener for warnings failed. The warning is: %s", warning.message, exc_info=True)

    return report


class ServerChecks:
    """Reads INFO of the servers once. A server that did not answer is asked again, but only after a second. Without
    the right to INFO it does not try again, because every acquire would then send a command that is refused."""

    def __init__(self, link: Link, on_warning: Callable[[RedisWarning], None]) -> None:
        self._link = link
        self._on_warning = on_warning
        self._reported: set[str] = set()
        self._asking: Optional[asyncio.Task[Sequence[ServerFacts]]] = None
        # What the servers have said that have answered.
        self._known: list[ServerFacts] = []
        # Done when the first server has answered.
        self._early: asyncio.Future[None]
        self._complete = False
        self._stopped = False
        self._again_at = 0.0

    def start(self) -> None:
        """Runs in the background with the first calls. It only finds warnings, so no call waits for it."""
        if not self._complete:
            self._ask()

    async def sharded(self) -> bool:
        """Whether the servers of a Cluster publish by slot. Servers of unknown version count as older than 7: messages
        that go through every node work on any version. A server that hangs is not waited for: claims on the others must
        not wait for it, and a Cluster has one version, or two while it is upgraded."""
        asking = self._ask()
        try:
            if not self._known:
                either: set[asyncio.Future[Any]] = {asking, self._early}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.wait({asking}, timeout=_OTHERS_SECONDS)
            facts: Sequence[ServerFacts] = self._known
            if not facts and asking.done():
                facts = await asyncio.shield(asking)
        except asyncio.CancelledError:
            # Closing has cancelled the question, not this call. The core would take it for the end of its own task.
            if self._stopped:
                raise closed_error() from None
            raise
        return len(facts) > 0 and all(each.version >= (7, 0) for each in facts)

    def stop(self) -> None:
        self._stopped = True
        if self._asking is not None:
            self._asking.cancel()

    def _ask(self) -> asyncio.Task[Sequence[ServerFacts]]:
        asking = self._asking
        loop = asyncio.get_running_loop()
        has_failed = asking is not None and asking.done() and not self._complete
        if asking is None or asking.get_loop() is not loop or (has_failed and time.monotonic() >= self._again_at):
            self._early = loop.create_future()
            asking = self._asking = start_task(self._ask_all(self._early))
            asking.add_done_callback(ignore_outcome)
        return asking

    async def _ask_all(self, early: asyncio.Future[None]) -> Sequence[ServerFacts]:
        async def ask(node: Node) -> Optional[ServerFacts]:
            facts = await server_facts(node)
            if facts is not None:
                self._known.append(facts)
            if not early.done():
                early.set_result(None)
            return facts

        self._again_at = float("inf")
        try:
            nodes = await self._link.nodes()
            answers = await asyncio.gather(*(ask(node) for node in nodes), return_exceptions=True)
        except Exception:
            self._again_at = time.monotonic() + _ASK_AGAIN_SECONDS
            raise
        facts = [each for each in answers if isinstance(each, ServerFacts)]
        self._known = facts
        for warning in [each for fact in facts for each in warnings_of(fact)]:
            if warning.message not in self._reported:
                self._reported.add(warning.message)
                self._on_warning(warning)
        failures = [each for each in answers if isinstance(each, Exception)]
        if not failures:
            self._complete = True
        else:
            self._again_at = time.monotonic() + _ASK_AGAIN_SECONDS
            if not facts:
                raise failures[0]
        return facts


_ASK_AGAIN_SECONDS = 1.0
# How much longer than the first server the others may take.
_OTHERS_SECONDS = 0.25
