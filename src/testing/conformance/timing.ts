// Time in tests. Asserted bounds are one-sided: a machine under load is late, never early.

/** Longer than any test runs: a lease with this TTL ends only if a client ends it. */
export const LONG_MS = 60_000

/** The TTL of a lease that expires during a test. */
export const SHORT_MS = 200

/** The same if a client must get the lease first: an answer that takes longer than this is no grant. */
export const BRIEF_SECONDS = 0.4

/** The TTL of a lease that renewals keep. A machine may stall for two thirds of it. */
export const KEPT_SECONDS = 3

/** How long a claim waits that is never granted. Its first answer must come sooner, or it does not know the holder. */
export const VAIN_SECONDS = 1

/** How long the suite waits for what must happen: longer than a loaded machine takes, below the timeouts of runners. */
const PATIENCE_MS = 30_000

const LOOK_EVERY_MS = 4

export const monotonicMs = (): number => performance.now()

export const sleep = (ms: number): Promise<void> =>
  new Promise((resolve) => {
    setTimeout(resolve, ms)
  })

/**
 * Waits until a TTL that began before this call is over by the store's clock, whose seconds may be slightly longer than
 * ours.
 */
export const outlast = (ttlMs: number): Promise<void> => sleep(ttlMs * 1.02 + 10)

/** The least time that `ms` of the store's clock take on ours: 1 % for clock drift, 2 ms for rounding. */
export const atLeast = (ms: number): number => ms * 0.99 - 2

/** Polls until `look` returns something truthy, and returns that. `what` completes the sentence "waited for …". */
export async function until<T>(what: string, look: () => T | Promise<T>): Promise<NonNullable<T>> {
  const startedMs = monotonicMs()
  for (;;) {
    const seen = await look()
    if (seen) return seen
    if (monotonicMs() - startedMs > PATIENCE_MS) throw new Error(`waited ${PATIENCE_MS} ms for ${what}`)
    await sleep(LOOK_EVERY_MS)
  }
}

/**
 * Lets every timer run that is due by now. After a stall Node runs them in an order of its own, so a test checks their
 * effects only after all of them.
 */
export const timersRun = (): Promise<void> =>
  new Promise((resolve) => {
    setImmediate(resolve)
  })

/** As `until`, for a promise. */
export async function within<T>(what: string, promise: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined
  const tooLate = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`waited ${PATIENCE_MS} ms for ${what}`)), PATIENCE_MS)
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
