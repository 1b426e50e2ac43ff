"""Node and Python processes on one file, two of which are killed."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Awaitable, Callable, List, Tuple

from support.node_worker import NodeWorker
from support.sqlite_driver import NODE_DRIVER, claim_on, grant_of, in_node, is_granted, lease_of, opened

StartNode = Callable[..., Awaitable[NodeWorker]]

TIMES = 25
"""How often a process adds one to the number. The first one of each language goes on until it is killed."""

NODE = """
  import { appendFileSync, readFileSync } from 'node:fs'
  import { DistributedLock } from 'holdfast'
  expose({
    async increment(url, file, slot, times) {
      const lock = new DistributedLock({ url })
      for (let done = 0; done < times; done += 1) {
        await lock.withLock('name', async (lease) => {
          const before = readFileSync(file, 'utf8').trimEnd().split('\\n').at(-1).split(' ')[0]
          await new Promise((resolve) => setTimeout(resolve, 1))
          lease.assertHeld()
          appendFileSync(file, `${Number(before) + 1} ${lease.fencingToken} ${slot}\\n`)
        }, { timeoutSeconds: 2, blockingTimeoutSeconds: 60 })
      }
      await lock.close()
    },
  })
"""

PYTHON = """
import asyncio, sys, time
from holdfast.core.driver import Claim, Grant, LeaseRef
from holdfast.drivers.sqlite import open_sqlite
url, file, slot, times = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
TTL_MS = 2_000

class Listener:
    def __init__(self): self.woken = asyncio.Event()
    def wake(self, lock_name, claim_id=None): self.woken.set()
    def disconnected(self, cause): raise cause

async def main():
    driver = await open_sqlite(url)
    listener = Listener()
    await driver.listen(listener)
    done = 0
    tries = 0
    while done < times:
        tries += 1
        claim = Claim("name", f"{slot}.{tries}", slot, TTL_MS, waiter_ttl_ms=2_000)
        while True:
            listener.woken.clear()
            asked = time.monotonic()
            [answer] = await driver.acquire([claim])
            if isinstance(answer, Grant):
                break
            try:
                await asyncio.wait_for(listener.woken.wait(), min(answer.ask_again_ms or 1, 500) / 1_000)
            except asyncio.TimeoutError:
                pass
        before = open(file).read().rstrip().split("\\n")[-1].split(" ")[0]
        await asyncio.sleep(0.001)
        if time.monotonic() < asked + TTL_MS / 2_000:
            with open(file, "a") as writing:
                writing.write(f"{int(before) + 1} {answer.fencing_token} {slot}\\n")
            done += 1
        await driver.release([LeaseRef("name", claim.claim_id, answer.fencing_token)])
    await driver.close()
asyncio.run(main())
"""


def records_of(file: Path) -> List[Tuple[int, int, str]]:
    lines = [line.split(" ") for line in file.read_text().splitlines()[1:]]
    return [(int(number), int(token), slot) for number, token, slot in lines]


async def test_no_increment_is_lost_and_tokens_rise_though_processes_are_killed(
    node_worker: StartNode, sqlite_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "numbers"
    file.write_text("0 0 -\n")
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PYTHON, sqlite_url, str(file), f"python{at}", str(TIMES if at else 1_000_000))
        )
        for at in range(2)
    ]
    workers = [await node_worker(NODE, timeout=50) for _ in range(2)]
    calls = [
        asyncio.ensure_future(worker.call("increment", sqlite_url, str(file), f"node{at}", TIMES if at else 1_000_000))
        for at, worker in enumerate(workers)
    ]
    try:
        while not {"python0", "node0"} <= {slot for _, _, slot in records_of(file)}:
            await asyncio.sleep(0.01)
        processes[0].kill()
        await workers[0].kill()
        await calls[1]
        assert await processes[1].wait() == 0
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.wait()
        await asyncio.gather(*calls, return_exceptions=True)
    records = records_of(file)
    assert [number for number, _, _ in records] == list(range(1, len(records) + 1))
    tokens = [token for _, token, _ in records]
    assert tokens == sorted(set(tokens))
    slots = [slot for _, _, slot in records]
    assert slots.count("python1") == slots.count("node1") == TIMES


async def test_a_node_process_that_is_paused_past_its_lease_is_fenced_off(
    node_worker: StartNode, sqlite_url: str
) -> None:
    """Failure 1."""
    worker = await node_worker(NODE_DRIVER)
    await worker.call("open", sqlite_url)
    stale = claim_on("name", ttl_ms=200)
    [answer] = await worker.call("acquire", [in_node(stale)])
    worker.pause()
    async with opened(sqlite_url) as driver:
        rival = claim_on("name")
        while not await is_granted(driver, rival):
            await asyncio.sleep(0.01)
        grant = await grant_of(driver, rival)
        assert grant.fencing_token > answer["fencingToken"]
        worker.resume()
        lease = {"lockName": "name", "claimId": stale.claim_id, "fencingToken": answer["fencingToken"]}
        assert await worker.call("renew", [{**lease, "ttlMs": 60_000}]) == ["lost"]
        assert await worker.call("release", [lease]) == [False]
        assert await driver.release([lease_of(rival, grant)]) == [True]


async def test_a_file_that_many_processes_create_at_the_same_time_is_created_once(tmp_path: Path) -> None:
    script = """
import asyncio, sys
from holdfast.core.driver import Claim, Grant
from holdfast.drivers.sqlite import open_sqlite
async def main():
    driver = await open_sqlite(sys.argv[1])
    [answer] = await driver.acquire([Claim("name", sys.argv[2], "test", 60_000)])
    print(isinstance(answer, Grant))
    await driver.close()
asyncio.run(main())
"""
    url = f"sqlite:{tmp_path}/a/b/locks.db"
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", script, url, str(at)), stdout=asyncio.subprocess.PIPE
        )
        for at in range(4)
    ]
    printed = [(await process.communicate())[0].decode().strip() for process in processes]
    assert sorted(printed) == ["False"] * 3 + ["True"]
