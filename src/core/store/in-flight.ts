/**
 * Counts the work that an instance has in flight, so that `close` can wait for it: requests whose grant might have to
 * be released, releases, extensions, functions that run under a lease. One caller at a time waits for its end.
 */
export class InFlight {
  #count = 0
  #idle: (() => void) | undefined

  get count(): number {
    return this.#count
  }

  begin(): void {
    this.#count += 1
  }

  end(): void {
    this.#count -= 1
    if (this.#count === 0) this.#idle?.()
  }

  /** Counts the work until it has settled. */
  track<T>(work: Promise<T>): Promise<T> {
    this.begin()
    const end = (): void => this.end()
    work.then(end, end)
    return work
  }

  /** Resolves when nothing is in flight, including work that was started by what ended last. */
  async idle(): Promise<void> {
    while (this.#count > 0) {
      await new Promise<void>((resolve) => {
        this.#idle = resolve
      })
    }
  }
}
