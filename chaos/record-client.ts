import { connect, type Socket } from 'node:net'
import { createInterface } from 'node:readline'

/** A client of `RecordServer`, with a connection of its own. Without a token, it uses the record that checks none. */
export class RecordClient {
  readonly #socket: Socket
  readonly #waiting: ((line: string) => void)[] = []

  constructor(port: number) {
    this.#socket = connect(port, '127.0.0.1').setNoDelay()
    this.#socket.on('error', () => {})
    createInterface({ input: this.#socket }).on('line', (line) => this.#waiting.shift()?.(line))
  }

  /** The value, or undefined if the token was refused. */
  async read(name: string, token?: number): Promise<number | undefined> {
    return (await this.#ask(['read', name, token ?? null])).value
  }

  /** Writes the value that was read, plus 1. `isHeld`: whether the lease was held right before. */
  async write(name: string, { from, isHeld, token }: { from: number; isHeld: boolean; token?: number }): Promise<void> {
    await this.#ask(['write', name, token ?? null, from, from + 1, isHeld])
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
