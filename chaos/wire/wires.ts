import { setMaxListeners } from 'node:events'
import { type AddressInfo, connect, createServer, type Server } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { nowMs } from '../history.ts'
import { type Director, type Joined, joinMessages } from './connection.ts'
import { type Fault, faultsFor, type Place, placeText } from './fault.ts'
import type { Protocol } from './message.ts'
import { CALL_MS, HELD_BACK_FOR_MS, LOST_FOR_MS } from './settings.ts'

/** A message of a run, and the faults that can hit it. */
export interface Seen {
  readonly place: string
  readonly label: string
  readonly faults: readonly Fault[]
}

/** The proxies between the clients of one run and the servers. They number all messages from `begin` on. */
export class Wires implements AsyncDisposable {
  /** All numbered messages in their order. */
  readonly seen: Seen[] = []
  /** Where faults were injected. */
  readonly injected = new Set<string>()
  readonly #protocol: Protocol
  readonly #faults: ReadonlyMap<string, Fault>
  readonly #listeners: Server[] = []
  readonly #open = new Map<Joined, number>()
  /** Servers that hang. */
  readonly #hung = new Set<number>()
  /** Their messages from then on are not explored: none of them arrives. */
  readonly #unnumbered = new Set<number>()
  readonly #connections = new Map<string, number>()
  readonly #over = new AbortController()
  readonly #waiting: { client: string; go: () => void }[] = []
  /** For the next connection of a client to a server: `a0`. */
  readonly #successors: { key: string; go: () => void }[] = []
  #targets: readonly number[]
  #isNumbering = false
  #heldBack = 0
  #lastHeldBackAt = 0

  constructor(protocol: Protocol, ports: readonly number[], faults: ReadonlyMap<string, Fault>) {
    this.#protocol = protocol
    this.#targets = ports
    this.#faults = faults
    setMaxListeners(0, this.#over.signal)
  }

  /** The messages from here on belong to the scene. */
  begin(): void {
    this.#isNumbering = true
  }

  /** Ports through which this client reaches the servers. */
  portsFor(client: string): Promise<number[]> {
    return Promise.all(this.#targets.map((_, server) => this.#listen(client, server)))
  }

  /** A lease was granted: what was held back of other clients may arrive a moment later. */
  granted(client: string): void {
    for (const each of this.#waiting) if (each.client !== client) setTimeout(each.go, A_MOMENT_MS)
  }

  /** When a message was last held back. Until it goes on, the server does not know what its client did. */
  get lastHeldBackAt(): number {
    return this.#heldBack > 0 ? nowMs() : this.#lastHeldBackAt
  }

  /** New connections go to these servers, as after a failover behind one address. Open connections are cut. */
  redirect(ports: readonly number[]): void {
    this.#targets = ports
    this.cut()
  }

  cut(): void {
    for (const connection of this.#open.keys()) connection.reset()
  }

  /** From now on the server hangs: connections open and stay open, but nothing is answered. Returns what ends it. */
  hang(server: number): () => void {
    const each = (act: (connection: Joined) => void): void => {
      for (const [connection, at] of this.#open) if (at === server) act(connection)
    }
    this.#hung.add(server)
    this.#unnumbered.add(server)
    each((connection) => connection.pause())
    return () => {
      this.#hung.delete(server)
      each((connection) => connection.resume())
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#over.abort()
    const closed = this.#listeners.map((listener) => new Promise((resolve) => listener.close(resolve)))
    this.cut()
    await Promise.all(closed)
  }

  async #listen(client: string, server: number): Promise<number> {
    const listener = createServer({ allowHalfOpen: true, noDelay: true }, (socket) => {
      const port = this.#targets[server] as number
      const target = connect({ port, host: '127.0.0.1', allowHalfOpen: true, noDelay: true })
      const key = `${client}${server}`
      for (const each of this.#successors) if (each.key === key) setTimeout(each.go, A_MOMENT_MS)
      const director = this.#director({ client, server })
      const joined = joinMessages({ client: socket, server: target, conversation: this.#protocol(), director })
      this.#open.set(joined, server)
      if (this.#hung.has(server)) joined.pause()
      socket.on('close', () => {
        if (target.destroyed) this.#open.delete(joined)
      })
      target.on('close', () => {
        if (socket.destroyed) this.#open.delete(joined)
      })
    })
    this.#listeners.push(listener)
    await new Promise<void>((resolve, reject) => listener.once('error', reject).listen(0, '127.0.0.1', resolve))
    return (listener.address() as AddressInfo).port
  }

  #director(ends: Pick<Place, 'client' | 'server'>): Director {
    const counts = { q: 0, r: 0 }
    const key = `${ends.client}${ends.server}`
    let number: number | undefined
    /** With its first message of the scene. A client of a Cluster opens and closes some before, in a random order. */
    const connection = (): number => {
      if (number === undefined) {
        number = this.#connections.get(key) ?? 0
        this.#connections.set(key, number + 1)
      }
      return number
    }
    return {
      faultOf: (direction, message, conversation) => {
        if (!this.#isNumbering || this.#unnumbered.has(ends.server)) return undefined
        counts[direction] += 1
        const at = placeText({ ...ends, connection: connection(), direction }, counts[direction])
        this.seen.push({ place: at, label: message.label, faults: faultsFor(conversation, message, counts[direction]) })
        const fault = this.#faults.get(at)
        if (fault !== undefined) this.injected.add(at)
        return fault
      },
      untilLate: () => this.#holdBack(this.#pause(CALL_MS * 1.5)),
      untilGivenUp: () => this.#holdBack(this.#pause(LOST_FOR_MS)),
      untilOvertaken: () => this.#holdBack(this.#until((go) => this.#waiting.push({ client: ends.client, go }))),
      untilReconnected: () => this.#holdBack(this.#until((go) => this.#successors.push({ key, go }))),
    }
  }

  #holdBack(moment: Promise<void>): Promise<void> {
    this.#heldBack += 1
    return moment.then(() => {
      this.#heldBack -= 1
      this.#lastHeldBackAt = nowMs()
    })
  }

  /** Resolves when `go` is called, or at the latest after a fixed time. */
  #until(add: (go: () => void) => void): Promise<void> {
    return new Promise((resolve) => {
      add(resolve)
      void this.#pause(HELD_BACK_FOR_MS).then(resolve)
    })
  }

  /** Ends early with the run. */
  #pause(ms: number): Promise<void> {
    return sleep(ms, undefined, { signal: this.#over.signal }).catch(() => {})
  }
}

const A_MOMENT_MS = 25
