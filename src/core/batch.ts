/**
 * Gathers what is asked for in one turn of the event loop and sends it as one list.
 *
 * A list leaves when the turn has nothing more to run: a tick that is scheduled from inside a microtask runs after every
 * other microtask of that turn. That costs no wait for timers or input, as `setImmediate` would.
 */
export class Batch<Request, Answer> {
  readonly #send: (requests: readonly Request[]) => Promise<readonly (Answer | Error)[]>
  readonly #maxList: number
  #gathered: Entry<Request, Answer>[] = []

  constructor(maxList: number, send: (requests: readonly Request[]) => Promise<readonly (Answer | Error)[]>) {
    this.#maxList = maxList
    this.#send = send
  }

  /** Rejects with the call's error, or with the error that stands for this request in the answer. */
  add(request: Request): Promise<Answer> {
    if (this.#gathered.length === 0) queueMicrotask(() => process.nextTick(() => this.#flush()))
    return new Promise((resolve, reject) => {
      this.#gathered.push({ request, resolve, reject })
    })
  }

  #flush(): void {
    const entries = this.#gathered
    this.#gathered = []
    for (let start = 0; start < entries.length; start += this.#maxList) {
      void this.#sendList(entries.slice(start, start + this.#maxList))
    }
  }

  async #sendList(entries: readonly Entry<Request, Answer>[]): Promise<void> {
    try {
      const answers = await this.#send(entries.map((entry) => entry.request))
      if (answers.length !== entries.length) {
        throw new Error(`a driver answered ${answers.length} of ${entries.length} requests`)
      }
      entries.forEach((entry, index) => {
        const answer = answers[index] as Answer | Error
        if (answer instanceof Error) entry.reject(answer)
        else entry.resolve(answer)
      })
    } catch (error) {
      for (const entry of entries) entry.reject(error)
    }
  }
}

interface Entry<Request, Answer> {
  readonly request: Request
  resolve(answer: Answer): void
  reject(error: unknown): void
}
