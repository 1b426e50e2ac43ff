import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import pg from 'pg'
import { describe, inject, it } from 'vitest'
import type { DriverListener } from '../../../src/core/driver.ts'
import { postgresDriver } from '../../../src/drivers/postgres.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { claimOn, granted, unique, until } from '../../harness/postgres-context.ts'
import { startProxy } from '../../harness/proxy.ts'

const url = inject('servers').postgres ?? ''

describe.concurrent('postgres: the notify connection', { timeout: 60_000 }, () => {
  it('a stop while the connection hangs neither disconnects the next listener nor leaks a connection', async () => {
    const name = unique('listening')
    const { pool, pinged } = watchedPool(name)
    const driver = postgresDriver({ client: pool })
    const first = ears()
    const stop = await driver.listen?.(first)
    const pid = await backendOf(pool, name)
    process.kill(pid, 'SIGSTOP')
    await pinged
    const second = ears()
    const stopped = stop?.()
    const stopSecond = await driver.listen?.(second)
    process.kill(pid, 'SIGCONT')
    await stopped
    // Both have settled, and the second one receives messages.
    await until('the first one’s connection to be gone', async () => (await backendsOf(pool, name)).length === 1)
    const [holder, waiter] = [claimOn(unique('heard')), claimOn('', 60_000)]
    await granted(driver, holder)
    await driver.acquire([{ ...waiter, lockName: holder.lockName }], newCall())
    await driver.release([holder])
    await until('the grant', () => second.heard.length > 0)
    assert.deepEqual([first.heard, second.heard], [[], [`granted ${waiter.claimId}`]])
    await stopSecond?.()
    await until('no backend to listen', async () => (await backendsOf(pool, name)).length === 0)
    await driver.close()
    await pool.end()
  })

  it('a Client that is passed in and stops answering ends the listening, and nothing else', async () => {
    await using proxy = await startProxy(Number(new URL(url).port))
    const client = new pg.Client(url.replace(new URL(url).host, `127.0.0.1:${proxy.port}`))
    await client.connect()
    const driver = postgresDriver({ client })
    const listener = ears()
    await driver.listen?.(listener)
    const uncaught: unknown[] = []
    const catchIt = (error: unknown): unknown => uncaught.push(error)
    process.on('unhandledRejection', catchIt)
    proxy.blackHole()
    // It pings the server every 5 s, and waits 10 s for an answer.
    await until('it to be disconnected', () => listener.heard.length > 0, 40_000)
    assert.deepEqual(listener.heard, ['disconnected'])
    const ended = once(client, 'end')
    proxy.heal()
    await Promise.all([driver.close(), client.end(), ended])
    await new Promise((resolve) => setImmediate(resolve))
    process.off('unhandledRejection', catchIt)
    assert.deepEqual(uncaught, [])
  })

  it('if the notification queue is full, locks are handed over and taken by force, and waiters poll', async () => {
    const schema = `full_${randomBytes(6).toString('hex')}`
    const pool = new pg.Pool({ connectionString: url, max: 4 })
    const driver = postgresDriver({ client: pool, schema })
    const [holder, first, second] = [claimOn('full'), claimOn('full', 60_000), claimOn('full', 60_000)]
    await granted(driver, holder)
    // As if it were half full: 4 GB of messages that a client with an open transaction has not read.
    await pool.query(
      `CREATE FUNCTION ${schema}.pg_notification_queue_usage() RETURNS FLOAT8 LANGUAGE sql AS 'SELECT 0.5';
      ALTER FUNCTION ${schema}.holdfast_change_leases SET search_path = ${schema}, pg_catalog;
      ALTER FUNCTION ${schema}.holdfast_acquire_by_force SET search_path = ${schema}, pg_catalog`,
    )
    const listener = ears()
    await driver.listen?.(listener)
    await driver.acquire([first], newCall())
    await driver.acquire([second], newCall())
    assert.deepEqual(await driver.release([holder]), [true])
    await granted(driver, first)
    await granted(driver, { ...claimOn('full'), forceUpTo: Number.MAX_SAFE_INTEGER })
    // A message on this channel arrives after all that were sent before.
    await pool.query(`DROP FUNCTION ${schema}.pg_notification_queue_usage; SET search_path TO ${schema};
      SELECT holdfast_send_events(ARRAY[jsonb_build_array(channel, claim_id, '', '', '')]) FROM holdfast_waiters`)
    await until('the last message', () => listener.heard.length > 0)
    assert.deepEqual(listener.heard, [`wake ${second.claimId}`])
    await driver.close()
    await pool.query(`SET client_min_messages = warning; DROP SCHEMA ${schema} CASCADE`)
    await pool.end()
  })
})

function ears(): DriverListener & { readonly heard: string[] } {
  const heard: string[] = []
  return {
    heard,
    granted: (claimId) => void heard.push(`granted ${claimId}`),
    wake: (target) => void heard.push(`wake ${'claimId' in target ? target.claimId : target.lockName}`),
    lost: () => {},
    disconnected: () => void heard.push('disconnected'),
  }
}

/** A pool whose dedicated connections report when they ping the server. */
function watchedPool(name: string): { pool: pg.Pool; pinged: Promise<void> } {
  let onPing = (): void => {}
  const pinged = new Promise<void>((resolve) => {
    onPing = resolve
  })
  let isOpen = false
  class Watched extends pg.Client {
    override query(...args: unknown[]): never {
      if ((args[0] as { text?: string }).text?.includes('holdfast_key')) {
        // The first one comes before LISTEN.
        if (isOpen) onPing()
        isOpen = true
      }
      return super.query(...(args as [string])) as never
    }
  }
  const pool = new pg.Pool({ connectionString: url, application_name: name })
  Object.assign(pool, { Client: Watched })
  return { pool, pinged }
}

async function backendsOf(pool: pg.Pool, name: string): Promise<number[]> {
  const text = `SELECT pid FROM pg_stat_activity
    WHERE application_name = $1 AND query ~ '^(LISTEN|SELECT [^ ]+holdfast_key)'`
  return (await pool.query(text, [name])).rows.map(({ pid }) => pid)
}

const backendOf = async (pool: pg.Pool, name: string): Promise<number> => (await backendsOf(pool, name))[0] as number
