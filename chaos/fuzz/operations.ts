import type { DistributedLock, Driver, Lease, LockOptions } from 'holdfast'
import type { Draw } from '../draw.ts'
import type { Client } from '../wire/client.ts'
import type { Library } from '../wire/library.ts'
import { pause } from '../wire/play.ts'
import type { Judge } from './judge.ts'
import { checkHeld, checkInspection, checkLease, checkRate, checkResult } from './valid.ts'

/** Who makes the calls of a case, and on what. */
export interface Subject {
  readonly library: Library
  readonly judge: Judge
  readonly draw: Draw
  /** The client under test. */
  readonly client: Pick<Client, 'lock' | 'driver'>
  /** Another client of the same store, without faults: it holds locks, so that the client has to wait. */
  readonly other: DistributedLock
  readonly name: string
}

/** Everything that a client asks of a store. Each ends with a valid answer or a typed error. */
export const OPERATIONS: Readonly<Record<string, (subject: Subject) => Promise<void>>> = {
  acquire,
  async expire(subject) {
    const lease = await take(subject, 'acquire', () => subject.client.lock.acquire(subject.name, SHORT), 100)
    if (lease === undefined || !isTimed(subject)) return
    // A grant that arrived late is renewed once.
    await pauseAtLeast(210)
    subject.judge.check(!lease.held, () => 'a lease of 100 ms is held after 210 ms')
  },
  async renew({ judge, client, name }) {
    const options = { ...TERMS, timeoutSeconds: 0.3, heartbeat: true }
    const result = await judge.settles('acquire', () => client.lock.acquire(name, options))
    const lease = checkResult(judge, result, 300)
    if (lease === undefined) return
    await pause(250)
    checkHeld(judge, lease, 300)
    await judge.settles('release', () => lease.release())
  },
  async extend(subject) {
    const { judge, client, name } = subject
    const lease = await take(subject, 'acquire', () => client.lock.acquire(name, TERMS), TTL_MS)
    if (lease === undefined) return
    await judge.settles('extend', () => lease.extend(0.8))
    checkHeld(judge, lease, 800)
    await judge.settles('release', () => lease.release())
    judge.check(!lease.held, () => 'a lease is held after its release')
  },
  wait,
  async inspect({ judge, client, name }) {
    checkInspection(judge, await judge.settles('inspect', () => client.lock.inspect(name)))
    await judge.settles('isLocked', () => client.lock.isLocked(name))
  },
  async pages({ judge, client, draw }) {
    // A call to the driver itself has no deadline: the core gives it one.
    let after: string | undefined
    for (let page = 0; page < 4; page += 1) {
      const query = { pageSize: draw.one([1, 2, 100]), ...(after !== undefined && { after }) }
      const inspect = () => Promise.race([client.driver.inspect(query), pause(2_000)])
      const found = (await judge.settles('inspect a page', inspect, { refuses: [] })) ?? undefined
      after = found?.next
      if (after === undefined) return
    }
  },
  async list(subject) {
    const { judge, client, name } = subject
    const names = [0, 1, 2].map((each) => `${name}.${each}`)
    const taken = await Promise.all(
      names.map((each) => take(subject, 'acquire', () => client.lock.acquire(each, TERMS), TTL_MS)),
    )
    await Promise.all(taken.map((lease) => lease && judge.settles('extend', () => lease.extend(0.5))))
    await judge.settles('releaseAll', () => client.lock.releaseAll())
    for (const lease of taken) judge.check(!lease?.held, () => 'a lease is held after releaseAll')
  },
  async together({ judge, client, name }) {
    const work = async (leases: Lease[]): Promise<void> => {
      for (const lease of leases) checkLease(judge, lease, TTL_MS)
    }
    const options = { timeoutSeconds: TTL_MS / 1_000, heartbeat: false }
    await judge.settles('withLocks', () => client.lock.withLocks([name, `${name}.2`], work, options))
  },
  async share(subject) {
    const { library, client, name } = subject
    if (!client.driver.capabilities.shared) return
    const readers = new library.ReadWriteLock(settingsOf(client.driver))
    const lease = await take(subject, 'acquireRead', () => readers.acquireRead(name, TERMS), TTL_MS)
    await end(subject, lease, readers)
  },
  async permit(subject) {
    const { library, client, name, draw } = subject
    if (!client.driver.capabilities.limit) return
    const semaphore = new library.Semaphore({ ...settingsOf(client.driver), limit: 3 })
    const options = { ...TERMS, permits: draw.whole(1, 3) }
    const lease = await take(subject, 'acquire a permit', () => semaphore.acquire(name, options), TTL_MS)
    await end(subject, lease, semaphore)
  },
  async force(subject) {
    const { judge, client, name, other } = subject
    if (client.driver.capabilities.force !== 'claim') return
    await other.acquire(name, TERMS).catch(() => {})
    await judge.settles('forceRelease', () => client.lock.forceRelease(name, { by: 'the fuzzer' }))
  },
  async rate({ library, judge, client, name, draw }) {
    if (!client.driver.capabilities.rate) return
    const limits = [{ limit: 5, periodSeconds: 1 }, ...(draw.chance(0.5) ? [{ limit: 50, periodSeconds: 60 }] : [])]
    const limiter = new library.RateLimiter({ driver: client.driver, callTimeoutSeconds: CALL_SECONDS, limits })
    const costs = [1, draw.whole(1, 5), 1]
    const results = costs.map((cost) => judge.settles('consume', () => limiter.consume(name, { cost })))
    for (const result of await Promise.all(results)) checkRate(judge, result)
    checkRate(judge, await judge.settles('peek', () => limiter.peek(name)))
    if (draw.chance(0.3)) await judge.settles('block', () => limiter.block(name, 1))
    if (draw.chance(0.3)) await judge.settles('reset', () => limiter.reset(name))
    await judge.settles('close', () => limiter.close())
  },
  async once({ library, judge, client, name }) {
    if (!client.driver.capabilities.metadata) return
    const jobs = new library.OnceOnly(settingsOf(client.driver))
    const options = { forSeconds: 1, timeoutSeconds: 0.6, blockingTimeoutSeconds: 0.3 }
    await judge.settles('once', () => jobs.once(name, () => 7, options))
    await judge.settles('once', () => jobs.once(name, () => 8, options))
    await judge.settles('forget', () => jobs.forget(name))
    await judge.settles('close', () => jobs.close())
  },
  async lead({ library, judge, client, name }) {
    const election = new library.LeaderElection({ ...settingsOf(client.driver), name, timeoutSeconds: 0.6 })
    await judge.settles('campaign', () => election.campaign({ blockingTimeoutSeconds: 0.2 }))
    const leader = await judge.settles('leader', () => election.leader())
    if (leader) judge.check(Number.isFinite(leader.since.getTime()), () => `a leader since ${String(leader.since)}`)
    await judge.settles('resign', () => election.resign())
    await judge.settles('close', () => election.close())
  },
  async restore(subject) {
    const { judge, client, name } = subject
    const lease = await take(subject, 'acquire', () => client.lock.acquire(name, TERMS), TTL_MS)
    const text = lease && (await judge.settles('serialize', () => lease.serialize()))
    if (text === undefined) return
    const restored = await judge.settles('restore', () => client.lock.restore(text))
    if (restored === undefined) return
    checkLease(judge, restored, TTL_MS)
    await judge.settles('release', () => restored.release())
  },
  ping: async ({ judge, client }) => void (await judge.settles('ping', () => client.lock.ping())),
}

