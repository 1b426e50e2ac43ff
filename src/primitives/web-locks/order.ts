import { onAbort } from '../../core/abort.ts'
import { AbortedError } from '../../core/errors.ts'
import { nextTick, queueMicrotask } from '../../core/native-time.ts'

/**
 * Keeps what one manager asks for a name in the order in which it was asked, whatever the store's connections do.
 *
 * Requests that are made in one turn of the event loop go to the store in one list, which keeps their order. A later one is sent when all before it
 * have their places: sent at the same time, over another connection, it could overtake them. What is released is taken as released by whoever asks after that.
 */
export class RequestOrder {
  readonly #lanes = new Map<string, Lane>()
  readonly #unplaced = new Set<Promise<void>>()

  /**
   * Begins at once, or after what was asked for this name in earlier turns. `begin` tells how far it has come: if it rejects
   * with an `AbortedError` after it has asked the store, the answer is still to come. An abort before it has begun rejects
   * with the signal's reason.
   */
  run<T>(lockName: string, signal: AbortSignal | undefined, begin: (progress: Progress) => Promise<T>): Promise<T> {
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
      if (lane.open) {
        start()
        return
      }
      lane.waiting.push(start)
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

  /** Resolves when everything that was asked for before has its place. */
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
    const lane: Lane = { open: true, busy: 0, waiting: [] }
    this.#lanes.set(lockName, lane)
    this.#closeAfterTurn(lockName, lane)
    return lane
  }

  #left(lockName: string, lane: Lane): void {
    lane.busy -= 1
    this.#next(lockName, lane)
  }

  #next(lockName: string, lane: Lane): void {
    if (lane.open || lane.busy > 0) return
    if (lane.waiting.length === 0) {
      if (this.#lanes.get(lockName) === lane) this.#lanes.delete(lockName)
      return
    }
    lane.open = true
    this.#closeAfterTurn(lockName, lane)
    for (const start of lane.waiting.splice(0)) start()
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
  /** The store has answered first. */
  placed(): void
}

interface Lane {
  /** Whether the turn goes on in which its requests were begun. */
  open: boolean
  /** How many of those have no answer yet. */
  busy: number
  readonly waiting: (() => void)[]
}
