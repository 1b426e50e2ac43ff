import { type AddressInfo, connect, createServer, type Server } from 'node:net'
import type { Draw } from '../../draw.ts'
import { type Director, joinMessages } from '../../wire/connection.ts'
import type { Conversation, Message, Protocol } from '../../wire/message.ts'
import { postgresConversation } from '../../wire/postgres.ts'
import { endOfPart, mutatePostgres } from './mutate-postgres.ts'
import { mutateResp } from './mutate-resp.ts'

export interface Hostility {
  /** Which of the replies after `arm` is changed: 0 is the first. Undefined: each one with a chance of a third. */
  readonly at: number | undefined
  readonly kind: 'changed' | 'cut' | 'garbled'
  /** See `mutatePostgres`. */
  readonly keepsShape: boolean
}

/** A proxy before each server, which changes replies at their boundaries. Requests arrive as they are. */
export class HostileProxy implements AsyncDisposable {
  /** What it did, for people. */
  readonly done: string[] = []
  readonly #protocol: Protocol
  readonly #draw: Draw
  readonly #hostility: Hostility
  readonly #listeners: Server[] = []
  readonly #open = new Set<{ reset(): void }>()
  readonly #cutAfter = new WeakSet<Message>()
  #isArmed = false
  #count = 0

  constructor(protocol: Protocol, draw: Draw, hostility: Hostility) {
    this.#protocol = protocol
    this.#draw = draw
    this.#hostility = hostility
  }

  /** Replies are changed from here on. */
  arm(): void {
    this.#isArmed = true
  }

  disarm(): void {
    this.#isArmed = false
  }

  /** The ports of the proxies. Only the replies of the first `hostile` servers are changed. */
  listen(ports: readonly number[], hostile = ports.length): Promise<number[]> {
    return Promise.all(ports.map((port, at) => this.#listen(port, at < hostile)))
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const closed = this.#listeners.map((listener) => new Promise((resolve) => listener.close(resolve)))
    for (const connection of this.#open) connection.reset()
    await Promise.all(closed)
  }

  async #listen(port: number, isHostile: boolean): Promise<number> {
    const listener = createServer({ allowHalfOpen: true, noDelay: true }, (client) => {
      const server = connect({ port, host: '127.0.0.1', allowHalfOpen: true, noDelay: true })
      const inner = this.#protocol()
      const conversation = isHostile ? this.#changing(inner) : inner
      const joined = joinMessages({ client, server, conversation, director: this.#director })
      this.#open.add(joined)
      client.on('close', () => this.#open.delete(joined))
    })
    this.#listeners.push(listener)
    await new Promise<void>((resolve, reject) => listener.once('error', reject).listen(0, '127.0.0.1', resolve))
    return (listener.address() as AddressInfo).port
  }

  readonly #director: Director = {
    faultOf: (_direction, message) => (this.#cutAfter.has(message) ? 'cut-after' : undefined),
    untilLate: async () => {},
    untilOvertaken: async () => {},
    untilGivenUp: async () => {},
    untilReconnected: async () => {},
  }

  #changing(inner: Conversation): Conversation {
    return { ...inner, fromServer: (chunk) => inner.fromServer(chunk).map((message) => this.#changed(message)) }
  }

  #changed(message: Message): Message {
    if (!this.#isArmed) return message
    const number = this.#count
    this.#count += 1
    const { at, kind } = this.#hostility
    if (at === undefined ? !this.#draw.chance(0.3) : number !== at) return message
    const { bytes, how } = this.#bytesOf(kind, message)
    if (this.done.length < 20) this.done.push(`reply ${number} (${message.label}): ${how}`)
    const changed = { ...message, bytes }
    if (kind === 'cut') this.#cutAfter.add(changed)
    return changed
  }

  #bytesOf(kind: Hostility['kind'], { bytes }: Message): { bytes: Buffer; how: string } {
    const isPostgres = this.#protocol === postgresConversation
    if (kind === 'changed')
      return isPostgres ? mutatePostgres(this.#draw, bytes, this.#hostility.keepsShape) : mutateResp(this.#draw, bytes)
    const length = this.#draw.whole(0, bytes.length - 1)
    if (kind === 'cut') return { bytes: bytes.subarray(0, length), how: `cut after ${length} bytes` }
    // The rest never comes: the client reads the next reply as its continuation. For PostgreSQL it ends at a message of
    // the protocol: the package postgres loops for ever in a RowDescription that ends too early.
    const end = isPostgres ? endOfPart(bytes, length) : length
    return { bytes: bytes.subarray(0, end), how: `only its first ${end} bytes` }
  }
}
