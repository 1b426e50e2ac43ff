import type { Claim, Driver, DriverListener, Grant } from '../core/driver.ts'
import { StoreError } from '../core/errors.ts'
import type { SeededRandom, VirtualClock, VirtualTime } from './virtual-clock.ts'

/** Least and most, in milliseconds. */
export type Span = readonly [least: number, most: number]

/** What the network does to a call. Probabilities are fractions of all calls. */
export interface Faults {
  readonly requestMs: Span
  readonly replyMs: Span
  readonly wakeMs: Span
  /** The store never sees it. */
  readonly lostRequest: number
  /** The store does it, and no reply comes back. */
  readonly lostReply: number
  /** The store sees it after `lateMs`, when the caller may have given up long ago. */
  readonly lateRequest: number
  readonly lateReply: number
  /** The connection fails at once. */
  readonly failing: number
  /** One entry of the answer is an error, although the store did what the entry asked for. */
  readonly entryFails: number
  readonly lostWake: number
  readonly lateMs: Span
}

export const noFaults: Faults = {
  requestMs: [0, 0],
  replyMs: [0, 0],
  wakeMs: [0, 0],
  lostRequest: 0,
  lostReply: 0,
  lateRequest: 0,
  lateReply: 0,
  failing: 0,
  entryFails: 0,
  lostWake: 0,
  lateMs: [0, 0],
}

/**
 * Which kind of store it acts as. `queue` has a queue and wakes its waiters. `hands over` grants the lock to the next
 * waiter by itself. `wakes` notifies all waiters that a lock is free. `silent` has neither queue nor wake-ups.
 */
export type DriverMode = 'queue' | 'hands over' | 'wakes' | 'silent'

export interface FaultyDriverOptions {
  readonly time: VirtualTime
  /** The clock of the process that uses this driver. */
  readonly clock: VirtualClock
  readonly random: SeededRandom
  /** Called for every call, so that faults can come and go. */
  readonly faults: () => Faults
  readonly mode: DriverMode
}

export interface FaultyDriver extends Driver {
  /** The subscription breaks off. */
  breakSubscription(): void
}

/**
 * A driver whose calls meet the faults of a network: delays, lost requests and replies, errors. It runs in virtual time
 * and from a seed, so a failure can be replayed.
 */
