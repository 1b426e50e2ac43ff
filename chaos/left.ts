import type { InspectPage } from 'holdfast/driver'
import { askRedis } from '../test/harness/wire.ts'
import { load } from './connect.ts'
import { nowMs } from './history.ts'

/** The keys of Redis that stay: the last token, and since when a node of Redlock votes. See protocol/redis. */
const STAYS = /^holdfast:(?:(?:\{\d+\}:)?token|voter)$/
const AGAIN_MS = 100
/** Enough to see what it is. */
const MOST_SHOWN = 20

export interface Leaving {
  /** The built package under test. */
  dist: string
  url: string
  /** After this time everything must have ended, also what killed processes have left. */
  withinMs: number
  /**
   * A clock was ahead. What was written meanwhile ends its own time after a client that waits for it has asked: see
   * docs/drivers/redis.md. So each lock that is left is asked for.
   */
  wasAhead: boolean
}

/** Waits until the store is empty, and returns what is still there after the time in which it has to be. */
export async function leftInStore({ dist, url, withinMs, wasAhead }: Leaving): Promise<string[]> {
  if (wasAhead) await askForAll(dist, url, withinMs)
  const endMs = nowMs() + withinMs
  for (;;) {
    const left = await look(dist, url).catch((error: unknown) => [`the store does not answer: ${error}`])
    if (left.length === 0 || nowMs() > endMs) return left.slice(0, MOST_SHOWN)
    await new Promise((resolve) => setTimeout(resolve, AGAIN_MS))
  }
}

async function look(dist: string, url: string): Promise<string[]> {
  const { leases, waiters } = await inspectAll(dist, url)
  return [
    ...leases.map(({ lockName, fencingToken }) => `the lease ${fencingToken} of "${lockName}"`),
    ...waiters.map(({ lockName, holderId }) => `a place of ${holderId} in the queue of "${lockName}"`),
    ...(await keysOf(url)),
  ]
}

async function inspectAll(dist: string, url: string): Promise<Pick<InspectPage, 'leases' | 'waiters'>> {
  const { connect } = await load<typeof import('holdfast')>({ dist }, 'index.js')
  const driver = await connect(url)
  try {
    const pages: InspectPage[] = []
    for (let after: string | undefined, isLast = false; !isLast; ) {
      const page = await driver.inspect(after === undefined ? {} : { after })
      pages.push(page)
      after = page.next
      isLast = after === undefined
    }
    return { leases: pages.flatMap(({ leases }) => leases), waiters: pages.flatMap(({ waiters }) => waiters) }
  } finally {
    await driver.close()
  }
}

/** Takes every lock that is held, and releases it. What is not granted in time stays. */
async function askForAll(dist: string, url: string, withinMs: number): Promise<void> {
  const { leases } = await inspectAll(dist, url)
  const { DistributedLock } = await load<typeof import('holdfast')>({ dist }, 'index.js')
  const lock = new DistributedLock({ url })
  const waiting = { timeoutSeconds: 1, blocking: true, blockingTimeoutSeconds: withinMs / 1_000 }
  const ask = async (name: string): Promise<void> => {
    const result = await lock.acquire(name, waiting)
    if (result.acquired) await result.lock.release()
  }
  await Promise.allSettled([...new Set(leases.map(({ lockName }) => lockName))].map(ask))
  await lock.close()
}

/** The keys of every server of a Redis URL that do not stay. */
async function keysOf(url: string): Promise<string[]> {
  if (!/^(?:redis|redlock)/.test(url)) return []
  const ports = [...url.matchAll(/:(\d+)/g)].map(([, port]) => Number(port))
  const all = await Promise.all(ports.map((port) => askRedis({ port, timeoutMs: 5_000 }, 'KEYS', '*')))
  return (all.flat() as string[]).filter((key) => !STAYS.test(key)).map((key) => `the key ${key}`)
}
