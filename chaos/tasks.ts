import type { LockOptions, LockResult, Term } from 'holdfast'
import type { ClientSettings, Kept, Work } from './client-settings.ts'
import type { Draw } from './draw.ts'
import { type ClaimKind, nowMs, type Share } from './history.ts'
import type { HistoryWriter } from './history-writer.ts'
import { NAMES, PERMITS, RATE, type Store } from './open-store.ts'
import type { RecordClient } from './record-client.ts'
import type { Held, Watch, Watches } from './watch.ts'

/** One task of a client process, which makes one claim after another. */
export interface Task {
  store: Store
  work: Readonly<Record<Work, number>>
  history: HistoryWriter
  watches: Watches
  /** When the store has refused a claim for the first time, by the fencing token that it got later. */
  waitingSince(name: string, token: number): number | undefined
  record: RecordClient | undefined
  task: number
  settings: ClientSettings
  draw: Draw
  stop: AbortSignal
  /** Counts an error, and returns its code. */
  noteError(where: string, error: unknown): string
}

export async function runTask(task: Task): Promise<void> {
  const { draw, stop, work } = task
  const kinds = Object.entries(work) as [Work, number][]
  while (!stop.aborted) {
    await DO[draw.weighted(kinds)](task)
    await pause(draw.between(1, 80), stop)
  }
}

/** Holds what no other client claims, until the store has lost it, and then again. */
export async function keep(task: Task, { name, kind }: Kept): Promise<void> {
  const { store, stop, draw, settings } = task
  const share: Share = {
    ...(kind !== 'lock' && { mode: 'shared' }),
    ...(kind === 'permits' && { limit: PERMITS, permits: 1 }),
  }
  const ask = (options: LockOptions): Promise<LockResult> | undefined => {
    if (kind === 'read') return store.sharing?.acquireRead(name, options)
    return kind === 'permits' ? store.permits?.acquire(name, options) : store.lock.acquire(name, options)
  }
  while (!stop.aborted) {
    const terms = {
      ttlSeconds: settings.ttlSeconds.most,
      waitSeconds: 10,
      heartbeat: true,
      isBySignal: draw.chance(0.5),
    }
    await claim(
      task,
      { name, kind: 'keep', ...share },
      async (options) => ask(options)?.then(heldOf),
      terms,
      (watch) => pause(Number.POSITIVE_INFINITY, stop, watch.signal),
    )
    await pause(100, stop)
  }
}

const DO: Record<Work, (task: Task) => Promise<void>> = {
  async lock(task) {
    const name = task.draw.one(task.settings.names)
    const ask = (options: LockOptions): Promise<Answer> => task.store.lock.acquire(name, options).then(heldOf)
    await once(task, { name, kind: 'lock' }, ask)
  },

  async sharing(task) {
    const { sharing, lock } = task.store
    const [name, kind] = [NAMES.sharing, task.draw.weighted(READ_OR_WRITE)]
    const ask = (options: LockOptions): Promise<Answer | undefined> | undefined => {
      if (kind === 'read') return sharing?.acquireRead(name, options).then(heldOf)
      // A writer and a lock make the same claim.
      return (kind === 'write' ? sharing?.acquireWrite(name, options) : lock.acquire(name, options))?.then(heldOf)
    }
    await once(task, { name, kind, ...(kind === 'read' && { mode: 'shared' }) }, async (options) => ask(options))
  },

  async permits(task) {
    const name = NAMES.permits
    const permits = task.draw.whole(1, 2)
    const share: Share = { mode: 'shared', limit: PERMITS, permits }
    await once(task, { name, kind: 'permits', ...share }, async (options) =>
      task.store.permits?.acquire(name, { ...options, permits }).then(heldOf),
    )
  },

  async election(task) {
    const ask = async ({ signal, blockingTimeoutSeconds }: LockOptions): Promise<Answer | undefined> => {
      const campaigning = { ...(signal && { signal }), blockingTimeoutSeconds: blockingTimeoutSeconds ?? 0 }
      try {
        const term = await task.store.election?.campaign(campaigning)
        return term && { held: termOf(term) }
      } catch (error) {
        if ((error as { code?: unknown }).code === 'NOT_ACQUIRED') return { held: undefined }
        throw error
      }
    }
    await once(task, { name: NAMES.election, kind: 'election' }, ask)
  },

  async rate({ store, draw, history, noteError }) {
    const cost = draw.whole(1, 2)
    const askedAt = nowMs()
    let allowed: boolean | string
    try {
      allowed = (await store.rate?.consume(NAMES.rate, { cost }))?.allowed ?? false
    } catch (error) {
      allowed = noteError('consume', error)
    }
    const { limit, burst, periodSeconds } = RATE
    const step = { name: NAMES.rate, cost, limit, burst, periodMs: periodSeconds * 1_000, askedAt }
    history.rate({ ...step, answeredAt: nowMs(), allowed })
  },
}

