// One client process: several tasks that contend for a few lock names. clients.ts starts it with the test harness, and
// calls its exported functions. It writes everything that happens to the history at once.
import type { Lease, DistributedLock as Lock } from 'holdfast'
import { openLock, type StoreSettings } from './connect.ts'
import { Draw } from './draw.ts'
import { HistoryWriter, nowMs } from './history.ts'
import { RecordClient } from './record-client.ts'

export interface ClientSettings extends StoreSettings {
  /** The file of the history. */
  file: string
  seed: string
  /** Clients in Python run worker.py, which does the same as this file. */
  language: 'node' | 'python'
  /** Where the records are that a holder increments: see record.ts. Absent: it only holds its lock. */
  recordPort?: number
  names: string[]
  tasks: number
}

/** The interval between two checks of a lease while it is held. */
const LOOK_EVERY_MS = 10
/** The codes of errors that are expected under faults. */
const EXPECTED_CODES = ['STORE_UNAVAILABLE', 'ABORTED']

let stopping: AbortController | undefined
let tasks: Promise<unknown>[] = []
let lock: Lock | undefined
let history: HistoryWriter | undefined
let record: RecordClient | undefined
const queued = new Map<string, Promise<number>>()

export async function start(settings: ClientSettings): Promise<void> {
  const stop = new AbortController()
  const writer = new HistoryWriter(settings.file)
  const opened = await openLock(settings)
  const looks = new Looks(writer)
  if (settings.recordPort !== undefined) record = new RecordClient(settings.recordPort)
  history = writer
  lock = opened
  stopping = stop
  tasks = Array.from({ length: settings.tasks }, (_, task) =>
    run({
      lock: opened,
      history: writer,
      looks,
      task,
      settings,
      draw: new Draw(`${settings.seed}/${task}`),
      stop: stop.signal,
    }),
  )
}

/** Ends every task: gives up waiting claims, and releases leases. Resolves when all tasks have ended. */
export async function quiet(): Promise<void> {
  stopping?.abort()
  await Promise.all(tasks)
}

/** Waits for a lock in the background, and releases it when it is granted. */
export function queue(name: string): void {
  const wait = async (): Promise<number> => {
    const lease = await lock?.hold(name, { blockingTimeoutSeconds: 60 })
    await lease?.release()
    return lease?.fencingToken ?? 0
  }
  queued.set(name, wait())
}

/** The token with which `queue` was granted its lock. */
export async function queuedToken(name: string): Promise<number> {
  return (await queued.get(name)) ?? 0
}

export async function stop(): Promise<void> {
  await quiet()
  await lock?.close().catch((error: unknown) => noteError('close', error))
  record?.close()
  history?.close()
}

/** Blocks the event loop, as a long computation would, without using the processor. */
export function block(forMs: number): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, forMs)
}

interface Task {
  lock: Lock
  history: HistoryWriter
  looks: Looks
  task: number
  settings: ClientSettings
  draw: Draw
  stop: AbortSignal
}

async function run(task: Task): Promise<void> {
  const { draw, stop } = task
  while (!stop.aborted) {
    await once(task)
    await pause(draw.between(1, 80), stop)
  }
}

/** Makes one claim, and uses its lease. */
async function once(task: Task): Promise<void> {
  const { lock, history, looks, draw, stop, settings } = task
  const name = draw.one(settings.names)
  const ttlSeconds = draw.between(settings.ttlSeconds.least, settings.ttlSeconds.most)
  const waits = draw.chance(0.7)
  const gaveUp = new AbortController()
  const signal = AbortSignal.any([stop, gaveUp.signal])
  const givesUp = waits && draw.chance(0.1) ? setTimeout(() => gaveUp.abort(), draw.between(5, 2_000)) : undefined
  const heartbeat = draw.chance(0.7)
  const plan = { name, ttlSeconds, heartbeat, holdMs: holdMs(draw, ttlSeconds), extends: draw.chance(0.15) }
  // One in twenty leases without a heartbeat is left to expire.
  const isLeft = !heartbeat && draw.chance(0.05)

  history.claim()
  const askedAt = nowMs()
  let lease: Lease
  try {
    const result = await lock.acquire(name, {
      timeoutSeconds: ttlSeconds,
      heartbeat,
      signal,
      ...(waits ? { blocking: true, blockingTimeoutSeconds: draw.between(1, 12) } : { blocking: false }),
    })
    if (!result.acquired) {
      history.refused()
      return
    }
    lease = result.lock
  } catch (error) {
    noteError('acquire', error)
    return
  } finally {
    clearTimeout(givesUp)
  }
  const knownAt = nowMs()
  const look = looks.begin(task.task, lease, {
    name,
    token: lease.fencingToken,
    ttlMs: ttlSeconds * 1_000,
    askedAt,
    knownAt,
    ...(lease.held && { heldUntil: knownAt }),
    ...(settings.confirmed && { confirmed: true }),
  })
  try {
    // Also if the lease is lost meanwhile: the record has to refuse such a write by its token.
    await record?.increment(name, lease.fencingToken, () =>
      pause(
        draw.weighted([
          [draw.between(0, 10), 9],
          [draw.between(0, 1_000), 1],
        ]),
      ),
    )
    await holdFor(task, look, plan.extends, isLeft ? Number.POSITIVE_INFINITY : plan.holdMs)
    if (look.look()) {
      look.end('released')
      await lease.release().catch((error: unknown) => noteError('release', error))
    } else {
      look.end('lost')
    }
  } finally {
    looks.forget(look)
  }
}

