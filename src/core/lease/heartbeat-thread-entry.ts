/** The worker's side of `heartbeat-thread.ts`: the same heartbeat, with its own driver and its own event loop. */
import { parentPort, workerData } from 'node:worker_threads'
import type { Driver, LeaseRef } from '../driver.ts'
import { Emitter } from '../events.ts'
import { messageOf } from '../foreign-errors.ts'
import { StoreClient } from '../store/store-client.ts'
import { isPast, systemClock } from '../time/clock.ts'
import { queueMicrotask } from '../time/native-time.ts'
import { systemRandom } from '../time/random.ts'
import { Scheduler } from '../time/scheduler.ts'
import { createHeartbeat, type LocalHeartbeat, type LocalRenewer } from './local-renewer.ts'
import { type Loss, NOT_RENEWED, type Renewable, type RenewMode } from './renewer.ts'
import { publishDeadline, publishLoss, type Slot } from './shared-deadlines.ts'
import type { FromWorker, RenewRequest, ToWorker, WorkerStart } from './thread-messages.ts'

const { reopen, callTimeoutMs, stalledAfterMs, lastAlive } = workerData as WorkerStart
const clock = systemClock
const random = systemRandom
const events = new Emitter()
const scheduler = new Scheduler(clock, random)
const leases = new Map<string, WorkerLease>()

/** Messages that arrive while the driver is being opened. */
const early: ToWorker[] = []
let receive = (message: ToWorker): void => {
  early.push(message)
}
parentPort?.on('message', (message: ToWorker) => receive(message))

let heartbeat: LocalHeartbeat

async function openHeartbeat(): Promise<LocalHeartbeat> {
  const module = (await import(
    /* webpackIgnore: true */ /* turbopackIgnore: true */ /* @vite-ignore */ reopen.module
  )) as Record<string, (...args: readonly unknown[]) => Promise<Driver>>
  const driver = await (module[reopen.name] as (...args: readonly unknown[]) => Promise<Driver>)(...reopen.args)
  return createHeartbeat({
    clock,
    random,
    store: new StoreClient(driver, { clock, random, callTimeoutMs }),
    scheduler,
    events,
    onDeadline: (lease, deadline) => publishDeadline((lease as WorkerLease).slot, deadline),
    // A main thread that hangs must not keep its locks: its leases expire unless it runs again before that.
    isPaused: () => clock.now().monotonicMs - Number(Atomics.load(lastAlive, 0)) >= stalledAfterMs,
  })
}

class WorkerLease implements Renewable {
  readonly slot: Slot
  readonly ttlMs: number
  readonly ref: Required<LeaseRef>
  readonly #renewer: LocalRenewer
  #ended = false

  constructor({ slot, ref, ttlMs, start, maxHoldMs }: ToWorker & { type: 'start' }) {
    this.slot = slot
    this.ref = ref
    this.ttlMs = ttlMs
    this.#renewer = heartbeat.createRenewer(this, start, { heartbeat: true, maxHoldMs })
  }

  get eventBase() {
    const { lockName, claimId, fencingToken } = this.ref
    return { lockName, claimId, fencingToken, holderId: '' }
  }

  get held(): boolean {
    if (!this.#ended && isPast(this.#renewer.deadline, clock.now())) this.lose(NOT_RENEWED)
    return !this.#ended
  }

  async renew(ttlMs: number, mode: RenewMode | 'confirm'): Promise<boolean> {
    if (mode !== 'confirm') return this.#renewer.renew(ttlMs, mode)
    // For no less than the main thread knows of.
    return (await this.#renewer.confirm(ttlMs)) === true && this.held
  }

  lose({ kind, message }: Loss): void {
    if (this.#ended) return
    publishLoss(this.slot, { kind, message })
    void this.end()
    // Without the cause, which may be something that cannot be sent to another thread.
    post({ type: 'lost', id: this.ref.claimId, loss: { kind, message } })
  }

  end(): Promise<unknown> | undefined {
    this.#ended = true
    leases.delete(this.ref.claimId)
    return this.#renewer.end()
  }

  /** The shortest TTL that was sent and never answered. */
  get unansweredMs(): number {
    return this.#renewer.unansweredMs
  }
}

const post = (message: FromWorker): void => parentPort?.postMessage(message)

function handle(message: ToWorker): void {
  if (message.type === 'start') leases.set(message.ref.claimId, new WorkerLease(message))
  else if (message.type === 'renew') void renew(message)
  else {
    // `ended` is sent only when no renewal of the lease is in flight. The main thread then gives the slot to another
    // lease, and may send a last request for this lease itself.
    const lease = leases.get(message.id)
    const ended = lease?.end() ?? Promise.resolve()
    void ended.then(() => post({ type: 'ended', id: message.id, unansweredMs: lease?.unansweredMs }))
  }
}

async function renew({ id, call, ttlMs, mode }: RenewRequest): Promise<void> {
  try {
    post({ type: 'renew answer', call, renewed: (await leases.get(id)?.renew(ttlMs, mode)) ?? false })
  } catch (error) {
    post({ type: 'renew answer', call, renewed: false, error: messageOf(error) })
  }
}

events.on('renewed', ({ claimId, tookMs }) => post({ type: 'renewed', id: claimId, tookMs }))

events.on('renewalFailed', ({ claimId, error }) => {
  post({ type: 'renewal failed', id: claimId, error: messageOf(error) })
})

// Not a top-level await: CommonJS has none, and minifiers reject it in a file that they take for a script.
openHeartbeat().then(
  (opened) => {
    heartbeat = opened
    post({ type: 'opened' })
    receive = handle
    for (const message of early) receive(message)
  },
  (error: unknown) => {
    // Outside of the promise: it must end the thread with every value of `--unhandled-rejections`.
    queueMicrotask(() => {
      throw error
    })
  },
)
