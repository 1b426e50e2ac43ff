import type { Clock, Instant } from '../time/clock.ts'
import { nextTick, queueMicrotask } from '../time/native-time.ts'
import { type Turns, turnsOf } from '../time/turns.ts'

/** Who asked. Called back instead of being given a promise: the way of every claim goes through here, and a promise costs more than an answer. */
export interface Receiver<Answer> {
  /** `sent` is when the request's list left, `answered` when its answer came: the same two objects for the whole list. */
  answered(answer: Answer, sent: Instant, answered: Instant): void
  /** With the call's error, or with the error that stands for this request in the answer. */
  failed(error: unknown, sent: Instant): void
}

export interface ListBounds<Request = unknown> {
  /** How long a list may be. */
  readonly most: number
  /** From how many requests on it is sent in two parts at least, which overlap. Never, if not said. */
  readonly split?: number | undefined
  /** Whether two requests that follow each other must stay in one list, even if it is too long then. Absent: never. */
  readonly together?: (before: Request, after: Request) => boolean
}

/**
 * Gathers what is asked for in one turn of the event loop and sends it as one list.
 *
 * A list leaves when the turn has nothing more to run: a tick that is scheduled from inside a microtask runs after every
 * other microtask of that turn. That costs no wait for timers or input, as `setImmediate` would. Only now and then a list
 * waits for the next turn, so that timers and input are served at all.
 */
export class Batch<Request, Answer> {
  readonly #send: (requests: readonly Request[]) => Promise<readonly (Answer | Error)[]>
  readonly #bounds: ListBounds<Request>
  readonly #clock: Clock
  readonly #turns: Turns
  #requests: Request[] = []
  #receivers: Receiver<Answer>[] = []

  constructor(
    clock: Clock,
    bounds: ListBounds<Request>,
    send: (requests: readonly Request[]) => Promise<readonly (Answer | Error)[]>,
  ) {
    this.#clock = clock
    this.#turns = turnsOf(clock)
    this.#bounds = bounds
    this.#send = send
  }

  add(request: Request, receiver: Receiver<Answer>): void {
    if (this.#requests.length === 0) queueMicrotask(this.#afterMicrotasks)
    this.#requests.push(request)
    this.#receivers.push(receiver)
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
    const [requests, receivers] = [this.#requests, this.#receivers]
    this.#requests = []
    this.#receivers = []
    const { most, split = Number.POSITIVE_INFINITY } = this.#bounds
    const parts = Math.max(Math.ceil(requests.length / most), requests.length >= split ? 2 : 1)
    if (parts === 1) {
      this.#sendList(requests, receivers, sent)
      return
    }
    const size = Math.ceil(requests.length / parts)
    for (let start = 0; start < requests.length; ) {
      const end = this.#cut(requests, start, start + size)
      this.#sendList(requests.slice(start, end), receivers.slice(start, end), sent)
      start = end
    }
  }

  /**
   * Where the list that begins at `start` ends: at `end`, unless that separates requests that belong together. Then before
   * them, or behind them if the list begins with them.
   */
  #cut(requests: readonly Request[], start: number, end: number): number {
    const { together } = this.#bounds
    if (together === undefined) return end
    const isInside = (at: number): boolean =>
      at < requests.length && together(requests[at - 1] as Request, requests[at] as Request)
    let cut = end
    while (cut > start && isInside(cut)) cut -= 1
    if (cut > start) return cut
    cut = end
    while (isInside(cut)) cut += 1
    return cut
  }

  #sendList(requests: readonly Request[], receivers: readonly Receiver<Answer>[], sent: Instant): void {
    const failAll = (error: unknown): void => {
      for (const receiver of receivers) receiver.failed(error, sent)
    }
    this.#send(requests).then((answers) => {
      if (answers.length !== requests.length) {
        failAll(new Error(`a driver answered ${answers.length} of ${requests.length} requests`))
        return
      }
      const answered = this.#clock.now()
      for (let index = 0; index < receivers.length; index += 1) {
        const receiver = receivers[index] as Receiver<Answer>
        const answer = answers[index] as Answer | Error
        if (answer instanceof Error) receiver.failed(answer, sent)
        else receiver.answered(answer, sent, answered)
      }
    }, failAll)
  }
}
