// A process with thousands of claims that wait for one lock. waiters.ts starts it, and calls its exported functions.
import { setTimeout as sleep } from 'node:timers/promises'
import type { DistributedLock } from 'holdfast'
import { load } from '../connect.ts'
import { nowMs } from '../history.ts'

export interface WaitingSettings {
  dist: string
  url: string
  lockName: string
  waiters: number
  /** The TTL of the leases that are handed over, and of one that is held meanwhile. */
  ttlSeconds: number
}

/** A lease that this process was granted, in the order of the grants. */
export type Turn = [claimId: string, token: number, atMs: number]

export interface Turns {
  turns: Turn[]
  /** Leases that ended before they were released. */
  lost: number
  errors: Record<string, number>
}

let lock: DistributedLock | undefined
let turns: Turn[] = []
let lost = 0
const errors: Record<string, number> = {}

/** Resolves when all claims have been made. They may not be in the queue yet. */
export async function queue({ dist, url, lockName, waiters, ttlSeconds }: WaitingSettings): Promise<void> {
  const { DistributedLock } = await load<typeof import('holdfast')>({ dist }, 'index.js')
  const opened = new DistributedLock({ url })
  lock = opened
  opened.on('lost', () => {
    lost += 1
  })
  opened.on('acquired', (event) => {
    if (event.lockName === lockName) turns.push([event.claimId, event.fencingToken, nowMs()])
  })
  await opened.acquire(`beside:${process.pid}`, { timeoutSeconds: ttlSeconds, heartbeat: true })
  const options = { timeoutSeconds: ttlSeconds, blockingTimeoutSeconds: 3_600 }
  const take = async (): Promise<void> => {
    for (;;) {
      try {
        await opened.withLock(lockName, async () => {}, options)
      } catch (error) {
        const { code = String(error) } = error as { code?: string }
        errors[code] = (errors[code] ?? 0) + 1
        await sleep(100)
      }
    }
  }
  for (let left = waiters; left > 0; left -= 1) void take()
}

/** What has happened since the last call. */
export async function taken(): Promise<Turns> {
  const result = { turns, lost, errors }
  turns = []
  return result
}

/** Whether the lease that is held beside the waiters is still held in the store. */
export async function keptBeside(): Promise<boolean> {
  return (await lock?.inspect(`beside:${process.pid}`))?.leases.length === 1
}
