import { type FaultProxy, startProxy } from '../test/harness/proxy.ts'
import type { Direction, Ways } from './faults.ts'

/** A proxy for each pair of client and server, so that a fault can hit only some of them. */
export class Links implements AsyncDisposable {
  readonly #links: readonly (readonly StoreClient[])[]

  private constructor(links: readonly (readonly StoreClient[])[]) {
    this.#links = links
  }

  /** `ports` are the ports of the servers. */
  static async open(clients: number, ports: readonly number[]): Promise<Links> {
    const links: StoreClient[][] = []
    for (let client = 0; client < clients; client += 1) {
      links.push(await Promise.all(ports.map(async (port) => new StoreClient(await startProxy(port)))))
    }
    return new Links(links)
  }

  /** The ports at which a client reaches the servers. */
  portsOf(client: number): number[] {
    return (this.#links[client] ?? []).map(({ proxy }) => proxy.port)
  }

  cut(ways: Ways): void {
    for (const { proxy } of this.#at(ways)) proxy.cut()
  }

  /** Sends new connections to another server. */
  redirect(ways: Ways, port: number): void {
    for (const { proxy } of this.#at(ways)) proxy.redirect(port)
  }

  /** Returns a function that ends the fault. */
  begin(ways: Ways, trouble: Trouble): () => void {
    const links = this.#at(ways)
    for (const link of links) link.begin(trouble)
    return () => {
      for (const link of links) link.end(trouble)
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.#links.flat().map(({ proxy }) => proxy.close()))
  }

  #at({ clients, servers }: Ways): StoreClient[] {
    return clients.flatMap((client) => servers.flatMap((server) => this.#links[client]?.[server] ?? []))
  }
}

export type Trouble =
  | { kind: 'late'; direction: Direction; byMs: number }
  | { kind: 'held'; direction: Direction }
  | { kind: 'silent' }

const DIRECTIONS = ['toServer', 'toClient'] as const

/** A proxy has one fault of a kind at a time. Here faults overlap, and the end of one keeps the others. */
class StoreClient {
  readonly proxy: FaultProxy
  readonly #troubles = new Set<Trouble>()

  constructor(proxy: FaultProxy) {
    this.proxy = proxy
  }

  begin(trouble: Trouble): void {
    this.#troubles.add(trouble)
    this.#apply()
  }

  end(trouble: Trouble): void {
    this.#troubles.delete(trouble)
    // The end of a black hole heals everything, and resets the connections that have lost bytes in it.
    if (trouble.kind === 'silent') this.proxy.heal()
    this.#apply()
  }

  #apply(): void {
    const all = [...this.#troubles]
    for (const direction of DIRECTIONS) {
      const late = all.filter((each) => each.kind === 'late' && each.direction === direction)
      this.proxy.delay(Math.max(0, ...late.map((each) => ('byMs' in each ? each.byMs : 0))), direction)
      const isHeld = all.some((each) => each.kind === 'held' && each.direction === direction)
      if (isHeld) this.proxy.hold(direction)
      else this.proxy.release(direction)
    }
    if (all.some(({ kind }) => kind === 'silent')) this.proxy.blackHole()
  }
}
