"""What the tests of the postgres-advisory driver share."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any, Awaitable, Callable, List, Optional, Union

import asyncpg
from holdfast.core.driver import Claim, Driver, Grant, LeaseRef, Renewal
from holdfast.drivers.postgres_advisory import advisory_key

_LOCK = "locktype = 'advisory' AND objsubid = 1 AND (classid::bigint << 32 | objid::bigint) = $1"


def claim_on(lock_name: str, **options: Any) -> Claim:
    settings = {"ttl_ms": 30_000, "holder_id": "python", **options}
    return Claim(lock_name=lock_name, claim_id=secrets.token_hex(12), **settings)


def ref_of(claim: Claim, grant: Optional[Grant] = None) -> LeaseRef:
    return LeaseRef(claim.lock_name, claim.claim_id, None if grant is None else grant.fencing_token)


def renewal_of(claim: Claim, grant: Grant) -> Renewal:
    return Renewal(claim.lock_name, claim.claim_id, grant.fencing_token, claim.ttl_ms)


async def granted(driver: Driver, claim: Claim) -> Grant:
    [answer] = await driver.acquire([claim])
    assert isinstance(answer, Grant), answer
    return answer


async def is_free(driver: Driver, lock_name: str) -> bool:
    """Whether a claim is granted. It is released again."""
    claim = claim_on(lock_name)
    [answer] = await driver.acquire([claim])
    if isinstance(answer, Grant):
        assert await driver.release([ref_of(claim, answer)]) == [True]
    return isinstance(answer, Grant)


async def pids(admin: asyncpg.Pool, lock_name: str, granted: bool = True) -> List[int]:
    """The server's processes that have a lock, or wait for it."""
    text = f"SELECT pid FROM pg_locks WHERE {_LOCK} AND granted = $2"
    rows = await admin.fetch(text, advisory_key(lock_name), granted)
    return [row["pid"] for row in rows]


async def terminate_holder(admin: asyncpg.Pool, lock_name: str) -> None:
    await admin.fetch(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_locks WHERE {_LOCK}", advisory_key(lock_name))


async def until(what: str, condition: Callable[[], Union[Any, Awaitable[Any]]], seconds: float = 30) -> Any:
    """Asks repeatedly. The time is only a bound for a test that fails."""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + seconds
    while True:
        found = condition()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        assert loop.time() < ends_at, f"waited {seconds} s for {what}"
        await asyncio.sleep(0.01)


class Listener:
    """Keeps what a driver reports."""

    def __init__(self) -> None:
        self.lost_claims: List[str] = []
        self.causes: List[Exception] = []
        self.woken: List[Optional[str]] = []
        self.grants: "dict[str, Grant]" = {}

    def wake(self, lock_name: str, claim_id: Optional[str] = None) -> None:
        self.woken.append(claim_id)

    def granted(self, claim_id: str, grant: Grant) -> None:
        self.grants[claim_id] = grant

    def lost(self, claim_id: str, cause: Exception) -> None:
        self.lost_claims.append(claim_id)
        self.causes.append(cause)

    def disconnected(self, cause: Exception) -> None:
        raise AssertionError("there is nothing to be disconnected from")
