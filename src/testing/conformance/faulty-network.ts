import type { Driver, DriverListener, StopListening } from '../../core/driver.ts'
import { deferred } from './timing.ts'

export type DriverMethod = 'acquire' | 'renew' | 'release' | 'inspect' | 'listen' | 'consume'

/** What happens to a call. `forward` sends it to the store. A fault calls it once, or not at all. */
export type Fault = <Answer>(forward: () => Promise<Answer>) => Promise<Answer>

/**
 * A network between a client and a real driver, which a test can break. The store is not simulated: every call that
 * passes is a real one.
 */
export interface FaultyNetwork {
  readonly driver: Driver
  /** For each method: calls made, calls that the store answered, and the requests in all their lists. */
  readonly counts: Readonly<Record<DriverMethod, CallCounts>>
  /** A fault: nothing is sent and nothing comes back, until `heal`. */
  readonly hangs: Fault
  /** The next call of this method meets the fault. Several faults are used up in their order. */
  once(method: DriverMethod, fault: Fault): void
  /** Every call of this method meets the fault, until `heal`. */
  always(method: DriverMethod, fault: Fault): void
  /** The network is gone silently: no call is answered or fails, and no wake-up arrives. */
  cut(): void
  /** Wake-ups are lost from now on. */
  mute(): void
  /** Sends a message to the listeners, true or not, as another client could. */
  deliver(message: (listener: DriverListener) => void): void
  /** The subscription breaks, and the driver notices. */
  breakSubscription(): void
  /** Everything works again. Calls that hang fail now. */
  heal(): void
}

export interface CallCounts {
  calls: number
  answered: number
  requests: number
}

export function faultyNetwork(real: Driver): FaultyNetwork {
  const counts = Object.fromEntries(
    METHODS.map((method) => [method, { calls: 0, answered: 0, requests: 0 }]),
  ) as unknown as Record<DriverMethod, CallCounts>
  const next = new Map<DriverMethod, Fault[]>()
  const standing = new Map<DriverMethod, Fault>()
  const hanging = new Set<(error: Error) => void>()
  const subscriptions = new Set<Subscription>()
  let muted = false

  function call<Answer>(method: DriverMethod, requests: number, send: () => Promise<Answer>): Promise<Answer> {
    const count = counts[method]
    count.calls += 1
    count.requests += requests
    const forward = async (): Promise<Answer> => {
      const answer = await send()
      count.answered += 1
      return answer
    }
    const fault = next.get(method)?.shift() ?? standing.get(method)
    return fault === undefined ? forward() : fault(forward)
  }

  const hangs: Fault = () =>
    new Promise((_, reject) => {
      hanging.add(reject)
    })

  async function listen(listener: DriverListener): Promise<StopListening> {
    const subscription: Subscription = { listener, disconnected: false, stop: async () => {} }
    const isHeard = () => !muted && !subscription.disconnected
    subscription.stop = await (real as Required<Driver>).listen({
      wake: (target) => isHeard() && listener.wake(target),
      granted: (...grant) => isHeard() && listener.granted(...grant),
      lost: (claimId, cause) => isHeard() && listener.lost(claimId, cause),
      disconnected: (cause) => isHeard() && listener.disconnected(cause),
    })
    subscriptions.add(subscription)
    return () => {
      subscriptions.delete(subscription)
      return subscription.stop()
    }
  }

  const { consume } = real
  const driver: Driver = {
    name: real.name,
    capabilities: real.capabilities,
    acquire: (claims, context) => call('acquire', claims.length, () => real.acquire(claims, context)),
    renew: (renewals) => call('renew', renewals.length, () => real.renew(renewals)),
    release: (leases) => call('release', leases.length, () => real.release(leases)),
    inspect: (query) => call('inspect', 1, () => real.inspect(query)),
    ...(real.listen && { listen: (listener: DriverListener) => call('listen', 1, () => listen(listener)) }),
    ...(real.extensions && { extensions: real.extensions }),
    ...(consume && {
      consume: (requests: Parameters<typeof consume>[0]) =>
        call('consume', requests.length, async () => consume.call(real, requests)),
    }),
    close: () => real.close(),
  }

  return {
    driver,
    counts,
    hangs,
    once(method, fault) {
      next.set(method, [...(next.get(method) ?? []), fault])
    },
    always(method, fault) {
      standing.set(method, fault)
    },
    cut() {
      muted = true
      for (const method of METHODS) standing.set(method, hangs)
    },
    mute() {
      muted = true
    },
    deliver(message) {
      for (const { listener } of [...subscriptions]) message(listener)
    },
    breakSubscription() {
      for (const subscription of subscriptions) {
        subscriptions.delete(subscription)
        subscription.disconnected = true
        void subscription.stop()
        subscription.listener.disconnected(new Error('the subscription broke'))
      }
    },
    heal() {
      muted = false
      next.clear()
      standing.clear()
      for (const fail of hanging) fail(new Error('the connection was closed'))
      hanging.clear()
    },
  }
}

/** The request never reaches the store. A plain error, as from a driver that forgot to wrap its client's error. */
export const fails: Fault = async () => {
  throw new Error('the connection was refused')
}

/** The store has done it, and the caller gets no reply. */
export const losesReply: Fault = async (forward) => {
  await forward()
  throw new Error('the connection broke before the reply came')
}

export interface HeldCall {
  readonly fault: Fault
  /** Resolves when the call is held: not sent yet, or answered by the store. */
  readonly reached: Promise<void>
  /** Resolves with the store's own answer. */
  readonly answer: Promise<unknown>
  resume(): void
}

/** Holds a request back before the store sees it. */
export const holdRequest = (): HeldCall =>
  holdCall(async (forward, pause) => {
    await pause()
    return forward()
  })

/** Holds a reply back after the store has done what was asked. */
export const holdReply = (): HeldCall =>
  holdCall(async (forward, pause) => {
    const answer = await forward()
    await pause()
    return answer
  })

function holdCall(run: <A>(forward: () => Promise<A>, pause: () => Promise<void>) => Promise<A>): HeldCall {
  const reached = deferred()
  const gate = deferred()
  const answer = deferred<unknown>()
  const pause = () => {
    reached.resolve()
    return gate.promise
  }
  return {
    reached: reached.promise,
    answer: answer.promise,
    resume: () => gate.resolve(),
    fault: (forward) =>
      run(async () => {
        const got = await forward()
        answer.resolve(got)
        return got
      }, pause),
  }
}

interface Subscription {
  readonly listener: DriverListener
  disconnected: boolean
  stop: StopListening
}

const METHODS: readonly DriverMethod[] = ['acquire', 'renew', 'release', 'inspect', 'listen', 'consume']