async function acquire(subject: Subject): Promise<void> {
  const { judge, client, name, draw } = subject
  const metadata = client.driver.capabilities.metadata && { metadata: { job: 'fuzz', list: [1, null] } }
  const lease = await take(subject, 'acquire', () => client.lock.acquire(name, { ...TERMS, ...metadata }), TTL_MS)
  if (lease !== undefined && draw.chance(0.7)) await judge.settles('release', () => lease.release())
}

async function wait(subject: Subject): Promise<void> {
  const { judge, client, other, name } = subject
  const held = await other.acquire(name, { timeoutSeconds: 5 }).catch(() => undefined)
  const options = { ...TERMS, blockingTimeoutSeconds: 0.9 }
  const waiting = take(subject, 'wait', () => client.lock.acquire(name, options), TTL_MS)
  await pause(150)
  checkInspection(judge, await judge.settles('inspect a queue', () => client.lock.inspect(name)))
  if (held?.acquired) await held.lock.release().catch(() => {})
  const lease = await waiting
  if (lease !== undefined) await judge.settles('release', () => lease.release())
}

async function take(
  { judge }: Subject,
  what: string,
  call: () => ReturnType<DistributedLock['acquire']>,
  ttlMs: number,
): Promise<Lease | undefined> {
  return checkResult(judge, await judge.settles(what, call), ttlMs)
}

async function end({ judge }: Subject, lease: Lease | undefined, primitive: { close(): Promise<void> }): Promise<void> {
  if (lease !== undefined) await judge.settles('release', () => lease.release())
  await judge.settles('close', () => primitive.close())
}

/** An advisory lock lasts as long as its connection, and its holder ends it in time. */
const isTimed = ({ client }: Subject): boolean => client.driver.capabilities.expiry === 'ttl'

export const settingsOf = (driver: Driver) => ({ driver, callTimeoutSeconds: CALL_SECONDS, waiterTtlSeconds: 0.9 })

/** A timer counts from the beginning of the turn in which it was set, which may be long ago on a busy machine. */
async function pauseAtLeast(ms: number): Promise<void> {
  const startedAt = performance.now()
  while (performance.now() - startedAt < ms) await pause(10)
}

/** Short, because many cases wait for it. */
export const CALL_SECONDS = 0.4
export const TTL_MS = 600
const TERMS: LockOptions = { timeoutSeconds: TTL_MS / 1_000 }
const SHORT: LockOptions = { timeoutSeconds: 0.1 }
