import { AbortedError } from '../../core/errors.ts'
import { onAbort } from '../../core/time/abort.ts'
import { nextTick, queueMicrotask } from '../../core/time/native-time.ts'

/**
 * Keeps what one manager asks for a name in the order in which it was asked, whatever the store's connections do.
 *
 * Requests that are made in one turn of the event loop go to the store in one list, which keeps their order. A later one
 * is sent when all before it have their places: sent at the same time, over another connection, it could overtake them.
 * Those that do not wait are sent when the store has failed one before them, so that they fail too. What is released is
 * taken as released by whoever asks after that.
 */
export class RequestOrder {
  readonly #lanes = new Map<string, Lane>()
  readonly #unplaced = new Set<Promise<void>>()

  /**
   * Begins at once, or after what was asked for this name in earlier turns. `begin` tells how far it has come: if it rejects
   * with an `AbortedError` after it has asked the store, the answer is still to come. An abort before it has begun rejects
   * with the signal's reason.
   */
  run<T>(lockName: string, request: OrderedRequest, begin: (progress: Progress) => Promise<T>): Promise<T> {
    const { signal, waits } = request
    const lane = this.#lanes.get(lockName) ?? this.#openLane(lockName)
    return new Promise((resolve, reject) => {
      let placed = (): void => {}
      this.#track(
        new Promise((done) => {
          placed = done
        }),
      )
      let stopListening: (() => void) | undefined
      const start = (): void => {
        stopListening?.()
        lane.busy += 1
        let told = false
        const once = (): void => {
          if (told) return
          told = true
          placed()
          this.#left(lockName, lane)
        }
        if (signal?.aborted) {
          once()
          return
        }
        // The reason of an abort is the caller's, of whichever class: it does not tell whether the store was asked.
        let asked = false
        const progress = {
          asked() {
            asked = true
          },
          placed: once,
          unanswered: () => {
            placed()
            if (!told) this.#failing(lane)
          },
        }
        begin(progress).then(
          (result) => {
            resolve(result)
            once()
          },
          (error: unknown) => {
            reject(error)
            if (!asked || !(error instanceof AbortedError)) once()
          },
        )
      }
      if (lane.open || (lane.failing && !waits)) {
        start()
        return
      }
      lane.waiting.push({ start, waits, placed })
      if (lane.failing) placed()
      stopListening = signal && onAbort(signal, () => reject(signal.reason))
    })
  }

  /** Whatever is asked for this name from now on comes after this work. */
  async after(lockName: string, work: Promise<unknown>): Promise<void> {
    const lane = this.#lanes.get(lockName) ?? this.#openLane(lockName)
    lane.open = false
    lane.busy += 1
    this.#track(
      work.then(
        () => {},
        () => {},
      ),
    )
    try {
      await work
    } finally {
      this.#left(lockName, lane)
    }
  }

  /** Resolves when everything that was asked for before has its place, or stands behind something that the store has failed. */
  async settled(): Promise<void> {
    await Promise.all(this.#unplaced)
  }

  #track(work: Promise<void>): void {
    const tracked = work.then(() => {
      this.#unplaced.delete(tracked)
    })
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

  /** As `Batch` does it: when nothing more of this turn is left to run. */
  #closeAfterTurn(lockName: string, lane: Lane): void {
    queueMicrotask(() =>
      nextTick(() => {
        lane.open = false
        this.#next(lockName, lane)
      }),
    )
  }
}

export interface Progress {
  /** The store is asked now, and its answer will be told by `placed`. */
  asked(): void
  /** It has its lease or its place, or will have none. */
  placed(): void
  /** The store has failed it, and it asks on. */
  unanswered(): void
}

export interface OrderedRequest {
  readonly signal: AbortSignal | undefined
  /** Whether it waits for the lock. */
  readonly waits: boolean
}

interface Lane {
  /** Whether the turn goes on in which its requests were begun. */
  open: boolean
  /** Whether the store has failed one of those, which asks on. */
  failing: boolean
  /** How many of those have no place yet. */
  busy: number
  waiting: { readonly start: () => void; readonly waits: boolean; readonly placed: () => void }[]
}
