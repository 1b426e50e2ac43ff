"""What a case works with: unique lock names, and a driver for each process that it wants to play."""

from __future__ import annotations

import secrets
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, AsyncIterator, Dict

from holdfast.core.driver import Capabilities, Claim, Driver

from .stores import Store
from .timing import LONG_MS, outlast


class Context:
    def __init__(self, store: Store, cleanup: AsyncExitStack) -> None:
        self._store = store
        self._cleanup = cleanup
        self._claims = 0
        self.lock_name = f"conformance:{secrets.token_urlsafe(9)}"
        """Unique to this case, so that a server can be shared by many runs."""

    @property
    def capabilities(self) -> Capabilities:
        capabilities = self._store.capabilities
        assert capabilities is not None, "no driver has been opened"
        return capabilities

    def name(self, suffix: object) -> str:
        """Another unique name, which begins with `lock_name`."""
        return f"{self.lock_name}:{suffix}"

    def claim(self, **changes: Any) -> Claim:
        """By default on `lock_name`, exclusive, with a long TTL, and not waiting."""
        self._claims += 1
        claim_id = f"{self.lock_name}.{self._claims}"
        fields: Dict[str, Any] = {
            "lock_name": self.lock_name,
            "claim_id": claim_id,
            "holder_id": f"holder of {claim_id}",
            "ttl_ms": LONG_MS,
        }
        return Claim(**{**fields, **changes})

    async def driver(self) -> Driver:
        """A new driver on the same store, as another process would have."""
        driver = await self._store.driver(self._cleanup)
        self._store.capabilities = driver.capabilities
        self._cleanup.push_async_callback(driver.close)
        return driver

    async def lease_ends(self, driver: Driver, ttl_ms: float) -> None:
        """Lets a driver's lease end without being released: its time runs out, or its session dies."""
        if self.capabilities.expiry == "session":
            await self._store.end_session(driver)
        else:
            await outlast(ttl_ms)


@asynccontextmanager
async def open_context(store: Store) -> AsyncIterator[Context]:
    """Closes everything that a case has opened, even if it failed."""
    async with AsyncExitStack() as cleanup:
        yield Context(store, cleanup)
