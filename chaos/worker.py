"""One client process in Python: several tasks that contend for a few lock names. The same as worker.ts.

clients.ts starts it, and calls its functions over Node's own protocol between processes: JSON in lines, on the socket
NODE_CHANNEL_FD. It writes everything that happens to the history at once, in the format of history.ts.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any, Awaitable, Callable, Optional

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python" / "src"))

from holdfast import DistributedLock, HoldfastError, Lease  # noqa: E402

LOOK_EVERY_SECONDS = 0.01
EXPECTED_CODES = ("STORE_UNAVAILABLE",)


def now_ms() -> float:
    """The same clock as `nowMs` in history.ts."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC) / 1_000_000


class HistoryWriter:
    """Each line is one write, so that it survives a SIGKILL. The last check of a lease overwrites its task's place."""

    def __init__(self, file: str) -> None:
        self._lines = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self._pulses = os.open(f"{file}.pulse", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self._leases = 0

    def write(self, *line: Any) -> None:
        os.write(self._lines, (json.dumps(line) + "\n").encode())

    def grant(self, lease: dict[str, Any]) -> int:
        self._leases += 1
        self.write("grant", self._leases, lease)
        return self._leases

    def held(self, task: int, lease: int, at_ms: float) -> None:
        os.pwrite(self._pulses, struct.pack("<dd", lease, at_ms), task * 16)

    def error(self, where: str, error: BaseException) -> None:
        code = getattr(error, "code", None)
        text = f"{where}: {type(error).__name__}: {error}"
        if isinstance(error, HoldfastError) and code in EXPECTED_CODES:
            self.write("error", where, code)
        else:
            self.write("error", where, code if isinstance(code, str) else "none", text)


class Look:
    """A lease that is checked while it is held."""

    def __init__(self, history: HistoryWriter, task: int, lease: Lease, grant: dict[str, Any]) -> None:
        self.lease = lease
        self._history = history
        self._task = task
        self._held_until: Optional[float] = grant.get("heldUntil")
        self._number = history.grant(grant)
        self._is_over = False

    def look(self) -> bool:
        # The clock is read first: a process that is paused in between must not count as a holder afterwards.
        at_ms = now_ms()
        if not self.lease.held:
            self._is_over = True
            return False
        if self._is_over or self.lease.lost.is_set():
            self._history.write("resurrected", self._number)
        self._held_until = at_ms
        self._history.held(self._task, self._number, at_ms)
        return True

    def end(self, how: str) -> None:
        self._history.write("end", self._number, how, self._held_until)


class Record:
    """A client of record.ts."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._lock = asyncio.Lock()
        self._streams: Optional[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = None

    async def increment(self, name: str, token: int, pause_seconds: float) -> None:
        answer = await self._ask("read", name, token)
        if "value" not in answer:
            return
        await asyncio.sleep(pause_seconds)
        await self._ask("write", name, token, answer["value"], answer["value"] + 1)

    async def _ask(self, *request: Any) -> dict[str, Any]:
        async with self._lock:
            if self._streams is None:
                self._streams = await asyncio.open_connection("127.0.0.1", self._port)
            reader, writer = self._streams
            writer.write((json.dumps(request) + "\n").encode())
            answer: dict[str, Any] = json.loads(await reader.readline())
            return answer


class Client:
    def __init__(self) -> None:
        self._looks: set[Look] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._stop = asyncio.Event()
        self._queued: dict[str, asyncio.Task[int]] = {}

    async def start(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._history = HistoryWriter(settings["file"])
        port = settings.get("recordPort")
        self._record = None if port is None else Record(port)
        self._lock = DistributedLock(
            await open_store(settings),
            call_timeout_seconds=settings["callTimeoutSeconds"],
            waiter_ttl_seconds=settings["waiterTtlSeconds"],
        )
        self._looking = asyncio.create_task(self._look_at_all())
        self._tasks = [asyncio.create_task(self._run(task)) for task in range(settings["tasks"])]

    async def quiet(self) -> None:
        self._stop.set()
        await asyncio.gather(*self._tasks)

    async def queue(self, name: str) -> None:
        async def wait() -> int:
            lease = await self._lock.hold(name, blocking_timeout_seconds=60)
            await lease.release()
            return lease.fencing_token

        self._queued[name] = asyncio.create_task(wait())

    async def queuedToken(self, name: str) -> int:  # noqa: N802: the harness calls it so
        return await self._queued[name]

    async def stop(self) -> None:
        await self.quiet()
        self._looking.cancel()
        try:
            await self._lock.close()
        except HoldfastError as error:
            self._history.error("close", error)

    async def block(self, for_ms: float) -> None:
        time.sleep(for_ms / 1_000)

    async def _look_at_all(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_SECONDS)
            for each in list(self._looks):
                each.look()

    async def _run(self, task: int) -> None:
        draw = random.Random(f"{self._settings['seed']}/{task}")
        while not self._stop.is_set():
            try:
                await self._once(task, draw)
            except Exception as error:  # A task that ended would make the run prove less, unnoticed.
                self._history.error("task", error)
            await self._pause(draw.uniform(0.001, 0.08))

    async def _once(self, task: int, draw: random.Random) -> None:
        settings, history = self._settings, self._history
        name = draw.choice(settings["names"])
        ttl_seconds = draw.uniform(settings["ttlSeconds"]["least"], settings["ttlSeconds"]["most"])
        waits = draw.random() < 0.7
        heartbeat = draw.random() < 0.7
        is_left = not heartbeat and draw.random() < 0.05
        is_extended = draw.random() < 0.15
        gives_up_after = draw.uniform(0.005, 2) if waits and draw.random() < 0.1 else None
        hold_seconds = draw.uniform(0.002, draw.choices([0.1, 1, ttl_seconds * 1.3], [24, 8, 1])[0])
        wait_seconds = draw.uniform(1, 12) if waits else None

        history.write("claim")
        asked_at = now_ms()
        acquiring = asyncio.ensure_future(
            self._lock.acquire(
                name, timeout_seconds=ttl_seconds, heartbeat=heartbeat, blocking_timeout_seconds=wait_seconds
            )
        )
        stopping = asyncio.ensure_future(self._stop.wait())
        try:
            done, _ = await asyncio.wait(
                {acquiring, stopping}, timeout=gives_up_after, return_when=asyncio.FIRST_COMPLETED
            )
            if acquiring not in done:
                acquiring.cancel()
            result = await acquiring
        except asyncio.CancelledError:
            history.write("error", "acquire", "ABORTED")
            return
        except HoldfastError as error:
            history.error("acquire", error)
            return
        finally:
            stopping.cancel()
        if not result:
            history.write("refused")
            return
        lease = result.lease
        known_at = now_ms()
        grant = {
            "name": name,
            "token": lease.fencing_token,
            "ttlMs": ttl_seconds * 1_000,
            "askedAt": asked_at,
            "knownAt": known_at,
        }
        if lease.held:
            grant["heldUntil"] = known_at
        look = Look(history, task, lease, grant)
        self._looks.add(look)
        try:
            if self._record is not None:
                # Also if the lease is lost meanwhile: the record has to refuse such a write by its token.
                slowly = draw.random() < 0.1
                await self._record.increment(name, lease.fencing_token, draw.uniform(0, 1 if slowly else 0.01))
            first = draw.uniform(0, min(hold_seconds, 0.5)) if is_extended else hold_seconds
            await self._pause(60 if is_left else first, lease)
            if is_extended and lease.held and not self._stop.is_set():
                try:
                    await lease.extend(ttl_seconds)
                except HoldfastError as error:
                    history.error("extend", error)
                await self._pause(hold_seconds - first, lease)
            if look.look():
                look.end("released")
                try:
                    await lease.release()
                except HoldfastError as error:
                    history.error("release", error)
            else:
                look.end("lost")
        finally:
            self._looks.discard(look)

    async def _pause(self, seconds: float, lease: Optional[Lease] = None) -> None:
        """Ends early if the client is stopped or the lease is lost."""
        deadline = time.monotonic() + seconds
        while not self._stop.is_set() and (lease is None or not lease.lost.is_set()):
            left = deadline - time.monotonic()
            if left <= 0:
                return
            await asyncio.sleep(min(left, 0.02))


async def open_store(settings: dict[str, Any]) -> Any:
    driver, through, ports = settings["driver"], settings["through"], settings["ports"]
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    if driver == "sqlite":
        return f"sqlite:{settings['path']}"
    if driver == "redlock":
        return f"redlock://{hosts}?longestTtlSeconds={settings['ttlSeconds']['most']}"
    if driver == "redis":
        if through == "url":
            return f"redis://{hosts}"
        if through == "redis":
            import redis

            return redis.Redis(port=ports[0], socket_timeout=5)
        import redis.asyncio

        return redis.asyncio.Redis(port=ports[0], socket_timeout=5)
    url = f"postgres://postgres@{hosts}/postgres"
    if through == "asyncpg":
        import asyncpg

        return await asyncpg.create_pool(url, min_size=1, max_size=3)
    if through == "psycopg":
        # A URL prefers asyncpg, and Debian has no pool for psycopg.
        from holdfast.drivers._postgres.psycopg_client import open_psycopg
        from holdfast.drivers._postgres.url import postgres_url
        from holdfast.drivers.postgres import PostgresDriver

        target, options = postgres_url(url)
        return PostgresDriver(open_psycopg(target), options.schema, options.durability, options.migrate)
    return url


async def serve() -> None:
    channel = socket.socket(fileno=int(os.environ["NODE_CHANNEL_FD"]))
    channel.setblocking(False)
    reader, writer = await asyncio.open_unix_connection(sock=channel)
    client = Client()

    async def answer(call: dict[str, Any]) -> None:
        reply: dict[str, Any] = {"id": call["id"]}
        try:
            if call["name"] != "holdfast:ready":
                function: Callable[..., Awaitable[Any]] = getattr(client, call["name"])
                reply["result"] = await function(*call["args"])
        except Exception as error:
            reply["error"] = {"name": type(error).__name__, "message": f"{error!r}"}
        writer.write((json.dumps(reply) + "\n").encode())

    answers = set()
    while line := await reader.readline():
        message = json.loads(line)
        if "id" not in message:
            continue
        task = asyncio.create_task(answer(message))
        answers.add(task)
        task.add_done_callback(answers.discard)
    # The harness has ended. Leases that are still held expire, as after any crash.
    os._exit(0)


asyncio.run(serve())