const READ_OR_WRITE = [
  ['read', 6],
  ['write', 2],
  ['lock', 1],
] as const

interface Answer {
  held: Held | undefined
}

const heldOf = (result: LockResult): Answer => ({ held: result.acquired ? result.lock : undefined })

/** A term as a lease. */
function termOf(term: Term): Held {
  return {
    fencingToken: term.fencingToken,
    signal: term.signal,
    get held() {
      return term.held
    },
    get remainingSeconds() {
      return term.remainingSeconds
    },
    release: () => term.resign(),
  }
}

type What = { name: string; kind: ClaimKind } & Share
type Ask = (options: LockOptions) => Promise<Answer | undefined>

/** Makes one claim, and uses its lease. */
async function once(task: Task, what: What, ask: Ask): Promise<void> {
  const { draw, settings } = task
  const { least, most } = settings.ttlSeconds
  const isElection = what.kind === 'election'
  const ttlSeconds = isElection ? most : draw.between(least, most)
  const waitSeconds = draw.chance(0.7) ? draw.between(1, 12) : 0
  const heartbeat = isElection || draw.chance(0.7)
  const isBySignal = draw.chance(0.5)
  const abortsAfterMs = waitSeconds > 0 && draw.chance(0.1) ? draw.between(5, 2_000) : undefined
  const terms = { ttlSeconds, waitSeconds, heartbeat, isBySignal, abortsAfterMs }
  await claim(task, what, ask, terms, async (watch) => {
    if (what.kind === 'lock' && what.name !== NAMES.sharing) {
      await updateRecords(task, what.name, watch, ttlSeconds * 1_000)
    }
    // One in ten leases without a heartbeat is left to expire.
    const isLeft = !heartbeat && draw.chance(0.1)
    await holdFor(task, watch, isLeft ? Number.POSITIVE_INFINITY : holdMs(draw, ttlSeconds))
  })
}

interface Terms {
  ttlSeconds: number
  /** 0: it does not wait. */
  waitSeconds: number
  heartbeat: boolean
  /** The holder looks at the signal alone. */
  isBySignal: boolean
  abortsAfterMs?: number | undefined
}

/** Makes a claim, and releases its lease after `use`. */
async function claim(
  task: Task,
  what: What,
  ask: Ask,
  { ttlSeconds, waitSeconds, heartbeat, isBySignal, abortsAfterMs }: Terms,
  use: (watch: Watch) => Promise<void>,
): Promise<void> {
  const { history, watches, stop, settings } = task
  const ttlMs = ttlSeconds * 1_000
  const askedAt = nowMs()
  const number = history.claim({ ...what, ttlMs, askedAt, waitMs: waitSeconds * 1_000 })
  const aborting = abortable(stop, abortsAfterMs, () => history.abort(number, nowMs()))
  const answered = (outcome: 'granted' | 'refused' | 'aborted' | 'failed', code?: string): number => {
    const atMs = nowMs()
    history.answer(number, atMs, outcome, code)
    return atMs
  }
  let lease: Held | undefined
  try {
    const waiting = waitSeconds > 0 ? { blocking: true, blockingTimeoutSeconds: waitSeconds } : { blocking: false }
    lease = (await ask({ timeoutSeconds: ttlSeconds, heartbeat, signal: aborting.signal, ...waiting }))?.held
  } catch (error) {
    const code = task.noteError('acquire', error)
    answered(code === 'ABORTED' ? 'aborted' : 'failed', code)
    return
  } finally {
    aborting.end()
  }
  if (lease === undefined) {
    answered('refused')
    return
  }
  const knownAt = answered('granted')
  const waitingAt = task.waitingSince(what.name, lease.fencingToken)
  if (waitingAt !== undefined) history.waiting(number, waitingAt)
  const grant = {
    ...what,
    claim: number,
    token: lease.fencingToken,
    ttlMs,
    askedAt,
    knownAt,
    renewals: [],
    ...(lease.held && { heldUntil: knownAt }),
    ...(settings.confirmed && { confirmed: true }),
  }
  const watch = watches.begin(task.task, lease, grant, isBySignal)
  try {
    await use(watch)
    await watch.release((error) => task.noteError('release', error))
  } finally {
    watches.forget(watch)
  }
}

