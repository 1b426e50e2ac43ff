import assert from 'node:assert/strict'
import postgres from 'postgres'
import { inject, it } from 'vitest'
import { openSqlConnections } from '../../../src/drivers/postgres/client.ts'
import { postgresUrl } from '../../../src/drivers/postgres/url.ts'
import { startProxy } from '../../harness/proxy.ts'

const url = inject('servers').postgres ?? ''

// postgres reads the types of arrays before the first query of a connection, and handles no failure of that.
it('postgres: a connection by URL that ends while it is set up leaves no rejection unhandled', async () => {
  await using proxy = await startProxy(Number(new URL(url).port))
  const { target } = postgresUrl(url.replace(new URL(url).host, `127.0.0.1:${proxy.port}`))
  const unhandled: unknown[] = []
  const hear = (error: unknown): unknown => unhandled.push(error)
  process.on('unhandledRejection', hear)
  const connections = openSqlConnections(postgres, target)
  const cut = proxy.cutAfterForwarding('typarray').then(() => 'the types were asked for')
  const answer = connections.query('SELECT 1 AS one', []).then(([row]) => row?.['one'])
  const first = await Promise.race([answer, cut])
  await new Promise((resolve) => setImmediate(resolve)) // an unhandled rejection is reported by then
  await connections.close()
  process.off('unhandledRejection', hear)
  assert.deepEqual([first, unhandled], [1, []])
})

it('postgres: a server that is back is noticed within a second, after any number of attempts', async () => {
  let options: { backoff?(attempt: number): number } = {}
  const create = (address: string, own: object) => {
    options = own as typeof options
    return postgres(address, own)
  }
  const connections = openSqlConnections(create, postgresUrl(url).target)
  assert.deepEqual(await connections.query('SELECT 1 AS one', []).then(([row]) => row?.['one']), 1)
  await connections.close()
  assert.ok([1, 5, 50].every((attempt) => (options.backoff?.(attempt) ?? 20) <= 1))
})
