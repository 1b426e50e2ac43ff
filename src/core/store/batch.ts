import type { Clock, Instant } from '../time/clock.ts'
import { nextTick, queueMicrotask } from '../time/native-time.ts'
import { type Turns, turnsOf } from '../time/turns.ts'

/**
 * The sender of a request. It is called back, because a promise for every request costs more than the rest of its path.
 */
export interface Receiver<Answer> {
  /**
   * `sent` and `answered`: when the list left and when its answer came. All requests of a list get the same objects.
   */
  answered(answer: Answer, sent: Instant, answered: Instant): void
  /** `error`: the error of the call, or the entry for this request in its answer. */
  failed(error: unknown, sent: Instant): void
}

export interface ListBounds<Request = unknown> {
  /** The maximum number of requests in a list. */
  readonly maxLength: number
  /**
   * Lists of this many requests or more are sent in at least two parts, each at most twice as long. The parts overlap.
   * Absent: lists are not split.
   */
  readonly split?: number | undefined
  /** Whether two adjacent requests must stay in one list, even if it gets longer than `maxLength`. Absent: never. */
  readonly areInseparable?: (before: Request, after: Request) => boolean
}

/** The requests that leave together. The sender calls `answered` or `failed`, once. */
export class RequestList<Request, Answer> {
  readonly requests: readonly Request[]
  readonly sent: Instant
  readonly #receivers: readonly Receiver<Answer>[]
  readonly #clock: Clock

  constructor(requests: readonly Request[], receivers: readonly Receiver<Answer>[], sent: Instant, clock: Clock) {
    this.requests = requests
    this.sent = sent
    this.#receivers = receivers
    this.#clock = clock
  }

  /** With one answer for each request, in their order. */
  answered(answers: readonly (Answer | Error)[]): void {
    const receivers = this.#receivers
    const answered = this.#clock.now()
    for (let index = 0; index < receivers.length; index += 1) {
      const receiver = receivers[index] as Receiver<Answer>
      const answer = answers[index] as Answer | Error
      if (answer instanceof Error) receiver.failed(answer, this.sent)
      else receiver.answered(answer, this.sent, answered)
    }
  }

  failed(error: unknown): void {
    for (const receiver of this.#receivers) receiver.failed(error, this.sent)
  }
}

/**
 * Collects the requests that are made in one turn of the event loop and sends them as one list.
 *
 * A list is sent when the turn has nothing more to run: a tick that is scheduled in a microtask runs after all other
 * microtasks of that turn. Unlike `setImmediate`, this does not wait for timers and I/O. From time to time a list does
 * wait for the next turn, so that timers and I/O are served at all.
 */
export class Batch<Request, Answer> {
  readonly #send: (list: RequestList<Request, Answer>) => void
  readonly #bounds: ListBounds<Request>
  readonly #clock: Clock
  readonly #turns: Turns
  /** Both undefined while there is no request. */
  #requests: Request[] | undefined
  #receivers: Receiver<Answer>[] | undefined

  constructor(clock: Clock, bounds: ListBounds<Request>, send: (list: RequestList<Request, Answer>) => void) {
    this.#clock = clock
    this.#turns = turnsOf(clock)
    this.#bounds = bounds
    this.#send = send
  }

  add(request: Request, receiver: Receiver<Answer>): void {
    if (this.#requests !== undefined) {
      this.#requests.push(request)
      this.#receivers?.push(receiver)
      return
    }
    // An array that begins empty reserves room for 17 entries, and most lists have one.
    this.#requests = [request]
    this.#receivers = [receiver]
    queueMicrotask(this.#afterMicrotasks)
  }

  ask(request: Request): Promise<Answer> {
    return new Promise((answered, failed) => this.add(request, { answered, failed }))
  }

  readonly #afterMicrotasks = (): void => nextTick(this.#flush)

  readonly #flush = (): void => {
    const now = this.#clock.now()
    if (this.#turns.owed(now.monotonicMs)) this.#turns.next(() => this.#sendAll(this.#clock.now()))
    else this.#sendAll(now)
  }

  #sendAll(sent: Instant): void {
    const requests = this.#requests ?? []
    const receivers = this.#receivers ?? []
    this.#requests = undefined
    this.#receivers = undefined
    const { maxLength, split = Number.POSITIVE_INFINITY } = this.#bounds
    const fewest = requests.length >= split ? Math.max(2, Math.ceil(requests.length / (2 * split))) : 1
    const parts = Math.max(Math.ceil(requests.length / maxLength), fewest)
    if (parts === 1) {
      this.#send(new RequestList(requests, receivers, sent, this.#clock))
      return
    }
    const size = Math.ceil(requests.length / parts)
    for (let start = 0; start < requests.length; ) {
      const end = this.#cut(requests, start, start + size)
      this.#send(new RequestList(requests.slice(start, end), receivers.slice(start, end), sent, this.#clock))
      start = end
    }
  }

  /**
   * Where the list that begins at `start` ends: at `end`, unless that separates inseparable requests. Then it ends
   * before them, or after them if the list begins with them.
   */
  #cut(requests: readonly Request[], start: number, end: number): number {
    const { areInseparable } = this.#bounds
    if (areInseparable === undefined) return end
    const isInsideGroup = (at: number): boolean =>
      at < requests.length && areInseparable(requests[at - 1] as Request, requests[at] as Request)
    let cut = end
    while (cut > start && isInsideGroup(cut)) cut -= 1
    if (cut > start) return cut
    cut = end
    while (isInsideGroup(cut)) cut += 1
    return cut
  }
}
