import assert from 'node:assert/strict'
import { Redis } from 'ioredis'
import { afterAll, beforeAll } from 'vitest'
import type { AcquireAnswer, Claim, Driver, Grant } from '../../src/core/driver.ts'
import { redisDriver } from '../../src/drivers/redis.ts'
import { DistributedLock } from '../../src/index.ts'
import { newCall } from '../../src/testing/conformance/driver-calls.ts'
import { until } from './processes.ts'
import { type Server, startRedis } from './servers.ts'

/** A server for the test file that imports this. Its tests do not break it: those start their own. */
export let shared: Server

let counter = 0
const clients: Redis[] = []

beforeAll(async () => {
  shared = await startRedis()
})

afterAll(async () => {
  for (const client of clients) client.disconnect()
  await shared[Symbol.asyncDispose]()
})

/** The source of a worker that acquires a lock and holds it, for `startWorker`. */
export const HOLDER = `
  import { Redis } from 'ioredis'
  import { DistributedLock } from 'holdfast'
  import { redisDriver, redisFence } from 'holdfast/drivers/redis'
  let lease, client
  expose({
    async hold(url, lockName, timeoutSeconds, waiterTtlSeconds = 10) {
      client = new Redis(url)
      client.on('error', () => {})
      const lock = new DistributedLock({ driver: redisDriver({ client }), waiterTtlSeconds })
      lease = await lock.hold(lockName, { timeoutSeconds, heartbeat: true, blockingTimeoutSeconds: 60 })
      return lease.fencingToken
    },
    async take(url, lockName) {
      const lock = new DistributedLock({ driver: redisDriver({ client: new Redis(url) }) })
      return (await lock.acquire(lockName, { blocking: false })).acquired
    },
    async write(key, value) {
      const { held } = lease
      const error = await redisFence({ client }).set(key, value, lease).then(() => 'written', (error) => error.code)
      return { held, error }
    },
  })
`

interface ClientOptions {
  readonly maxRetriesPerRequest?: number
  readonly username?: string
  readonly password?: string
  readonly enableReadyCheck?: boolean
}

export function client(port: number, options: ClientOptions = {}): Redis {
  const opened = new Redis(port, { commandTimeout: 10_000, retryStrategy: () => 50, ...options })
  opened.on('error', () => {})
  clients.push(opened)
  return opened
}

export const driverOn = (port: number): Driver => redisDriver({ client: client(port) })

export const lockOn = (port: number, options = {}): DistributedLock =>
  new DistributedLock({ defaults: { blocking: true }, ...options, driver: driverOn(port) })

export const name = (): string => `failure:${process.pid}:${++counter}`

export function claim(changes: Partial<Claim> = {}): Claim {
  const claimId = `claim ${++counter} of ${process.pid}`
  const plain = { mode: 'exclusive', permits: 1, ttlMs: 60_000, waiterTtlMs: 0 } as const
  return { lockName: name(), claimId, holderId: `holder of ${claimId}`, ...plain, ...changes }
}

export const pairOn = (lockName: string, changes: Partial<Claim>): [Claim, Claim] => [
  claim({ lockName, ...changes }),
  claim({ lockName }),
]

export async function ask(driver: Driver, of: Claim): Promise<AcquireAnswer> {
  const [answer] = await driver.acquire([of], newCall())
  if (answer === undefined || answer instanceof Error) throw answer
  return answer
}

export async function granted(driver: Driver, of: Claim): Promise<Grant> {
  const answer = await ask(driver, of)
  assert.ok(answer.granted, JSON.stringify(answer))
  return answer
}

export async function untilGranted(driver: Driver, of: Claim): Promise<Grant> {
  let answer: AcquireAnswer | undefined
  const look = async (): Promise<boolean> => {
    answer = await ask(driver, of).catch(() => undefined)
    return answer?.granted === true
  }
  await until(look, patience('a grant'))
  return answer as Grant
}

export const patience = (what: string) => ({ timeoutMs: 30_000, failure: () => `timed out waiting for ${what}` })
