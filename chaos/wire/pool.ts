/** Lends things to one user at a time, makes new ones up to a bound, and lets later users wait. */
export class Pool<T> {
  readonly #make: () => Promise<T>
  readonly #most: number
  readonly #idle: T[] = []
  readonly #waiting: ((thing: T) => void)[] = []
  #count = 0

  constructor(most: number, make: () => Promise<T>) {
    this.#most = most
    this.#make = make
  }

  async take(): Promise<T> {
    const idle = this.#idle.pop()
    if (idle !== undefined) return idle
    if (this.#count >= this.#most) return new Promise((resolve) => this.#waiting.push(resolve))
    this.#count += 1
    try {
      return await this.#make()
    } catch (error) {
      this.#count -= 1
      throw error
    }
  }

  leave(thing: T): void {
    const next = this.#waiting.shift()
    if (next) next(thing)
    else this.#idle.push(thing)
  }
}
