"""The guards of both languages keep one largest token: a paused holder is refused, in either language."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import Any, AsyncIterator, Awaitable, Callable

import asyncpg
import pytest
import redis.asyncio

from holdfast import LeaderElection, StaleTokenError, postgres_fence, redis_fence
from holdfast.drivers.postgres import migrate_postgres_url
from support.node_worker import NodeError, NodeWorker

StartNode = Callable[..., Awaitable[NodeWorker]]

NODE = """
import { LeaderElection } from 'holdfast'
import { redisFence } from 'holdfast/drivers/redis'
import { postgresFence } from 'holdfast/drivers/postgres'
import { Redis } from 'ioredis'
import pg from 'pg'

let accept, election, term
expose({
  async open(kind, url) {
    if (kind === 'redis') {
      const fence = redisFence({ client: new Redis(url) })
      accept = (resource, token) => fence.accept(resource, token)
      return
    }
    const client = new pg.Client({ connectionString: url })
    await client.connect()
    accept = async (resource, token) => {
      await client.query('BEGIN')
      try {
        await postgresFence(client, resource, token)
        await client.query('COMMIT')
      } catch (error) {
        await client.query('ROLLBACK')
        throw error
      }
    }
  },
  accept: (resource, token) => accept(resource, token),
  async campaign(url, name) {
    election = new LeaderElection({ url, name, timeoutSeconds: 1 })
    term = await election.campaign()
    return term.term
  },
  write: (resource) => accept(resource, term),
  held: () => term.held,
})
"""


@asynccontextmanager
async def opened_guard(kind: str, url: str) -> AsyncIterator[Callable[[str, int], Awaitable[None]]]:
    """Calls the guard as a user does: that of PostgreSQL in a transaction."""
    if kind == "redis":
        client = redis.asyncio.Redis.from_url(url)
        fence = redis_fence(client)
        yield fence.accept
        await fence.close()
        await client.close()
        return
    await migrate_postgres_url(url)
    connection = await asyncpg.connect(url)

    async def accept(resource: str, token: int) -> None:
        async with connection.transaction():
            guard: Any = postgres_fence(connection)
            await guard.accept(resource, token)

    yield accept
    await connection.close()


@pytest.mark.parametrize("kind", ["redis", "postgres"])
async def test_a_leader_that_was_paused_past_its_term_is_refused_by_the_guard_that_its_successor_has_used(
    kind: str,
    request: pytest.FixtureRequest,
    node_worker: StartNode,
    unique_name: Callable[[str], str],
) -> None:
    url: str = request.getfixturevalue(f"{kind}_url")
    name, resource = unique_name("election"), unique_name("resource")
    node = await node_worker(NODE, timeout=40)
    await node.call("open", kind, url)
    first = await node.call("campaign", url, name)
    await node.call("write", resource)
    async with opened_guard(kind, url) as accept, LeaderElection(url, name=name) as election:
        node.pause()
        term = await election.campaign()
        assert term.term > first
        # The token is presented before the first read.
        await accept(resource, term.fencing_token)
        node.resume()
        assert await node.call("held") is False
        with pytest.raises(NodeError) as raised:
            await node.call("write", resource)
        assert raised.value.code == "STALE_TOKEN"
        # The other way round: Node has seen a larger one.
        await node.call("accept", resource, term.fencing_token + 1)
        with pytest.raises(StaleTokenError) as stale:
            await accept(resource, term.fencing_token)
        assert stale.value.resource == resource


async def test_a_leader_that_is_killed_is_followed_after_its_term(
    sqlite_url: str, node_worker: StartNode, lock_name: str
) -> None:
    node = await node_worker(NODE)
    first = await node.call("campaign", sqlite_url, lock_name)
    async with LeaderElection(sqlite_url, name=lock_name) as election:
        campaign = asyncio.create_task(election.campaign())
        await node.kill()
        assert (await campaign).term > first
