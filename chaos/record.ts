import { createServer, type Server, type Socket } from 'node:net'
import { createInterface } from 'node:readline'

/** What a record has seen of its clients. */
export interface RecordHistory {
  name: string
  /** Whether it checks tokens. If not, it shows the lost updates that only the check prevents. */
  isChecked: boolean
  /** How often it was written. It was 0 in the beginning, and each write adds 1. */
  writes: number
  value: number
  /** Requests with a token below one that had been seen. */
  refused: number
  /** Writes that were based on another value than the current one. */
  lostUpdates: string[]
  /** How many of them came from a process that had seen its lease held right before it sent the write. */
  lostAfterCheck: number
}

interface Record extends RecordHistory {
  largestToken: number
}

type Request =
  | ['read', name: string, token: number | null]
  | ['write', name: string, token: number | null, from: number, to: number, isHeld?: boolean]

/**
 * The protected resource: records that are read and written with a fencing token. A token below one that was seen
 * before is refused, for a read as well as for a write. It is outside of every store under test, and under no fault.
 * Beside each record there is one without the check, for requests without a token.
 *
 * Requests and answers are JSON in lines: `["read",name,token]` → `{"value":n}` or `{"refused":largest}`, and
 * `["write",name,token,from,to,isHeld]` → `{}` or `{"refused":largest}`. The token is null for the record without the
 * check.
 */
export class RecordServer implements AsyncDisposable {
  readonly #server: Server
  readonly #sockets = new Set<Socket>()
  readonly #records = new Map<string, Record>()

  private constructor(server: Server) {
    this.#server = server
    server.on('connection', (socket) => {
      this.#sockets.add(socket)
      socket.on('error', () => {})
      socket.on('close', () => this.#sockets.delete(socket))
      const lines = createInterface({ input: socket }).on('line', (line) => {
        socket.write(`${JSON.stringify(this.#answer(JSON.parse(line)))}\n`)
      })
      // It passes the errors of its socket on. A client that is killed may reset the connection.
      lines.on('error', () => {})
    })
  }

  static async open(): Promise<RecordServer> {
    const server = createServer()
    await new Promise<void>((resolve, reject) => server.once('error', reject).listen(0, '127.0.0.1', resolve))
    return new RecordServer(server)
  }

  get port(): number {
    const address = this.#server.address()
    if (address === null || typeof address === 'string') throw new Error('the record server has no port')
    return address.port
  }

  get histories(): RecordHistory[] {
    return [...this.#records.values()]
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const socket of this.#sockets) socket.destroy()
    await new Promise((resolve) => this.#server.close(resolve))
  }

  #answer([what, name, token, from, to, isHeld]: Request): object {
    const record = this.#record(name, token !== null)
    if (token !== null && token < record.largestToken) {
      record.refused += 1
      return { refused: record.largestToken }
    }
    record.largestToken = token ?? 0
    if (what === 'read' || from === undefined || to === undefined) return { value: record.value }
    if (from !== record.value) {
      record.lostUpdates.push(`token ${token ?? 'none'}: ${from} became ${to}, but was ${record.value}`)
      if (isHeld) record.lostAfterCheck += 1
    }
    record.writes += 1
    record.value = to
    return {}
  }

  #record(name: string, isChecked: boolean): Record {
    const key = `${isChecked} ${name}`
    const known = this.#records.get(key)
    if (known !== undefined) return known
    const empty = { writes: 0, value: 0, refused: 0, lostUpdates: [], lostAfterCheck: 0, largestToken: 0 }
    const record: Record = { name, isChecked, ...empty }
    this.#records.set(key, record)
    return record
  }
}
