import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { describe, inject, it } from 'vitest'
import { openPostgres } from '../../../src/drivers/postgres.ts'
import { claimOn, granted } from '../../harness/postgres-context.ts'

/** A copy has the counter of the tokens as it was. The original has given tokens since. */
describe.concurrent('postgres: a database that is put back from a copy', { timeout: 60_000 }, () => {
  it('failure 72: a copy of some seconds ago, as a template or a renamed database, gives higher tokens', async () => {
    await using database = await openDatabase()
    const tokens = await database.draw(3)
    await database.admin(`CREATE DATABASE ${database.name}_copy TEMPLATE ${database.name}`)
    tokens.push(...(await database.draw(100)))
    await database.admin(`DROP DATABASE ${database.name}`)
    await database.admin(`ALTER DATABASE ${database.name}_copy RENAME TO ${database.name}`)
    tokens.push(...(await database.draw(3)))
    assert.deepEqual(tokens, rising(tokens))
  })

  it('failure 72: data that was restored into the same tables and sequences is followed by higher tokens', async () => {
    await using database = await openDatabase()
    const tokens = await database.draw(3)
    // What a dump of the data alone has of the sequences.
    const dump =
      await database.ask(`SELECT string_agg(format('SELECT setval(%L, %s)', sequencename, last_value), ';') AS
      answer FROM pg_sequences WHERE schemaname = 'public' AND last_value IS NOT NULL`)
    tokens.push(...(await database.draw(100)))
    await sleep(1_100) // The counter is ahead of the clock by a second.
    await database.ask(`TRUNCATE distributed_locks; ${dump}`)
    tokens.push(...(await database.draw(3)))
    assert.deepEqual(tokens, rising(tokens))
  })
})

describe('postgres: raising the counter of the tokens', () => {
  it('draws no values, also where the counter is a little below its new value', async () => {
    await using database = await openDatabase()
    const [before = 0] = await database.draw(1)
    await sleep(900) // so that the counter is a little less than a second below its new value
    // As after a restart. One log record covers 32 values of a sequence.
    const written = await database.ask(`SELECT setval('holdfast_raised', 1), pg_current_wal_lsn() AS answer`)
    await database.ask('SELECT holdfast_raise_tokens()')
    const bytes = await database.ask(`SELECT (pg_current_wal_lsn() - '${written}')::float8 AS answer`)
    assert.ok(Number(bytes) < 100_000, `${bytes} bytes were written to the log`)
    const [after = 0] = await database.draw(1)
    assert.ok(after > before)
  })
})

describe('postgres: a counter that is lost just after it was raised', () => {
  it('failure 18: is followed by higher tokens, however often a new run of the server began before', async () => {
    await using database = await openDatabase()
    const tokens = await database.draw(1)
    for (let run = 0; run < 4; run += 1) {
      await database.ask(`SELECT setval('holdfast_raised', 1)`) // As after a restart.
      tokens.push(...(await database.draw(1)))
    }
    await database.ask('DROP SEQUENCE holdfast_tokens; CREATE SEQUENCE holdfast_tokens')
    tokens.push(...(await database.draw(1)))
    assert.deepEqual(tokens, rising(tokens))
  })
})

const rising = (tokens: readonly number[]): number[] => [...new Set(tokens)].sort((a, b) => a - b)

/** A database of the test's own on the shared server. */
async function openDatabase() {
  const shared = inject('servers').postgres ?? ''
  const name = `put_back_${randomBytes(6).toString('hex')}`
  const url = new URL(shared)
  url.pathname = `/${name}`
  const on = async (at: string, text: string): Promise<unknown> => {
    const client = new pg.Client(at)
    await client.connect()
    const result = await client.query(text).finally(() => client.end())
    return [result].flat().at(-1)?.rows[0]?.answer
  }
  await on(shared, `CREATE DATABASE ${name}`)
  return {
    name,
    admin: (text: string) => on(shared, text),
    ask: (text: string) => on(url.href, text),
    async draw(count: number): Promise<number[]> {
      const driver = await openPostgres(url.href)
      const tokens: number[] = []
      for (let at = 0; at < count; at += 1) {
        const claim = claimOn('account:7')
        const { fencingToken } = await granted(driver, claim)
        tokens.push(fencingToken)
        await driver.release([claim])
      }
      await driver.close()
      return tokens
    },
    async [Symbol.asyncDispose]() {
      for (const each of [name, `${name}_copy`]) await on(shared, `DROP DATABASE IF EXISTS ${each} WITH (FORCE)`)
    },
  }
}
