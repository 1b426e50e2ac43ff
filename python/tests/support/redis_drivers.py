"""What the tests of the Redis and Redlock drivers share."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, AsyncIterator, Awaitable, Callable, Dict, List, Optional, Tuple, TypeVar

import redis
import redis.asyncio
from holdfast.core.driver import Claim, Driver, Grant, LeaseRef, Refusal, Renewal

from support.names import unique

D = TypeVar("D", bound=Driver)


def claim_on(lock_name: str, **options: Any) -> Claim:
    return Claim(lock_name=lock_name, claim_id=unique("claim"), holder_id="python", **{"ttl_ms": 60_000, **options})


async def grant_of(driver: Driver, claim: Claim) -> Grant:
    [answer] = await driver.acquire([claim])
    assert isinstance(answer, Grant), answer
    return answer


async def refusal_of(driver: Driver, claim: Claim) -> Refusal:
    [answer] = await driver.acquire([claim])
    assert isinstance(answer, Refusal), answer
    return answer


async def error_of(answers: Awaitable[Any]) -> Exception:
    """The error of the only entry, whether it was raised or is the answer."""
    try:
        [answer] = await answers
    except Exception as error:
        return error
    assert isinstance(answer, Exception), answer
    return answer


def lease_of(claim: Claim, grant: Grant) -> LeaseRef:
    return LeaseRef(claim.lock_name, claim.claim_id, grant.fencing_token)


def renewal_of(claim: Claim, grant: Grant, ttl_ms: float = 60_000) -> Renewal:
    return Renewal(claim.lock_name, claim.claim_id, grant.fencing_token, ttl_ms)


@asynccontextmanager
async def closing(driver: D) -> AsyncIterator[D]:
    try:
        yield driver
    finally:
        await driver.close()


@dataclass
class Heard:
    """A listener that remembers what it was told."""

    woken: List[Tuple[str, Optional[str]]] = field(default_factory=list)
    grants: Dict[str, Grant] = field(default_factory=dict)
    losses: Dict[str, Exception] = field(default_factory=dict)
    causes: List[Exception] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def wake(self, lock_name: str, claim_id: Optional[str] = None) -> None:
        self.woken.append((lock_name, claim_id))
        self._changed.set()

    def granted(self, claim_id: str, grant: Grant) -> None:
        self.grants[claim_id] = grant
        self._changed.set()

    def lost(self, claim_id: str, cause: Exception) -> None:
        self.losses[claim_id] = cause
        self._changed.set()

    def disconnected(self, cause: Exception) -> None:
        self.causes.append(cause)
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await asyncio.wait_for(self._changed.wait(), 20)

    async def grant_of(self, claim: Claim) -> Grant:
        await self.until(lambda: claim.claim_id in self.grants)
        return self.grants[claim.claim_id]

    async def wake_of(self, claim: Claim) -> None:
        await self.until(lambda: any(name == claim.lock_name for name, _ in self.woken))


async def until(condition: Callable[[], Awaitable[bool]], failure: str) -> None:
    for _ in range(2_000):
        if await condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(failure)


NODE_DRIVER = """
  import { openRedis } from 'holdfast/drivers/redis'
  import { openRedlock } from 'holdfast/drivers/redlock'
  let driver
  const granted = new Map()
  let tell = () => {}
  const listener = {
    wake() {}, lost() {}, disconnected() {},
    granted(claimId, grant) { granted.set(claimId, grant); tell() },
  }
  expose({
    async open(url) { driver = url.startsWith('redlock') ? await openRedlock(url) : await openRedis(url) },
    close: () => driver.close(),
    acquire: (claims) => driver.acquire(claims, { secret: `${Math.random()}` }),
    renew: (renewals) => driver.renew(renewals),
    release: (leases) => driver.release(leases),
    consume: (requests) => driver.consume(requests),
    inspect: (query) => driver.inspect(query),
    async listen() { await driver.listen(listener) },
    async grantOf(claimId) {
      while (!granted.has(claimId)) await new Promise((resolve) => { tell = resolve })
      return granted.get(claimId)
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


KINDS = ["asyncio", "sync"]
"""The clients of one server."""


def client_at(kind: str, port: int, **options: Any) -> Any:
    return (redis.asyncio.Redis if kind == "asyncio" else redis.Redis)(host="127.0.0.1", port=port, **options)