export function faultyDriver(inner: Driver, options: FaultyDriverOptions): FaultyDriver {
  const { time, clock, random, faults, mode } = options
  const queues = mode === 'queue' || mode === 'hands over'
  /** Claims that wait in the store, for a store that grants by itself. */
  const waiting = new Map<string, Claim>()
  const subscriptions = new Set<Subscription>()

  function call<Answer>(send: () => Promise<Answer>): Promise<Answer> {
    const { requestMs, replyMs, lateMs } = faults()
    const fate = fateOf(faults(), random)
    const thereMs = within(fate === 'late request' ? lateMs : requestMs, random)
    const backMs = within(fate === 'late reply' ? lateMs : replyMs, random)
    // A loss is sometimes noticed, as when a connection breaks. Sometimes no answer ever comes.
    const noticed = random.chance(0.5)
    return new Promise((resolve, reject) => {
      const breakOff = (): void => clock.receive(backMs, () => reject(new StoreError(`the connection broke (${fate})`)))
      if (fate === 'failing') breakOff()
      else if (fate === 'lost request') {
        if (noticed) breakOff()
      } else {
        time.in(thereMs, () => {
          send().then(
            (answer) => {
              if (fate !== 'lost reply') clock.receive(backMs, () => resolve(answer))
              else if (noticed) breakOff()
            },
            (error: unknown) => clock.receive(backMs, () => reject(error)),
          )
        })
      }
    })
  }

  async function list<Request, Answer>(
    requests: readonly Request[],
    send: () => Promise<readonly (Answer | Error)[]>,
  ): Promise<readonly (Answer | Error)[]> {
    const broken = random.chance(faults().entryFails) ? random.whole(0, requests.length - 1) : -1
    const answers = await call(send)
    return answers.map((answer, index) => (index === broken ? new StoreError('one entry failed') : answer))
  }

  function tell(subscription: Subscription, message: (listener: DriverListener) => void): void {
    const { lostWake, wakeMs } = faults()
    if (random.chance(lostWake)) return
    clock.receive(within(wakeMs, random), () => {
      if (subscriptions.has(subscription)) message(subscription.listener)
    })
  }

  /** The store's own step, at once, as if it were part of the transaction of the release. */
  function handOver(subscription: Subscription, claim: Claim): void {
    time.in(0, () => {
      if (!waiting.has(claim.claimId)) return
      const told = (grant: Grant): void => tell(subscription, (listener) => listener.granted(claim.claimId, grant))
      inner.acquire([claim], { secret: '' }).then(
        ([answer]) => {
          if (answer === undefined || answer instanceof Error) return
          if (!answer.granted) {
            tell(subscription, (listener) => listener.wake(claim))
            return
          }
          waiting.delete(claim.claimId)
          told(answer)
        },
        () => undefined,
      )
    })
  }

  async function subscribe(listener: DriverListener) {
    const subscription: Subscription = { listener, stop: async () => undefined }
    subscriptions.add(subscription)
    subscription.stop = await (inner.listen as NonNullable<Driver['listen']>)({
      wake(target) {
        const claim = 'claimId' in target ? waiting.get(target.claimId) : undefined
        if (mode === 'hands over' && claim !== undefined) handOver(subscription, claim)
        else tell(subscription, (each) => each.wake(target))
      },
      granted: (claimId, grant) => tell(subscription, (each) => each.granted(claimId, grant)),
      lost: (claimId, cause) => tell(subscription, (each) => each.lost(claimId, cause)),
      disconnected: (cause) => end(subscription, cause),
    })
    return async () => {
      subscriptions.delete(subscription)
      await subscription.stop()
    }
  }

  function end(subscription: Subscription, cause: Error): void {
    if (!subscriptions.delete(subscription)) return
    void subscription.stop()
    clock.receive(0, () => subscription.listener.disconnected(cause))
  }

  return {
    name: `faulty ${inner.name}`,
    capabilities: { ...inner.capabilities, queue: queues, wake: mode !== 'silent' },
    acquire(claims, context) {
      // Without a queue no claim waits in the store.
      const asked = queues ? claims : claims.map((claim) => ({ ...claim, waiterTtlMs: 0 }))
      return list(claims, () => {
        if (queues) for (const claim of asked) if (claim.waiterTtlMs > 0) waiting.set(claim.claimId, claim)
        return inner.acquire(asked, context)
      })
    },
    renew: (renewals) => list(renewals, () => inner.renew(renewals)),
    release: (leases) =>
      list(leases, () => {
        for (const { claimId } of leases) waiting.delete(claimId)
        return inner.release(leases)
      }),
    inspect: (query) => call(() => inner.inspect(query)),
    ...(mode !== 'silent' && { listen: (listener: DriverListener) => call(() => subscribe(listener)) }),
    close: () => inner.close(),
    breakSubscription() {
      for (const subscription of [...subscriptions]) end(subscription, new StoreError('the subscription broke off'))
    },
  }
}

interface Subscription {
  readonly listener: DriverListener
  stop: () => Promise<void>
}

type Fate = 'well' | 'lost request' | 'lost reply' | 'late request' | 'late reply' | 'failing'

function fateOf(faults: Faults, random: SeededRandom): Fate {
  let drawn = random.fraction()
  const fates = [
    ['lost request', faults.lostRequest],
    ['lost reply', faults.lostReply],
    ['late request', faults.lateRequest],
    ['late reply', faults.lateReply],
    ['failing', faults.failing],
  ] as const
  for (const [fate, chance] of fates) {
    if (drawn < chance) return fate
    drawn -= chance
  }
  return 'well'
}

/** Nothing takes no time at all, so that later events have a later time. */
const within = ([least, most]: Span, random: SeededRandom): number => random.whole(least, most) + LEAST_MS

const LEAST_MS = 0.01
