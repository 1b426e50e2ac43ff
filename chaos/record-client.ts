import { connect, type Socket } from 'node:net'
import { createInterface } from 'node:readline'

/** A client of `RecordServer`, with a connection of its own. */
export class RecordClient {
  readonly #socket: Socket
  readonly #waiting: ((line: string) => void)[] = []

  constructor(port: number) {
    this.#socket = connect(port, '127.0.0.1').setNoDelay()
    this.#socket.on('error', () => {})
    createInterface({ input: this.#socket }).on('line', (line) => this.#waiting.shift()?.(line))
  }

  /** Adds 1 to a record with `pause` between the read and the write. False if the token was refused. */
  async increment(name: string, token: number, pause: () => Promise<void>): Promise<boolean> {
    const { value } = await this.#ask(['read', name, token])
    if (value === undefined) return false
    await pause()
    const { refused } = await this.#ask(['write', name, token, value, value + 1])
    return refused === undefined
  }

  close(): void {
    this.#socket.destroy()
  }

  #ask(request: unknown[]): Promise<{ value?: number; refused?: number }> {
    return new Promise((resolve) => {
      this.#waiting.push((line) => resolve(JSON.parse(line)))
      this.#socket.write(`${JSON.stringify(request)}\n`)
    })
  }
}
