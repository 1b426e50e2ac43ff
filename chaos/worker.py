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
from typing import Any, Awaitable, Callable, Optional, Union

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python" / "src"))

from holdfast import DistributedLock, HoldfastError, Lease  # noqa: E402

LOOK_EVERY_SECONDS = 0.01
# See watch.ts.
STALL_MS = 25
MEMORY_EVERY_MS = 2_000
EXPECTED_CODES = ("STORE_UNAVAILABLE",)


def now_ms() -> float:
    """The same clock as `nowMs` in history.ts."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC) / 1_000_000


class HistoryWriter:
    """Each line is one write, so that it survives a SIGKILL. The last check of a lease overwrites its task's place."""

    def __init__(self, file: str) -> None:
        self._lines = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self._pulses = os.open(f"{file}.pulse", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self._claims = 0
        self._leases = 0

    def write(self, *line: Any) -> None:
        os.write(self._lines, (json.dumps(line) + "\n").encode())

    def claim(self, start: dict[str, Any]) -> int:
        self._claims += 1
        self.write("claim", self._claims, start)
        return self._claims

    def grant(self, lease: dict[str, Any]) -> int:
        self._leases += 1
        self.write("grant", self._leases, lease)
        return self._leases

    def held(self, task: int, lease: int, at_ms: float) -> None:
        os.pwrite(self._pulses, struct.pack("<dd", lease, at_ms), (task + 1) * 16)

    def alive(self, at_ms: float) -> None:
        os.pwrite(self._pulses, struct.pack("<dd", 0, at_ms), 0)

    def error(self, where: str, error: BaseException) -> str:
        """Returns the code of the error."""
        code = getattr(error, "code", None)
        shown = code if isinstance(code, str) else "none"
        text = f"{where}: {type(error).__name__}: {error}"
        if isinstance(error, HoldfastError) and code in EXPECTED_CODES:
            self.write("error", where, shown)
        else:
            self.write("error", where, shown, text)
        return shown


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

    def released(self, result: Union[bool, str]) -> None:
        self._history.write("released", self._number, now_ms(), result)


class Record:
    """A client of record.ts."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._lock = asyncio.Lock()
        self._streams: Optional[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = None

    async def read(self, name: str, token: Optional[int] = None) -> Optional[int]:
        return (await self._ask("read", name, token)).get("value")

    async def write(self, name: str, value: int, is_held: bool, token: Optional[int] = None) -> None:
        await self._ask("write", name, token, value, value + 1, is_held)

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
            try:
                await lease.release()
            except HoldfastError as error:
                # On a busy machine its answer may be late. Then it is sent again in the background.
                self._history.error("release", error)
            return lease.fencing_token

        self._queued[name] = asyncio.create_task(wait())

    async def queuedToken(self, name: str) -> int:  # noqa: N802: the harness calls it so
        return await self._queued[name]

    async def queueState(self, name: str) -> str:  # noqa: N802: the harness calls it so
        """Why `queue` has no place in the queue: how far it has come, and what the store says to this client."""
        task = self._queued[name]
        own = "it still waits"
        if task.done():
            own = f"it failed: {task.exception()}" if task.exception() else f"it was granted {task.result()}"
        try:
            seen = await self._lock.inspect(name)
            said = f"it sees {len(seen.leases)} leases and {len(seen.waiters)} waiters"
        except HoldfastError as error:
            said = f"it cannot inspect: {error}"
        return f"{self._lock.holder_id}; {own}; {said}"

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
        last_ms = now_ms()
        memory_at_ms = last_ms + MEMORY_EVERY_MS
        while True:
            await asyncio.sleep(LOOK_EVERY_SECONDS)
            at_ms = now_ms()
            if at_ms - last_ms > STALL_MS:
                self._history.write("stall", last_ms, at_ms)
            last_ms = at_ms
            self._history.alive(at_ms)
            for each in list(self._looks):
                each.look()
            if at_ms >= memory_at_ms:
                memory_at_ms = at_ms + MEMORY_EVERY_MS
                pages = int(Path("/proc/self/statm").read_text().split()[1])
                self._history.write("memory", {"atMs": at_ms, "rssBytes": pages * os.sysconf("SC_PAGE_SIZE")})

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

        asked_at = now_ms()
        start = {"name": name, "kind": "lock", "ttlMs": ttl_seconds * 1_000, "askedAt": asked_at}
        claim = history.claim({**start, "waitMs": (wait_seconds or 0) * 1_000})
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
                history.write("abort", claim, now_ms())
                acquiring.cancel()
            result = await acquiring
        except asyncio.CancelledError:
            history.write("error", "acquire", "ABORTED")
            history.write("answer", claim, now_ms(), "aborted", "ABORTED")
            return
        except HoldfastError as error:
            code = history.error("acquire", error)
            history.write("answer", claim, now_ms(), "failed", code)
            return
        finally:
            stopping.cancel()
        known_at = now_ms()
        if not result:
            history.write("answer", claim, known_at, "refused")
            return
        lease = result.lease
        history.write("answer", claim, known_at, "granted")
        grant = {**start, "claim": claim, "token": lease.fencing_token, "knownAt": known_at}
        if lease.held:
            grant["heldUntil"] = known_at
        look = Look(history, task, lease, grant)
        self._looks.add(look)
        try:
            if self._record is not None:
                await self._update_records(name, look, draw)
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
                    look.released(await lease.release())
                except HoldfastError as error:
                    look.released(history.error("release", error))
            else:
                look.end("lost")
        finally:
            self._looks.discard(look)

    async def _update_records(self, name: str, look: Look, draw: random.Random) -> None:
        """Writes even if the lease is lost meanwhile: the record that checks tokens has to refuse such a write."""
        assert self._record is not None
        token = look.lease.fencing_token
        guarded = await self._record.read(name, token)
        unguarded = await self._record.read(name)
        await asyncio.sleep(draw.uniform(0, 1 if draw.random() < 0.1 else 0.01))
        is_held = look.look()
        if unguarded is not None:
            await self._record.write(name, unguarded, is_held)
        if guarded is not None:
            await self._record.write(name, guarded, is_held, token)

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
    url = f"postgres://postgres@{hosts}/chaos"
    if through == "asyncpg":
        import asyncpg

        while True:
            try:
                return await asyncpg.create_pool(url, min_size=1, max_size=3, timeout=1)
            except (OSError, asyncio.TimeoutError, asyncpg.PostgresError):
                # The server may be under a fault.
                await asyncio.sleep(0.1)
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
