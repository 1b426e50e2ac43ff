import type { Clock, Instant } from './clock.ts'

/** Who asked. Called back instead of being given a promise: the way of every claim goes through here, and a promise costs more than an answer. */
export interface Receiver<Answer> {
  /** `sent` is when the request's list left, `answered` when its answer came: the same two objects for the whole list. */
  answered(answer: Answer, sent: Instant, answered: Instant): void
  /** With the call's error, or with the error that stands for this request in the answer. */
  failed(error: unknown, sent: Instant): void
}

/**
 * Gathers what is asked for in one turn of the event loop and sends it as one list.
 *
 * A list leaves when the turn has nothing more to run: a tick that is scheduled from inside a microtask runs after every
 * other microtask of that turn. That costs no wait for timers or input, as `setImmediate` would.
 */
export class Batch<Request, Answer> {
  readonly #send: (requests: readonly Request[]) => Promise<readonly (Answer | Error)[]>
  readonly #maxList: number
  readonly #clock: Clock
  #requests: Request[] = []
  #receivers: Receiver<Answer>[] = []

  constructor(
    clock: Clock,
    maxList: number,
    send: (requests: readonly Request[]) => Promise<readonly (Answer | Error)[]>,
  ) {
    this.#clock = clock
    this.#maxList = maxList
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

  readonly #afterMicrotasks = (): void => process.nextTick(this.#flush)

  readonly #flush = (): void => {
    const [requests, receivers] = [this.#requests, this.#receivers]
    this.#requests = []
    this.#receivers = []
    if (requests.length <= this.#maxList) {
      void this.#sendList(requests, receivers)
      return
    }
    for (let start = 0; start < requests.length; start += this.#maxList) {
      const end = start + this.#maxList
      void this.#sendList(requests.slice(start, end), receivers.slice(start, end))
    }
  }

  async #sendList(requests: readonly Request[], receivers: readonly Receiver<Answer>[]): Promise<void> {
    const sent = this.#clock.now()
    let answers: readonly (Answer | Error)[]
    try {
      answers = await this.#send(requests)
      if (answers.length !== requests.length) {
        throw new Error(`a driver answered ${answers.length} of ${requests.length} requests`)
      }
    } catch (error) {
      for (const receiver of receivers) receiver.failed(error, sent)
      return
    }
    const answered = this.#clock.now()
    for (let index = 0; index < answers.length; index += 1) {
      const receiver = receivers[index] as Receiver<Answer>
      const answer = answers[index] as Answer | Error
      if (answer instanceof Error) receiver.failed(answer, sent)
      else receiver.answered(answer, sent, answered)
    }
  }
}