/**
 * Adds 1 to a record that checks the fencing token before the read, and to one that checks nothing. It writes even if
 * the lease is lost meanwhile: the first record has to refuse such a write. The process stalls now and then, before its
 * last check of the lease or after it.
 */
async function updateRecords({ record, draw }: Task, name: string, watch: Watch, ttlMs: number): Promise<void> {
  if (record === undefined) return
  const token = watch.lease.fencingToken
  const stall = draw.weighted(STALLS)
  const forMs = stall === 'none' ? draw.between(0, 10) : draw.between(0.2, 1.5) * ttlMs
  const guarded = await record.read(name, token)
  const unguarded = await record.read(name)
  if (stall !== 'blocked after the check') await (stall === 'blocked' ? block(forMs) : pause(forMs))
  const isHeld = watch.look()
  if (stall === 'blocked after the check') block(forMs)
  if (unguarded !== undefined) await record.write(name, { from: unguarded, isHeld })
  if (guarded !== undefined) await record.write(name, { from: guarded, isHeld, token })
}

const STALLS = [
  ['none', 90],
  ['paused', 7],
  ['blocked', 1.5],
  ['blocked after the check', 1.5],
] as const

/** Most holds are short, so that locks change hands. Some are longer than the lease, so that it is renewed or lost. */
function holdMs(draw: Draw, ttlSeconds: number): number {
  const most = draw.weighted([
    [100, 24],
    [1_000, 8],
    [ttlSeconds * 1_300, 1],
  ])
  return draw.between(2, most)
}

async function holdFor({ draw, stop, settings, noteError }: Task, watch: Watch, ms: number): Promise<void> {
  const { lease } = watch
  const isExtended = draw.chance(0.15)
  const firstMs = isExtended ? draw.between(0, Math.min(ms, 500)) : ms
  await pause(firstMs, stop, watch.signal)
  if (!isExtended || stop.aborted || watch.signal.aborted || !('extend' in lease)) return
  const { least, most } = settings.ttlSeconds
  const extend = lease.extend as (seconds: number) => Promise<boolean>
  const extending = extend.call(lease, draw.between(least, most))
  // From now on the lease may end sooner than before.
  watch.confirmed()
  await extending.then(() => watch.confirmed()).catch((error: unknown) => noteError('extend', error))
  await pause(ms - firstMs, stop, watch.signal)
}

/** A signal that aborts with `stop`, or after `afterMs`. */
function abortable(stop: AbortSignal, afterMs: number | undefined, onAbort: () => void) {
  const own = new AbortController()
  const abort = (): void => {
    onAbort()
    own.abort()
  }
  const timer = afterMs === undefined ? undefined : setTimeout(abort, afterMs)
  stop.addEventListener('abort', abort)
  const end = (): void => {
    clearTimeout(timer)
    stop.removeEventListener('abort', abort)
  }
  return { signal: own.signal, end }
}

/** Blocks the event loop, as a long computation would, without using the processor. */
export function block(forMs: number): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, forMs)
}

/** Resolves after `ms`, or when one of the signals aborts. */
function pause(ms: number, ...signals: AbortSignal[]): Promise<void> {
  return new Promise((resolve) => {
    const done = (): void => {
      clearTimeout(timer)
      for (const signal of signals) signal.removeEventListener('abort', done)
      resolve()
    }
    const timer = setTimeout(done, Math.min(ms, 2 ** 31 - 1))
    for (const signal of signals) signal.addEventListener('abort', done)
    if (signals.some(({ aborted }) => aborted)) done()
  })
}