/** Most holds are short, so that locks change hands. Some are longer than the lease, so that it is renewed or lost. */
function holdMs(draw: Draw, ttlSeconds: number): number {
  const most = draw.weighted([
    [100, 24],
    [1_000, 8],
    [ttlSeconds * 1_300, 1],
  ])
  return draw.between(2, most)
}

async function holdFor({ draw, stop, settings }: Task, look: Look, isExtended: boolean, ms: number): Promise<void> {
  const { lease } = look
  const firstMs = isExtended ? draw.between(0, Math.min(ms, 500)) : ms
  await pause(firstMs, stop, lease.signal)
  if (!isExtended || stop.aborted || !lease.held) return
  const { least, most } = settings.ttlSeconds
  await lease.extend(draw.between(least, most)).catch((error: unknown) => noteError('extend', error))
  await pause(ms - firstMs, stop, lease.signal)
}

/** A lease that is checked while it is held. */
class Look {
  readonly lease: Lease
  readonly task: number
  readonly #history: HistoryWriter
  readonly #number: number
  #heldUntil: number | undefined
  #isOver = false

  constructor(history: HistoryWriter, task: number, lease: Lease, grant: Parameters<HistoryWriter['grant']>[0]) {
    this.lease = lease
    this.task = task
    this.#history = history
    this.#heldUntil = grant.heldUntil
    this.#number = history.grant(grant)
  }

  /** Reads the clock first: a process that is paused in between must not count as a holder afterwards. */
  look(): boolean {
    const atMs = nowMs()
    if (!this.lease.held) {
      this.#isOver = true
      return false
    }
    if (this.#isOver || this.lease.signal.aborted) this.#history.resurrected(this.#number)
    this.#heldUntil = atMs
    this.#history.held(this.task, this.#number, atMs)
    return true
  }

  /** Must be called before a release is sent: from then on the lease is not relied on. */
  end(how: 'released' | 'lost'): void {
    this.#history.end(this.#number, how, this.#heldUntil)
  }
}

/** One timer for all leases of the process. */
class Looks {
  readonly #history: HistoryWriter
  readonly #all = new Set<Look>()
  #timer: NodeJS.Timeout | undefined

  constructor(history: HistoryWriter) {
    this.#history = history
  }

  begin(task: number, lease: Lease, grant: Parameters<HistoryWriter['grant']>[0]): Look {
    const look = new Look(this.#history, task, lease, grant)
    this.#all.add(look)
    this.#timer ??= setInterval(() => {
      for (const each of this.#all) each.look()
    }, LOOK_EVERY_MS)
    return look
  }

  forget(look: Look): void {
    this.#all.delete(look)
    if (this.#all.size > 0) return
    clearInterval(this.#timer)
    this.#timer = undefined
  }
}

function noteError(where: string, error: unknown): void {
  const code = (error as { code?: unknown } | null)?.code
  const isExpected = typeof code === 'string' && EXPECTED_CODES.includes(code)
  const text = error instanceof Error ? `${where}: ${error.name}: ${error.message}` : `${where}: ${String(error)}`
  history?.error(where, typeof code === 'string' ? code : 'none', isExpected ? undefined : text)
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
