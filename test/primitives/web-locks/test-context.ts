import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import type { Capabilities, Driver } from '../../../src/core/driver.ts'
import {
  type Lock,
  type LockInfo,
  type LockManager,
  type LockOptions,
  type WebLocksOptions,
  webLocks,
} from '../../../src/primitives/web-locks/web-locks.ts'

/** What one case has: two clients of one origin, which nobody else uses, and a resource name. */
export interface Scene {
  readonly capabilities: Capabilities
  readonly locks: LockManager
  /** Another client, on a driver of its own. */
  readonly other: LockManager
  readonly name: string
  /** A further client of the same origin. */
  open(options?: WebLocksOptions): LockManager
}

export type Need = 'steal' | 'queue' | 'metadata' | 'ttl'

export type Body = (scene: Scene) => Promise<void>

export type Test = (title: string, ...rest: [body: Body] | [needs: readonly Need[], body: Body]) => void

/** One section of the specification. It registers its cases and nothing else. */
export type Section = (test: Test) => void

export interface Drivers {
  readonly capabilities: Capabilities
  readonly a: Driver
  readonly b: Driver
}

export function unmet({ capabilities }: Pick<Drivers, 'capabilities'>, needs: readonly Need[]): string | undefined {
  const { steal, queue, metadata, expiry } = capabilities
  const has: Record<Need, boolean> = { steal, queue, metadata, ttl: expiry === 'ttl' }
  return needs.find((need) => !has[need])
}

export async function inScene({ capabilities, a, b }: Drivers, body: Body): Promise<void> {
  const prefix = `${randomUUID()}:`
  const opened: LockManager[] = []
  const open = (options: WebLocksOptions): LockManager => {
    const manager = webLocks({ prefix, ...options })
    opened.push(manager)
    return manager
  }
  const [locks, other] = [open({ driver: a }), open({ driver: b })]
  try {
    await body({ capabilities, locks, other, name: 'resource', open: (options) => open({ driver: a, ...options }) })
  } finally {
    await Promise.all(opened.map((manager) => manager.close()))
  }
}

/** A request whose callback ends when the test says so. */
export interface Holding {
  /** The lock, once the callback was called with it. Rejects if the request ends before. */
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
  // A test looks at it when it wants to.
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
 * The locks that a client is shown, of which there are `count`. Where no one server decides, what has just been granted may not be shown yet: there
 * it is asked for until it is.
 */
export async function shown({ capabilities }: Scene, locks: LockManager, count: number): Promise<LockInfo[]> {
  for (let tries = 1; ; tries += 1) {
    const { held } = await locks.query()
    if (held.length === count || capabilities.queue || tries === 100) return held
  }
}

/** Everybody who asked before this has a place in the store by now. */
export async function pendingOn(locks: LockManager, name: string): Promise<LockInfo[]> {
  return (await locks.query()).pending.filter((info) => info.name === name)
}

export async function heldOn(locks: LockManager, name: string): Promise<LockInfo[]> {
  return (await locks.query()).held.filter((info) => info.name === name)
}
