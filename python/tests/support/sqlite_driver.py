"""What the tests of the SQLite driver share."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, AsyncIterator, Awaitable, Callable, Dict, List, Optional, Tuple

from holdfast.core.driver import Claim, DriverListener, Grant, InspectQuery, LeaseRef, Refusal
from holdfast.drivers.sqlite import SqliteDriver, open_sqlite

from support.names import unique


def claim_on(lock_name: str, **options: Any) -> Claim:
    return Claim(lock_name=lock_name, claim_id=unique("claim"), holder_id="python", **{"ttl_ms": 60_000, **options})


async def grant_of(driver: SqliteDriver, claim: Claim) -> Grant:
    [answer] = await driver.acquire([claim])
    assert isinstance(answer, Grant), answer
    return answer


async def refusal_of(driver: SqliteDriver, claim: Claim) -> Refusal:
    [answer] = await driver.acquire([claim])
    assert isinstance(answer, Refusal), answer
    return answer


async def is_granted(driver: SqliteDriver, claim: Claim) -> bool:
    [answer] = await driver.acquire([claim])
    assert isinstance(answer, (Grant, Refusal)), answer
    return isinstance(answer, Grant)


def lease_of(claim: Claim, grant: Grant) -> LeaseRef:
    return LeaseRef(claim.lock_name, claim.claim_id, grant.fencing_token)


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[SqliteDriver]:
    driver = await open_sqlite(url)
    try:
        yield driver
    finally:
        await driver.close()


@dataclass
class Heard(DriverListener):
    """A listener that remembers what it was told."""

    woken: List[Tuple[str, Optional[str]]] = field(default_factory=list)
    causes: List[Exception] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def wake(self, lock_name: str, claim_id: Optional[str] = None) -> None:
        self.woken.append((lock_name, claim_id))
        self.changed.set()

    def granted(self, claim_id: str, grant: Grant) -> None:
        raise AssertionError("the sqlite driver reports no grants")

    def lost(self, claim_id: str, cause: Exception) -> None:
        raise AssertionError("the sqlite driver reports no losses")

    def disconnected(self, cause: Exception) -> None:
        self.causes.append(cause)
        self.changed.set()

    async def wait_for(self, claim: Claim) -> None:
        """Waits until the claim was woken."""
        while (claim.lock_name, claim.claim_id) not in self.woken:
            self.changed.clear()
            await self.changed.wait()


async def until(condition: Callable[[], Awaitable[bool]], failure: str) -> None:
    for _ in range(3_000):
        if await condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(failure)


def waiters_are(driver: SqliteDriver, lock_name: str, count: int) -> Awaitable[None]:
    async def enough() -> bool:
        return len((await driver.inspect(InspectQuery(lock_name=lock_name))).waiters) == count

    return until(enough, f"there were never {count} waiters on {lock_name}")


NODE_DRIVER = """
  import { openSqlite } from 'holdfast/drivers/sqlite'
  let driver
  let count = 0
  const told = []
  let tell = () => {}
  const listener = {
    wake({ claimId }) { told.push(claimId); tell() },
    granted() {}, lost() {}, disconnected() {},
  }
  expose({
    async open(url) { driver = await openSqlite(url) },
    close: () => driver.close(),
    acquire: (claims) => driver.acquire(claims, { secret: `${Math.random()}` }),
    renew: (renewals) => driver.renew(renewals),
    release: (leases) => driver.release(leases),
    consume: (requests) => driver.consume(requests),
    inspect: (query) => driver.inspect(query),
    async listen() { await driver.listen(listener) },
    async woken(claimId) {
      while (!told.includes(claimId)) await new Promise((resolve) => { tell = resolve })
    },
  })
"""


def in_node(claim: Claim) -> Dict[str, Any]:
    """The claim as the TypeScript driver takes it."""
    renamed = {
        "lockName": claim.lock_name,
        "claimId": claim.claim_id,
        "holderId": claim.holder_id,
        "ttlMs": claim.ttl_ms,
        "mode": claim.mode,
        "limit": claim.limit,
        "permits": claim.permits,
        "metadata": claim.metadata,
        "waiterTtlMs": claim.waiter_ttl_ms,
        "forceUpTo": claim.force_up_to,
        "group": claim.group,
    }
    return {name: value for name, value in renamed.items() if value is not None}
