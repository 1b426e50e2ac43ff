import { AbortedError } from '../../core/errors.ts'
import { onAbort } from '../../core/time/abort.ts'
import { nextTick, queueMicrotask } from '../../core/time/native-time.ts'

/**
 * Keeps the requests of one manager for a name in their order, although the store has several connections.
 *
 * Requests of one turn of the event loop go to the store in one list, which keeps their order. A later request is sent
 * when all earlier ones have a place in the queue; sent at the same time over another connection, it could overtake
 * them. If the store fails one of them, later requests that do not wait are sent, so that they fail too. A request
 * after a release finds the lock released.
 */
export class RequestOrder {
  readonly #lanes = new Map<string, Lane>()
  readonly #unplaced = new Set<Promise<void>>()

  /**
   * Begins at once, or after the requests for this name of earlier turns. `begin` reports its progress. If it rejects
   * with an `AbortedError` after it has asked the store, the store's answer is still to come. An abort before it has
   * begun rejects with the signal's reason.
   */
  async run<T>(
    lockName: string,
    { signal, waits }: OrderedRequest,
    begin: (progress: Progress) => Promise<T>,
  ): Promise<T> {
    const lane = this.#lanes.get(lockName) ?? this.#openLane(lockName)
    let placed = (): void => {}
    this.#track(
      new Promise<void>((done) => {
        placed = done
      }),
    )
    if (lane.open || (lane.failing && !waits)) lane.busy += 1
    else await waitInLane(lane, { signal, waits, placed })
    let isPlaced = false
    const once = (): void => {
      if (isPlaced) return
      isPlaced = true
      placed()
      this.#left(lockName, lane)
    }
    // The reason of an abort can be anything. It does not show whether the store was asked.
    let asked = false
    const progress = {
      asked() {
        asked = true
      },
      placed: once,
      unanswered: () => {
        placed()
        if (!isPlaced) this.#failing(lane)
      },
    }
    try {
      const result = await begin(progress)
      once()
      return result
    } catch (error) {
      if (!asked || !(error instanceof AbortedError)) once()
      throw error
    }
  }

  /** Later requests for this name are sent after this work. */
  async after(lockName: string, work: Promise<unknown>): Promise<void> {
    const lane = this.#lanes.get(lockName) ?? this.#openLane(lockName)
    lane.open = false
    lane.busy += 1
    this.#track(work)
    try {
      await work
    } finally {
      this.#left(lockName, lane)
    }
  }

  /**
   * Resolves when all earlier requests have a place in the queue, or are behind a request that the store has failed.
   */
  async settled(): Promise<void> {
    await Promise.all(this.#unplaced)
  }

  #track(work: Promise<unknown>): void {
    const tracked = work.then(
      () => void this.#unplaced.delete(tracked),
      () => void this.#unplaced.delete(tracked),
    )
    this.#unplaced.add(tracked)
  }

  #openLane(lockName: string): Lane {
    const lane: Lane = { open: true, failing: false, busy: 0, waiting: [] }
    this.#lanes.set(lockName, lane)
    this.#closeAfterTurn(lockName, lane)
    return lane
  }

  #left(lockName: string, lane: Lane): void {
    lane.busy -= 1
    this.#next(lockName, lane)
  }

  #failing(lane: Lane): void {
    lane.failing = true
    const leaving = lane.waiting.filter(({ waits }) => !waits)
    lane.waiting = lane.waiting.filter(({ waits }) => waits)
    for (const { start } of leaving) start()
    for (const { placed } of lane.waiting) placed()
  }

  #next(lockName: string, lane: Lane): void {
    if (lane.open || lane.busy > 0) return
    if (lane.waiting.length === 0) {
      if (this.#lanes.get(lockName) === lane) this.#lanes.delete(lockName)
      return
    }
    lane.open = true
    lane.failing = false
    this.#closeAfterTurn(lockName, lane)
    for (const { start } of lane.waiting.splice(0)) start()
  }

  /** At the end of this turn of the event loop, as `Calls` does. */
  #closeAfterTurn(lockName: string, lane: Lane): void {
    queueMicrotask(() =>
      nextTick(() => {
        lane.open = false
        this.#next(lockName, lane)
      }),
    )
  }
}

/** Resolves when the earlier requests have a place. Rejects with the reason of the signal if that aborts before. */
function waitInLane(lane: Lane, { signal, waits, placed }: OrderedRequest & { placed: () => void }): Promise<void> {
  return new Promise((resolve, reject) => {
    const start = (): void => {
      stopListening?.()
      lane.busy += 1
      resolve()
    }
    const waiting = { start, waits, placed }
    lane.waiting.push(waiting)
    if (lane.failing) placed()
    const leave = (reason: unknown): void => {
      lane.waiting = lane.waiting.filter((each) => each !== waiting)
      placed()
      reject(reason)
    }
    const stopListening = signal && onAbort(signal, () => leave(signal.reason))
  })
}

export interface Progress {
  /** The store is being asked. `placed` follows with its answer. */
  asked(): void
  /** The request has its lease or its place in the queue, or will have none. */
  placed(): void
  /** The store has failed the request, and it asks again. */
  unanswered(): void
}

export interface OrderedRequest {
  readonly signal: AbortSignal | undefined
  /** Whether the request waits for the lock. */
  readonly waits: boolean
}

interface Lane {
  /** Whether the turn in which its requests began is still going on. */
  open: boolean
  /** Whether the store has failed one of them, which asks again. */
  failing: boolean
  /** How many of them have no place in the queue yet. */
  busy: number
  waiting: { readonly start: () => void; readonly waits: boolean; readonly placed: () => void }[]
}
