/** The worker's side of `renewer-thread.ts`: the same heartbeat, on a driver and an event loop of its own. */
import { parentPort, workerData } from 'node:worker_threads'
import type { Driver, LeaseRef } from '../driver.ts'
import { Emitter } from '../events.ts'
import { StoreClient } from '../store/store-client.ts'
import { isPast, systemClock } from '../time/clock.ts'
import { systemRandom } from '../time/random.ts'
import { Scheduler } from '../time/scheduler.ts'
import { createHeartbeat, type Extent, NOT_RENEWED, type Renewable, type Renewer } from './renewer.ts'
import type { FromWorker, ToWorker, WorkerStart } from './renewer-messages.ts'
import { publishDeadline, type Slot } from './shared-deadlines.ts'

const { reopen, callTimeoutMs, stalledAfterMs, life } = workerData as WorkerStart
const clock = systemClock
const random = systemRandom
const events = new Emitter()
const scheduler = new Scheduler(clock, random)
const leases = new Map<string, WorkerLease>()

/** What came while the driver was being opened. */
const early: ToWorker[] = []
let hear = (message: ToWorker): void => {
  early.push(message)
}
parentPort?.on('message', (message: ToWorker) => hear(message))

const module = (await import(/* webpackIgnore: true */ /* @vite-ignore */ reopen.module)) as Record<
  string,
  (...args: readonly unknown[]) => Promise<Driver>
>
const driver = await (module[reopen.name] as (...args: readonly unknown[]) => Promise<Driver>)(...reopen.args)
const store = new StoreClient(driver, { clock, random, callTimeoutMs })
const heartbeat = createHeartbeat({
  clock,
  random,
  store,
  scheduler,
  events,
  onMoved: (lease, deadline) => publishDeadline((lease as WorkerLease).slot, deadline),
  // A thread that hangs must not keep its locks: the lease runs out, unless the thread comes back before that.
  isPaused: () => clock.now().monotonicMs - Number(Atomics.load(life, 0)) >= stalledAfterMs,
})

class WorkerLease implements Renewable {
  readonly slot: Slot
  readonly ttlMs: number
  readonly ref: LeaseRef & { readonly fencingToken: number }
  readonly #renewer: Renewer
  #ended = false

  constructor({ slot, ref, ttlMs, start, maxHoldMs }: ToWorker & { type: 'keep' }) {
    this.slot = slot
    this.ref = ref
    this.ttlMs = ttlMs
    this.#renewer = heartbeat.keep(this, start, { heartbeat: true, maxHoldMs })
  }

  get eventBase() {
    const { lockName, claimId, fencingToken } = this.ref
    return { lockName, claimId, fencingToken, holderId: '' }
  }

  get held(): boolean {
    if (!this.#ended && isPast(this.#renewer.deadline, clock.now())) this.lose(NOT_RENEWED)
    return !this.#ended
  }

  renew(ttlMs: number, how: Extent): Promise<boolean> {
    return this.#renewer.renew(ttlMs, how)
  }

  check(): void {
    this.#renewer.check()
  }

  lose(reason: string): void {
    if (this.#ended) return
    // Where the main thread looks: `held` is false there at once, before any message arrives.
    publishDeadline(this.slot, LONG_AGO)
    void this.end()
    post({ type: 'lost', id: this.ref.claimId, reason })
  }

  end(): Promise<unknown> | undefined {
    this.#ended = true
    leases.delete(this.ref.claimId)
    return this.#renewer.end()
  }
}

const LONG_AGO = { monotonicMs: 0, wallMs: 0 }

const post = (message: FromWorker): void => parentPort?.postMessage(message)

hear = (message) => {
  if (message.type === 'keep') leases.set(message.ref.claimId, new WorkerLease(message))
  else if (message.type === 'renew') void renew(message)
  else if (message.type === 'check') leases.get(message.id)?.check()
  else {
    // Said only when nothing of it is under way any more: from then on its slot is another's, and its last word is the main thread's.
    const ended = leases.get(message.id)?.end() ?? Promise.resolve()
    void ended.then(() => post({ type: 'ended', id: message.id }))
  }
}

async function renew({ id, call, ttlMs, how }: ToWorker & { type: 'renew' }): Promise<void> {
  try {
    post({ type: 'renewed', call, renewed: (await leases.get(id)?.renew(ttlMs, how)) ?? false })
  } catch (error) {
    post({ type: 'renewed', call, renewed: false, error: error instanceof Error ? error.message : String(error) })
  }
}

events.on('renewed', ({ claimId }) => post({ type: 'kept', id: claimId }))

events.on('renewalFailed', ({ claimId, error }) => {
  post({ type: 'failed', id: claimId, error: error instanceof Error ? error.message : String(error) })
})

for (const message of early) hear(message)
