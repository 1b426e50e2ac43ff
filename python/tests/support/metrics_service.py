"""A service that uses locks and shows its metrics, for a real Prometheus: see test/telemetry/monitoring.test.ts.

    python3 metrics_service.py redis://… redis://127.0.0.1:1

Prints the port of its `/metrics`, and ends with its standard input. Nothing listens at the second URL.
"""

from __future__ import annotations

import asyncio
import sys
from threading import Thread
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import make_wsgi_app

from holdfast import DistributedLock, HoldfastError, RateLimiter
from holdfast.prometheus import prometheus_metrics


async def main(url: str, dead_url: str) -> None:
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    work = [asyncio.create_task(each) for each in (use_locks(url), use_dead_store(dead_url))]
    await asyncio.wait({ended, *work}, return_when=asyncio.FIRST_COMPLETED)
    for task in work:
        if task.done():
            task.result()
        task.cancel()
    await asyncio.wait(work)


async def use_locks(url: str) -> None:
    """Does again and again what a service does on a busy day."""
    async with (
        DistributedLock(url) as lock,
        DistributedLock(url) as rival,
        RateLimiter(url, limits="1/hour") as limiter,
    ):
        count = 0
        while True:
            count += 1
            work = [compete(lock, rival, f"order:python-{count}"), force_release(lock, rival)]
            work += [consume(limiter, f"api:python-{count}") for _ in ("allowed", "denied")]
            for error in await asyncio.gather(*work, return_exceptions=True):
                # A machine that is too busy loses a lease, or gets a late answer. The next round makes up for it.
                if error is not None and not isinstance(error, HoldfastError):
                    raise error


async def compete(lock: DistributedLock, rival: DistributedLock, name: str) -> None:
    """One claim holds the lock until its heartbeat has renewed it, one is refused, and one waits."""
    renewed = asyncio.Event()
    stops = [lock.on("renewed", lambda _: renewed.set()), lock.on("lost", lambda _: renewed.set())]
    async with await lock.hold(name, timeout_seconds=3):
        await rival.acquire(name)
        waiter = asyncio.create_task(rival.hold(name, blocking_timeout_seconds=60))
        await renewed.wait()
    await (await waiter).release()
    for stop in stops:
        stop()


async def force_release(lock: DistributedLock, rival: DistributedLock) -> None:
    lease = await lock.hold("report:python", timeout_seconds=3)
    await rival.force_release("report:python", by="the test")
    await lease.lost


async def consume(limiter: RateLimiter, key: str) -> None:
    await limiter.consume(key)


async def use_dead_store(url: str) -> None:
    async with DistributedLock(url, call_timeout_seconds=1) as lock:
        while True:
            try:
                await lock.acquire("order:1")
            except HoldfastError:
                await asyncio.sleep(0.1)  # so that it does not spin


class Quiet(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """No line for each scrape."""


prometheus_metrics(templates=["order:{id}", "report:{language}", "api:{user}"])
server = make_server("127.0.0.1", 0, make_wsgi_app(), handler_class=Quiet)
Thread(target=server.serve_forever, daemon=True).start()
print(server.server_port, flush=True)
asyncio.run(main(*sys.argv[1:]))
