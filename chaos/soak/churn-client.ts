// A process that acquires and releases many locks in a second. churn.ts starts it, and calls its exported functions.
import type { DistributedLock } from 'holdfast'
import { load } from '../connect.ts'

export interface ChurnSettings {
  dist: string
  url: string
  perSecond: number
  /** How many leases are renewed meanwhile. */
  kept: number
}

/** What has happened since the last sample. */
export interface Churned {
  grants: number
  /** Locks that were due while too many others were under way. */
  skipped: number
  /** How long it took to acquire and release a lock. */
  p50Ms: number
  p99Ms: number
  worstMs: number
  /** Since the start. */
  lost: number
  errors: Record<string, number>
}

const TICK_MS = 5
const MOST_UNDER_WAY = 5_000
const KEPT_TTL_SECONDS = 3
/** Half of the names have never been used, and the others are used again and again. */
const REUSED_NAMES = 10_000
/** One in a hundred is not released, and expires. */
const LEFT_SHARE = 0.01
const LEFT_TTL_SECONDS = 2

let lock: DistributedLock | undefined
let timer: NodeJS.Timeout | undefined
let [number, grants, skipped, underWay, lost] = [0, 0, 0, 0, 0]
let times: number[] = []
const errors: Record<string, number> = {}

export async function start({ dist, url, perSecond, kept }: ChurnSettings): Promise<void> {
  const { DistributedLock } = await load<typeof import('holdfast')>({ dist }, 'index.js')
  const opened = new DistributedLock({ url })
  lock = opened
  for (let at = 0; at < kept; at += 1) {
    const lease = await opened.hold(`kept:${at}`, { timeoutSeconds: KEPT_TTL_SECONDS })
    lease.signal.addEventListener('abort', () => {
      lost += 1
    })
  }
  const startedMs = performance.now()
  timer = setInterval(() => {
    const due = Math.floor(((performance.now() - startedMs) / 1_000) * perSecond)
    while (number < due) {
      number += 1
      if (underWay >= MOST_UNDER_WAY) skipped += 1
      else void use(opened, number)
    }
  }, TICK_MS)
}

async function use(opened: DistributedLock, at: number): Promise<void> {
  const startedMs = performance.now()
  const isLeft = Math.random() < LEFT_SHARE
  const name = at % 2 === 0 || isLeft ? `new:${process.pid}:${at}` : `again:${at % REUSED_NAMES}`
  underWay += 1
  try {
    const result = await opened.acquire(name, isLeft ? { timeoutSeconds: LEFT_TTL_SECONDS } : {})
    if (!result.acquired) throw Object.assign(new Error(result.error), { code: 'REFUSED' })
    grants += 1
    if (!isLeft && !(await result.lock.release())) throw Object.assign(new Error('not released'), { code: 'LOST' })
    if (!isLeft) times.push(performance.now() - startedMs)
  } catch (error) {
    const { code = String(error) } = error as { code?: string }
    errors[code] = (errors[code] ?? 0) + 1
  } finally {
    underWay -= 1
  }
}

export async function sample(): Promise<Churned> {
  const sorted = times.sort((a, b) => a - b)
  const at = (part: number): number => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * part))] ?? 0
  const result = { grants, skipped, p50Ms: at(0.5), p99Ms: at(0.99), worstMs: at(1), lost, errors }
  times = []
  grants = 0
  skipped = 0
  return result
}

/** Ends the churn. What is held is released. */
export async function stop(): Promise<Pick<Churned, 'lost' | 'errors'>> {
  clearInterval(timer)
  const result = { lost, errors: { ...errors } }
  await lock?.close()
  return result
}
