import assert from 'node:assert/strict'
import pg from 'pg'
import postgres from 'postgres'
import { describe, inject, it } from 'vitest'
import { connectionsOf, type PostgresClient } from '../../../src/drivers/postgres/client.ts'
import { advisoryKey } from '../../../src/drivers/postgres-advisory/held-locks.ts'
import { inspectLocks } from '../../../src/drivers/postgres-advisory/inspect.ts'
import { Session } from '../../../src/drivers/postgres-advisory/session.ts'
import { unique } from '../../harness/postgres-context.ts'

const { postgres: url = '' } = inject('servers')

describe.each([
  ['pg', () => new pg.Pool({ connectionString: url, max: 2 })],
  ['postgres', () => postgres(url, { max: 2, fetch_types: false, onnotice: () => {} })],
] as [string, () => PostgresClient & { end(): Promise<void> }][])('a session of %s', (_, open) => {
  it('shows a lease although another statement was sent before the session knew of the grant', async () => {
    const client = open()
    const connections = connectionsOf(client)
    const [holder, other] = [await Session.open(connections, () => {}), await Session.open(connections, () => {})]
    try {
      const lockName = unique('pipelined')
      const key = advisoryKey(lockName)
      const [[lease]] = await Promise.all([
        holder.try([{ lockName, key, claimId: 'claim', holderId: 'holder', shared: false }]),
        holder.locks([key]),
      ])
      const query = { lockName, prefix: '', pageSize: 10 }
      const { leases } = inspectLocks(query, await other.locks([key]))
      assert.deepEqual(
        leases.map(({ fencingToken }) => fencingToken),
        [lease?.fencingToken],
      )
    } finally {
      await Promise.all([holder.end(), other.end()])
      await client.end()
    }
  })
})
