import type { Fault } from './faults.ts'

/** One line on a terminal that changes, or a plain line for each episode. */
export class Progress {
  readonly #stream: NodeJS.WriteStream
  readonly #episodes: number
  #timer: NodeJS.Timeout | undefined
  #faults = 0
  #last = ''

  constructor(stream: NodeJS.WriteStream, episodes: number) {
    this.#stream = stream
    this.#episodes = episodes
  }

  begin(episode: number, seconds: number): void {
    const startedMs = performance.now()
    if (!this.#stream.isTTY) return
    this.#timer = setInterval(() => {
      const ran = Math.min(seconds, (performance.now() - startedMs) / 1_000).toFixed(0)
      this.#draw(`episode ${episode} of ${this.#episodes}: ${ran} s, ${this.#faults} faults, last ${this.#last}`)
    }, 500)
  }

  fault({ kind }: Fault): void {
    this.#faults += 1
    this.#last = kind
  }

  /** Writes what an episode has found, which stays. */
  end(line: string): void {
    clearInterval(this.#timer)
    this.#draw('')
    this.#stream.write(`${line}\n`)
  }

  #draw(text: string): void {
    if (this.#stream.isTTY) this.#stream.write(`\r\x1b[K${text.slice(0, this.#stream.columns - 1)}`)
  }
}
