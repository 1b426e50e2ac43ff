"""Python and Node processes share one election, one once-only key, one rate limit, one queue."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, AsyncIterator, Callable, Dict, Iterator, List, Tuple

import pytest

from holdfast import (
    LeaderElection,
    Lease,
    OnceOnly,
    Rate,
    RateLimiter,
    ReadWriteLock,
    ResultNotKeptError,
    Semaphore,
    Term,
    TickResult,
    connect,
)
from holdfast.core.driver import Driver, InspectQuery
from support.node_worker import NodeError, NodeWorker
from support.polling import until

NODE = """
import { appendFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { LeaderElection, OnceOnly, RateLimiter, ReadWriteLock, Semaphore } from 'holdfast'

let url, log, locks, jobs, stop
let opened = []
const write = (line) => appendFileSync(log, `${line}\\n`)

const keep = (instance) => {
  opened.push(instance)
  return instance
}
const elections = new Map()
function election(name) {
  if (!elections.has(name)) elections.set(name, keep(new LeaderElection({ url, name, holderId: 'node' })))
  return elections.get(name)
}
/** A line at the beginning and at the end of each use. */
async function used(what, lease) {
  write(`begin ${what} ${lease.fencingToken}`)
  await sleep(1)
  write(`end ${what} ${lease.fencingToken}`)
}
async function repeated(times, tasks, use) {
  await Promise.all(Array.from({ length: tasks }, async () => {
    for (let at = 0; at < times; at += 1) await use()
  }))
}
const blocking = { blockingTimeoutSeconds: 50 }

async function close() {
  await Promise.all(opened.map((instance) => instance.close()))
  opened = []
}

expose({
  close,
  async open(ownUrl, ownLog) {
    await close()
    url = ownUrl
    log = ownLog
    locks = keep(new ReadWriteLock({ url }))
    jobs = keep(new OnceOnly({ url }))
  },
  campaign: async (name, value) => (await election(name).campaign({ value })).term,
  resign: (name) => election(name).resign(),
  leader: (name) => election(name).leader(),
  async observed(name, holderId) {
    for await (const leader of election(name).observe({ everySeconds: 0.05 })) {
      if (leader?.holderId === holderId) return leader
    }
  },
  lead(name) {
    stop = new AbortController()
    election(name).run((term) => used('node', term), { restSeconds: 0.01, signal: stop.signal })
  },
  stop: () => stop.abort(),
  once: (key, result) => jobs.once(key, () => { write(`ran ${key}`); return result }, { forSeconds: 3600 }),
  onceUndefined: (key) => jobs.once(key, () => undefined, { forSeconds: 3600 }),
  onceNoJson: (key) => jobs.once(key, () => new Date(), { forSeconds: 3600 }),
  tick: (name, id) => jobs.everyTick(name, () => { write(`ran ${id}`); return 'node' })({ id, timestamp: 0 }),
  forget: (key) => jobs.forget(key),
  async consume(limits, key, times) {
    const limiter = keep(new RateLimiter({ url, limits }))
    const results = await Promise.all(Array.from({ length: times }, () => limiter.consume(key)))
    return results.filter(({ allowed }) => allowed).length
  },
  async change(limits, key, seconds) {
    const limiter = keep(new RateLimiter({ url, limits }))
    if (seconds === null) await limiter.reset(key)
    else await limiter.block(key, seconds)
  },
  readAndWrite: (name, times) => repeated(times, 3, async () => {
    await locks.withRead(name, (lease) => used('read', lease), blocking)
    await locks.withWrite(name, (lease) => used('write', lease), blocking)
  }),
  async permits(name, limit, times) {
    const semaphore = keep(new Semaphore({ url, limit }))
    await repeated(times, 3, async () => {
      for (const permits of [1, 2]) {
        await semaphore.withPermits(name, (lease) => used(permits, lease), { permits, ...blocking })
      }
    })
  },
  take: (name, label) => locks.withWrite(name, (lease) => used(label, lease), blocking),
})
"""


@pytest.fixture(scope="module")
def event_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """One for all tests here: they share a Node process, which takes longer to start than most of them."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture(scope="module", params=["redis", "postgres", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    if request.param == "sqlite":
        return f"sqlite:{tmp_path_factory.mktemp('store')}/locks.db"
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture(scope="module")
async def process(event_loop: asyncio.AbstractEventLoop) -> AsyncIterator[NodeWorker]:
    worker = await NodeWorker.start(NODE, timeout=50)
    yield worker
    await worker.end()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Both languages append a line at the beginning and at the end of each use of what they share."""
    path = tmp_path / "log"
    path.touch()
    return path


@pytest.fixture
async def node(process: NodeWorker, url: str, log: Path) -> NodeWorker:
    await process.call("open", url, str(log))
    return process


@pytest.fixture
async def driver(url: str) -> AsyncIterator[Driver]:
    """What the Python instances of a test share, and what looks into the store."""
    driver = await connect(url)
    yield driver
    await driver.close()


def write(log: Path, line: str) -> None:
    with log.open("a") as file:
        file.write(f"{line}\n")


async def used(log: Path, what: object, lease: Any) -> None:
    write(log, f"begin {what} {lease.fencing_token}")
    await asyncio.sleep(0.001)
    write(log, f"end {what} {lease.fencing_token}")


def uses(log: Path) -> List[Tuple[str, str, int]]:
    return [(step, what, int(token)) for step, what, token in map(str.split, log.read_text().splitlines())]


async def test_one_election_never_has_two_leaders_and_its_terms_rise(
    driver: Driver, node: NodeWorker, log: Path, lock_name: str
) -> None:
    elections = [LeaderElection(driver, name=lock_name, holder_id=each) for each in ("python 1", "python 2")]

    async def lead(term: Term) -> None:
        await used(log, "python", term)

    runs = [asyncio.create_task(each.run(lead, rest_seconds=0.01)) for each in elections]
    await node.call("lead", lock_name)

    def are_both_served() -> bool:
        served = [what for step, what, _ in uses(log) if step == "end"]
        return served.count("node") >= 5 and served.count("python") >= 5

    await until(are_both_served)
    await node.call("stop")
    for run in runs:
        run.cancel()
    await asyncio.wait(runs)
    for election in elections:
        await election.close()
    # A leader that was stopped in the middle has no end.
    leading: List[int] = []
    for step, _, token in uses(log):
        if step == "begin":
            assert all(token > earlier for earlier in leading)
            leading.append(token)
        else:
            assert token == leading[-1]


async def test_a_value_that_one_publishes_is_observed_by_the_other_and_both_elect_in_order(
    driver: Driver, node: NodeWorker, lock_name: str
) -> None:
    election = LeaderElection(driver, name=lock_name, holder_id="python")
    value = {"address": "10.0.0.1:80", "tags": ["ü", None, 1.5]}
    term = await election.campaign(value=value)
    observed = await node.call("observed", lock_name, "python")
    assert (observed["term"], observed["value"]) == (term.term, value)
    campaign = asyncio.create_task(node.call("campaign", lock_name, {"by": "node"}))
    await until(lambda: _waits(driver, lock_name, 1))
    following = asyncio.create_task(election.campaign())
    await until(lambda: _waits(driver, lock_name, 2))
    changes = election.observe(every_seconds=0.05)
    await term.resign()
    number = await campaign
    assert number > term.term
    async for leader in changes:
        if leader is not None and leader.holder_id == "node":
            break
    assert leader is not None and (leader.term, leader.value) == (number, {"by": "node"})
    assert await node.call("resign", lock_name)
    last = await following
    assert last.term > number
    assert (await node.call("leader", lock_name))["term"] == last.term
    await election.close()


async def _waits(driver: Driver, lock_name: str, count: int) -> bool:
    return len((await driver.inspect(InspectQuery(lock_name=lock_name))).waiters) == count


async def test_a_key_is_done_once_and_each_gets_the_result_of_the_other(
    driver: Driver, node: NodeWorker, log: Path, unique_name: Callable[[str], str]
) -> None:
    jobs = OnceOnly(driver)
    keys = [unique_name("job") for _ in range(8)]

    async def in_python(key: str) -> Any:
        def job(_: Lease) -> Any:
            write(log, f"ran {key}")
            return {"by": "python", "text": "ü", "number": 1.5, "none": None}

        return await jobs.once(key, job, for_seconds=3_600)

    pairs = await asyncio.gather(
        *(asyncio.gather(in_python(key), node.call("once", key, {"by": "node", "list": [1]})) for key in keys)
    )
    assert sorted(log.read_text().split("\n")[:-1]) == sorted(f"ran {key}" for key in keys)
    assert all(mine == theirs for mine, theirs in pairs)
    # Each asks for what the other has done.
    first, second = unique_name("job"), unique_name("job")
    mine = await in_python(first)
    assert await node.call("once", first, "not this") == mine
    theirs = await node.call("once", second, ["by", "node"])
    assert await jobs.once(second, lambda _: "not this", for_seconds=3_600) == theirs
    assert await node.call("forget", first)
    assert await jobs.once(first, lambda _: "again", for_seconds=3_600) == "again"
    assert await jobs.forget(second)
    assert await node.call("once", second, "again") == "again"
    await jobs.close()


async def test_a_call_waits_for_the_run_of_the_other_and_takes_over_when_it_fails(
    driver: Driver, node: NodeWorker, unique_name: Callable[[str], str]
) -> None:
    jobs = OnceOnly(driver)
    for fails in (False, True):
        key = unique_name("job")
        begun, go = asyncio.Event(), asyncio.Event()

        async def job(_: Lease) -> str:
            begun.set()
            await go.wait()
            if fails:
                raise OSError("no paper")
            return "python"

        run = asyncio.create_task(jobs.once(key, job, for_seconds=3_600))
        await begun.wait()
        waiting = asyncio.create_task(node.call("once", key, "node"))
        await until(lambda: _waits(driver, f"once:{key}:run", 1))
        go.set()
        if fails:
            with pytest.raises(OSError):
                await run
        assert await waiting == ("node" if fails else "python")
        again = await jobs.once(key, lambda _: "not this", for_seconds=3_600)
        assert again == ("node" if fails else "python")
    await jobs.close()


async def test_a_tick_that_the_other_runs_or_has_run_is_elsewhere_and_an_earlier_one_overlaps(
    driver: Driver, node: NodeWorker, unique_name: Callable[[str], str]
) -> None:
    jobs, name = OnceOnly(driver), unique_name("schedule")
    begun, go = asyncio.Event(), asyncio.Event()

    async def job(_: Lease) -> str:
        begun.set()
        await go.wait()
        return "python"

    run = asyncio.create_task(jobs.every_tick(name, job)("1"))
    await begun.wait()
    waiting = asyncio.create_task(node.call("tick", name, "1"))
    assert await node.call("tick", name, "2") == {"ran": False, "reason": "overlap"}
    go.set()
    assert await run == TickResult(True, "python")
    assert await waiting == {"ran": False, "reason": "elsewhere"}
    assert await node.call("tick", name, "3") == {"ran": True, "result": "node"}
    assert await jobs.every_tick(name, job)("3") == TickResult(False, reason="elsewhere")
    await jobs.close()


async def test_a_result_that_is_not_kept_is_an_error_in_both_and_undefined_is_none(
    driver: Driver, node: NodeWorker, unique_name: Callable[[str], str]
) -> None:
    jobs = OnceOnly(driver)
    mine, theirs, nothing = unique_name("job"), unique_name("job"), unique_name("job")
    with pytest.raises(ResultNotKeptError):
        await jobs.once(mine, lambda _: object(), for_seconds=3_600)
    with pytest.raises(NodeError) as raised:
        await node.call("once", mine, "not this")
    assert raised.value.code == "RESULT_NOT_KEPT"
    with pytest.raises(NodeError):
        await node.call("onceNoJson", theirs)
    with pytest.raises(ResultNotKeptError, match="a value that JSON keeps unchanged"):
        await jobs.once(theirs, lambda _: "not this", for_seconds=3_600)
    await node.call("onceUndefined", nothing)
    assert await jobs.once(nothing, lambda _: "not this", for_seconds=3_600) is None
    await jobs.close()


async def test_exactly_the_limit_passes_in_total(
    driver: Driver, node: NodeWorker, unique_name: Callable[[str], str]
) -> None:
    key = unique_name("rate")
    policies: Dict[str, Any] = {
        "one": (Rate.per_hour(50), {"limit": 50, "periodSeconds": 3_600}, 50),
        "two": (
            [Rate(40, 3_600, burst=30), Rate.per_day(45)],
            [{"limit": 40, "periodSeconds": 3_600, "burst": 30}, {"limit": 45, "periodSeconds": 86_400}],
            30,
        ),
    }
    for name, (limits, in_node, total) in policies.items():
        limiter = RateLimiter(driver, limits=limits)
        key = unique_name(name)
        mine = asyncio.gather(*(limiter.consume(key) for _ in range(40)))
        theirs, results = await asyncio.gather(node.call("consume", in_node, key, 40), mine)
        # PostgreSQL decides a call that waited for the row by the time at which it began: one unit may be left.
        assert total - theirs - sum(map(bool, results)) in (0, 1)
        await node.call("change", in_node, key, None)
        await limiter.reset(key)  # it remembers a refusal
        assert await limiter.consume(key)
        await node.call("change", in_node, key, 600)
        refused = await limiter.consume(key)
        # PostgreSQL tolerates a clock that was set back by up to ten seconds.
        assert not refused and 500 < refused.retry_after_seconds <= 610
        await limiter.block(key, 0)
        assert await node.call("consume", in_node, key, 1) == 1
        await limiter.close()


async def test_readers_and_writers_exclude_each_other_across_languages(
    driver: Driver, node: NodeWorker, log: Path, lock_name: str
) -> None:
    locks = ReadWriteLock(driver, defaults={"blocking_timeout_seconds": 50})

    async def read_and_write() -> None:
        for _ in range(4):
            async with locks.read(lock_name) as lease:
                await used(log, "read", lease)
            async with locks.write(lock_name) as lease:
                await used(log, "write", lease)

    await asyncio.gather(node.call("readAndWrite", lock_name, 4), *(read_and_write() for _ in range(3)))
    await locks.close()
    readers = 0
    writer = 0
    last = 0
    for step, what, token in uses(log):
        assert writer in (0, token)
        if what == "read":
            readers += 1 if step == "begin" else -1
        else:
            assert readers == 0
            if step == "begin":
                assert token > last
                last = token
            writer = token if step == "begin" else 0
    assert len(uses(log)) == 2 * 2 * 4 * 6


async def test_permits_never_exceed_the_limit_across_languages(
    driver: Driver, node: NodeWorker, log: Path, lock_name: str
) -> None:
    semaphore = Semaphore(driver, limit=3, defaults={"blocking_timeout_seconds": 50})

    async def use() -> None:
        for _ in range(4):
            for permits in (1, 2):
                async with semaphore.permits(lock_name, permits=permits) as lease:
                    await used(log, permits, lease)

    await asyncio.gather(node.call("permits", lock_name, 3, 4), *(use() for _ in range(3)))
    await semaphore.close()
    held = most = 0
    for step, permits, _ in uses(log):
        held += int(permits) if step == "begin" else -int(permits)
        most = max(most, held)
    assert held == 0 and most <= 3
    assert len(uses(log)) == 2 * 2 * 4 * 6


async def test_waiters_of_both_languages_are_served_in_the_order_in_which_they_came(
    driver: Driver, node: NodeWorker, log: Path, lock_name: str
) -> None:
    locks = ReadWriteLock(driver, defaults={"blocking_timeout_seconds": 50})

    async def take(label: str) -> None:
        async with locks.write(lock_name) as lease:
            await used(log, label, lease)

    held = await locks.hold_write(lock_name)
    labels = [f"{language}{number}" for number in range(4) for language in ("node", "python")]
    tasks: List[asyncio.Task[Any]] = []
    for label in labels:
        call = node.call("take", lock_name, label) if label.startswith("node") else take(label)
        tasks.append(asyncio.create_task(call))
        await until(lambda: _waits(driver, lock_name, len(tasks)))
    await held.release()
    await asyncio.gather(*tasks)
    await locks.close()
    assert [what for step, what, _ in uses(log) if step == "begin"] == labels
