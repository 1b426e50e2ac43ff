import assert from 'node:assert/strict'
import { Redis } from 'ioredis'
import { afterAll, afterEach, beforeAll } from 'vitest'
import type { Claim, Driver, Grant } from '../../src/core/driver.ts'
import type { Clock } from '../../src/core/time/clock.ts'
import { redisDriver } from '../../src/drivers/redis.ts'
import { type RedlockOptions, redlockDriver } from '../../src/drivers/redlock.ts'
import { newCall } from '../../src/testing/conformance/driver-calls.ts'
import { until } from './processes.ts'
import { type FaultProxy, startProxy } from './proxy.ts'
import { type Server, startServers } from './servers.ts'

/**
 * Five servers for the test file that imports this, each behind a proxy. After each test, all faults are healed.
 */
export const all: Server[] = []
export const proxies: FaultProxy[] = []

const clients: Redis[] = []
let counter = 0

beforeAll(async () => {
  const { redis } = await startServers({ redis: 5 })
  all.push(...redis)
  proxies.push(...(await Promise.all(all.map(({ port }) => startProxy(port)))))
})

afterEach(healAll)

afterAll(async () => {
  for (const client of clients) client.disconnect()
  await Promise.all(proxies.map((proxy) => proxy.close()))
  await Promise.all(all.map((server) => server[Symbol.asyncDispose]()))
})

export function client(port: number, options: { readonly db?: number } = {}): Redis {
  const patience = { commandTimeout: 10_000, retryStrategy: () => 20, maxRetriesPerRequest: 0 }
  const opened = new Redis(port, { ...patience, ...options })
  opened.on('error', () => {})
  clients.push(opened)
  return opened
}

export const nodesOn = (servers: readonly { readonly port: number }[], options: { readonly db?: number } = {}) =>
  servers.map(({ port }) => redisDriver({ client: client(port, options) }))

export const redlock = (options: Partial<RedlockOptions> = {}): Driver =>
  redlockDriver({ nodes: options.nodes ?? nodesOn(all), persistent: true, ...options })

export const name = (): string => `redlock:${process.pid}:${++counter}`

export function claim(changes: Partial<Claim> = {}): Claim {
  const claimId = `claim ${++counter} of ${process.pid}`
  const plain = { mode: 'exclusive', permits: 1, ttlMs: 120_000, waiterTtlMs: 0 } as const
  return { lockName: name(), claimId, holderId: 'h', ...plain, ...changes }
}

export async function granted(driver: Driver, of: Claim): Promise<Grant> {
  const [answer] = await driver.acquire([of], newCall())
  if (answer === undefined || answer instanceof Error) throw answer
  assert.ok(answer.granted, JSON.stringify(answer))
  return answer
}

export async function untilGranted(driver: Driver, of: Claim): Promise<Grant> {
  let got: Grant | undefined
  const look = async (): Promise<boolean> => {
    const [answer] = await driver.acquire([of], newCall())
    if (answer !== undefined && 'granted' in answer && answer.granted) got = answer
    return got !== undefined
  }
  await until(look, { timeoutMs: 30_000, failure: () => 'timed out waiting for a grant' })
  return got as Grant
}

/**
 * Waits until each of these nodes votes. A node does not vote right after its start or its first request.
 */
export const untilVoting = (driver: Driver, servers: readonly Server[], ttlMs = 1_000): Promise<void> =>
  until(
    async () => {
      const probe = claim({ ttlMs })
      await driver.acquire([probe], newCall())
      const held = await Promise.all(servers.map(({ port }) => client(port).exists(`lock:${probe.lockName}`)))
      return held.every((count) => count === 1)
    },
    { timeoutMs: 30_000, failure: () => 'not all of the nodes vote' },
  )

export async function cycle(driver: Driver): Promise<void> {
  const held = claim()
  const { fencingToken } = await granted(driver, held)
  await driver.release([{ ...held, fencingToken }])
}

/** Checks for less time than a lease of `claim` lasts, so that a lease that was not released cannot end by itself. */
export const untilFree = (lockName: string, timeoutMs = 30_000): Promise<void> =>
  until(
    async () => {
      const probes = all.map(({ port }) => client(port))
      const held = await Promise.all(probes.map((probe) => probe.exists(`lock:${lockName}`)))
      for (const probe of probes) probe.disconnect()
      return held.every((count) => count === 0)
    },
    { timeoutMs, failure: () => `"${lockName}" was not released on every node` },
  )

/** The token of this claim's lease on each of these servers. */
export const tokensOn = (servers: readonly Server[], { lockName, claimId }: Claim): Promise<(number | undefined)[]> =>
  Promise.all(
    servers.map(async ({ port }) => {
      const probe = client(port)
      const [id, token] = JSON.parse((await probe.get(`lock:${lockName}`)) ?? '[]') as [string?, number?]
      probe.disconnect()
      return id === claimId ? token : undefined
    }),
  )

export async function untilTokens(
  servers: readonly Server[],
  of: Claim,
  wanted: readonly (number | undefined)[],
): Promise<void> {
  let found: (number | undefined)[] = []
  await until(
    async () => {
      found = await tokensOn(servers, of)
      return found.every((token, at) => token === wanted[at])
    },
    { timeoutMs: 30_000, failure: () => `"${of.lockName}" has ${found} instead of ${wanted}` },
  )
}

export const clockAhead = (ms: number): Clock => ({
  now: () => ({ monotonicMs: performance.now(), wallMs: Date.now() + ms }),
  setTimer: () => ({ cancel: () => {} }),
})

/** Waits until the leases of a lost vote are gone. */
export const untilOnly = (lockName: string, count: number): Promise<void> =>
  until(
    async () => {
      const held = await Promise.all(all.map(({ port }) => client(port).exists(`lock:${lockName}`)))
      return held.filter((each) => each === 1).length === count
    },
    { timeoutMs: 30_000, failure: () => `"${lockName}" is not on ${count} nodes` },
  )

async function healAll(): Promise<void> {
  for (const proxy of proxies) proxy.heal()
  for (const server of all) server.resume()
  await Promise.all(all.map(restartIfDown))
}

async function restartIfDown(server: Server): Promise<void> {
  const probe = client(server.port)
  const answer = await probe.ping().catch(() => undefined)
  probe.disconnect()
  if (answer === undefined) await server.restart()
}
