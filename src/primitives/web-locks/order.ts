import { AbortedError } from '../../core/errors.ts'
import { onAbort, settlesWithin } from '../../core/time/abort.ts'
import type { Clock } from '../../core/time/clock.ts'
import { nextTick, queueMicrotask } from '../../core/time/native-time.ts'

/**
 * Keeps the requests of one manager for a name in their order, although the store has several connections.
 *
 * Requests of one turn of the event loop go to the store in one list, which keeps their order. A later request is sent
 * when all earlier ones have a place in the queue; sent at the same time over another connection, it could overtake
 * them. If the store fails one of them, later requests that do not wait are sent, so that they fail too. A request
 * after a release finds the lock released. A release, of any name, is sent when the requests that were sent before it
 * have a place: otherwise it could overtake them, too, and a request that waits would be granted before one that is
 * free.
 */
export class RequestOrder {
  readonly #lanes = new Map<string, Lane>()
  readonly #unplaced = new Set<PromiseLike<void>>()
  /** The requests that the store is being asked for. */
  readonly #sent = new Set<PromiseLike<void>>()

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
    const place = new Promise<void>((done) => {
      placed = done
    })
    track(this.#unplaced, place)
    if (lane.open || (lane.failing && !waits)) lane.busy += 1
    else await waitInLane(lane, { signal, waits, placed })
    track(this.#sent, place)
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

  /** Releases after the requests that were sent before. Later requests for this name are sent after the release. */
  async release(lockName: string, send: () => PromiseLike<unknown>, clock: Clock): Promise<void> {
    const sent = [...this.#sent]
    // Bounded, because a store that hangs must not keep the lock.
    const turn = sent.length === 0 ? undefined : settlesWithin(clock, MAX_TURN_MS, Promise.all(sent))
    await this.after(lockName, turn === undefined ? send() : turn.then(send))
  }

  /** Later requests for this name are sent after this work. */
  async after(lockName: string, work: PromiseLike<unknown>): Promise<void> {
    const lane = this.#lanes.get(lockName) ?? this.#openLane(lockName)
    lane.open = false
    lane.busy += 1
    track(this.#unplaced, work)
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

function track(set: Set<PromiseLike<void>>, work: PromiseLike<unknown>): void {
  const leave = (): void => void set.delete(tracked)
  const tracked = work.then(leave, leave)
  set.add(tracked)
}

/** How long a release waits for its turn at most. */
const MAX_TURN_MS = 1_000

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
