import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import type { Capabilities, Driver } from '../../../src/core/driver.ts'
import {
  type Lock,
  type LockInfo,
  type LockManager,
  type LockOptions,
  WebLocks,
  type WebLocksOptions,
} from '../../../src/primitives/web-locks/web-locks.ts'

/** What a case receives: two clients of an origin of their own, and a resource name. */
export interface Scene {
  readonly capabilities: Capabilities
  readonly locks: LockManager
  /** Another client with its own driver. */
  readonly other: LockManager
  readonly name: string
  /** Opens another client of the same origin. */
  open(options?: WebLocksOptions): LockManager
}

export type Need = 'steal' | 'queue' | 'metadata' | 'ttl'

export type Body = (scene: Scene) => Promise<void>

export type Test = (title: string, ...rest: [body: Body] | [needs: readonly Need[], body: Body]) => void

/** One section of the specification. It only registers its cases. */
export type Section = (test: Test) => void

export interface Drivers {
  readonly capabilities: Capabilities
  readonly a: Driver
  readonly b: Driver
}

export function unmet({ capabilities }: Pick<Drivers, 'capabilities'>, needs: readonly Need[]): string | undefined {
  const { force, queue, metadata, expiry } = capabilities
  const has: Record<Need, boolean> = { steal: force === 'claim', queue, metadata, ttl: expiry === 'ttl' }
  return needs.find((need) => !has[need])
}

export async function inScene({ capabilities, a, b }: Drivers, body: Body): Promise<void> {
  const prefix = `${randomUUID()}:`
  const opened: WebLocks[] = []
  const open = (options: WebLocksOptions): LockManager => {
    const web = new WebLocks({ prefix, ...options })
    opened.push(web)
    ids.set(web.locks, web.holderId)
    return web.locks
  }
  const [locks, other] = [open({ driver: a }), open({ driver: b })]
  try {
    await body({ capabilities, locks, other, name: 'resource', open: (options) => open({ driver: a, ...options }) })
  } finally {
    await Promise.all(opened.map((web) => web.close()))
  }
}

const ids = new WeakMap<LockManager, string>()

/** What `query` shows as the client of a scene's manager. */
export const idOf = (locks: LockManager): string => ids.get(locks) as string

/** A request whose callback ends when the test decides. */
export interface Holding {
  /** The lock, when the callback has received it. Rejects if the request ends before. */
  readonly granted: Promise<Lock>
  readonly isGranted: boolean
  /** The request's own promise. */
  readonly done: Promise<unknown>
  end(result?: unknown): void
}

export function hold(locks: LockManager, name: string, options: LockOptions = {}): Holding {
  let end!: (result: unknown) => void
  const ended = new Promise<unknown>((resolve) => {
    end = resolve
  })
  let isGranted = false
  let grant!: (lock: Lock) => void
  const called = new Promise<Lock>((resolve) => {
    grant = resolve
  })
  const done = locks.request(name, options, (lock) => {
    assert.ok(lock !== null)
    isGranted = true
    grant(lock)
    return ended
  })
  // A test may look at it later.
  done.catch(() => {})
  const granted = Promise.race([
    called,
    done.then(() => {
      throw new Error('the request ended before it was granted')
    }),
  ])
  granted.catch(() => {})
  return {
    granted,
    done,
    end: (result) => end(result),
    get isGranted() {
      return isGranted
    },
  }
}

export async function isFree(locks: LockManager, name: string, options: LockOptions = {}): Promise<boolean> {
  return locks.request(name, { ...options, ifAvailable: true }, (lock) => lock !== null)
}

export const rejectsWithName = (promise: Promise<unknown>, name: string): Promise<void> =>
  assert.rejects(promise, (error: unknown) => {
    assert.ok(error instanceof DOMException, `a DOMException, not ${String(error)}`)
    assert.equal(error.name, name)
    return true
  })

/**
 * The held locks that a client sees, once there are `count`. With several servers, a lock that was just granted may not
 * be visible yet: so it asks until it is.
 */
export async function shown({ capabilities }: Scene, locks: LockManager, count: number): Promise<LockInfo[]> {
  for (let tries = 1; ; tries += 1) {
    const { held } = await locks.query()
    if (held.length === count || capabilities.queue || tries === 100) return held
  }
}

/** Resolves when all earlier requests have a place in the store. */
export async function pendingOn(locks: LockManager, name: string): Promise<LockInfo[]> {
  return (await locks.query()).pending.filter((info) => info.name === name)
}

export async function heldOn(locks: LockManager, name: string): Promise<LockInfo[]> {
  return (await locks.query()).held.filter((info) => info.name === name)
}
