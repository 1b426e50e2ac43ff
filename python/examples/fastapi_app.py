"""A FastAPI app: an order is shipped by one process at a time, and a client is limited to 100 requests in a minute.

    HOLDFAST_URL=redis://localhost:6379 uvicorn fastapi_app:app
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import Any, AsyncIterator

from fastapi import FastAPI, HTTPException, Request

from holdfast import DistributedLock, NotAcquiredError, RateLimiter


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    # One instance for the life of the app. Leaving the block releases what is held.
    async with DistributedLock() as lock, RateLimiter(limits="100/minute") as limiter:
        app.state.lock, app.state.limiter = lock, limiter
        yield


app = FastAPI()
app.router.lifespan_context = lifespan  # From version 0.93 of FastAPI on: FastAPI(lifespan=lifespan)
shipped: set[int] = set()


@app.post("/orders/{order}/ship")
async def ship(order: int, request: Request) -> dict[str, Any]:
    client = request.client.host if request.client else "unknown"
    allowed = await app.state.limiter.consume(f"ship:{client}")
    if not allowed:
        raise HTTPException(429, headers={"Retry-After": str(int(allowed.retry_after_seconds) + 1)})
    try:
        # Does not wait: if another process ships this order, this one must not ship it a second time.
        async with app.state.lock.lock(f"order:{order}") as lease:
            if order in shipped:
                return {"order": order, "shipped": "before"}
            shipped.add(order)
            return {"order": order, "shipped": "now", "fencing_token": lease.fencing_token}
    except NotAcquiredError as error:
        raise HTTPException(409, str(error)) from error
