/** Time in tests. A bound that is asserted is one-sided: a machine under load is late, never early. */

/** Longer than any test runs: what has this time to live ends only because somebody ended it. */
export const LONG_MS = 60_000

/** A lease in the store that is meant to run out during a test. */
export const SHORT_MS = 200

/** The same for a lease that a client must get first: an answer that takes longer than this is no grant. */
export const BRIEF_SECONDS = 0.4

/** A lease that is meant to be kept although it is renewed in time only: two thirds of this is what a machine may stall. */
export const KEPT_SECONDS = 3

/** How long a claim waits in vain: its first answer must come before that, else it is not known who holds the lock. */
export const VAIN_SECONDS = 1

/** How long the suite waits for what must happen. Far beyond any delay of a loaded machine, below runners' timeouts. */
const PATIENCE_MS = 30_000

const LOOK_EVERY_MS = 4

export const monotonicMs = (): number => performance.now()

export const sleep = (ms: number): Promise<void> =>
  new Promise((resolve) => {
    setTimeout(resolve, ms)
  })

/**
 * Waits until a time to live that began before this call is over by the store's clock, whose seconds may be a hair
 * longer than ours.
 */
export const outlast = (ttlMs: number): Promise<void> => sleep(ttlMs * 1.02 + 10)

/** The least that a wait of `ms` on the store's clock takes on ours: 1 % for clocks that run apart, 2 ms for rounding. */
export const atLeast = (ms: number): number => ms * 0.99 - 2

/** Looks again and again until what is seen is truthy, and returns that. `what` finishes the sentence "waited for …". */
export async function until<T>(what: string, look: () => T | Promise<T>): Promise<NonNullable<T>> {
  const startedMs = monotonicMs()
  for (;;) {
    const seen = await look()
    if (seen) return seen
    if (monotonicMs() - startedMs > PATIENCE_MS) throw new Error(`waited ${PATIENCE_MS} ms in vain for ${what}`)
    await sleep(LOOK_EVERY_MS)
  }
}

/**
 * Lets every timer run that is due by now. After a stall Node runs them in an order of its own, so what a timer owes is
 * asked for only when all of them had their turn.
 */
export const timersRun = (): Promise<void> =>
  new Promise((resolve) => {
    setImmediate(resolve)
  })

/** As `until`, for something that settles by itself. */
export async function within<T>(what: string, promise: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined
  const tooLate = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`waited ${PATIENCE_MS} ms in vain for ${what}`)), PATIENCE_MS)
  })
  try {
    return await Promise.race([promise, tooLate])
  } finally {
    clearTimeout(timer)
  }
}

export interface Deferred<T> {
  readonly promise: Promise<T>
  resolve(value: T): void
  reject(error: unknown): void
}

/** `Promise.withResolvers`, which Node 20 does not have. */
export function deferred<T = void>(): Deferred<T> {
  let resolve!: (value: T) => void
  let reject!: (error: unknown) => void
  const promise = new Promise<T>((onValue, onError) => {
    resolve = onValue
    reject = onError
  })
  return { promise, resolve, reject }
}
