import { type FaultProxy, startProxy } from '../test/harness/proxy.ts'
import type { Direction, Ways } from './plan.ts'

/** A proxy of its own for every client on its way to every server, so that a fault can concern only some of them. */
export class Links implements AsyncDisposable {
  readonly #links: readonly (readonly StoreClient[])[]

  private constructor(links: readonly (readonly StoreClient[])[]) {
    this.#links = links
  }

  /** `ports` are those of the servers. */
  static async open(clients: number, ports: readonly number[]): Promise<Links> {
    const links: StoreClient[][] = []
    for (let client = 0; client < clients; client += 1) {
      links.push(await Promise.all(ports.map(async (port) => new StoreClient(await startProxy(port)))))
    }
    return new Links(links)
  }

  /** Where a client finds the servers. */
  portsOf(client: number): number[] {
    return (this.#links[client] ?? []).map(({ proxy }) => proxy.port)
  }

  cut(ways: Ways): void {
    for (const { proxy } of this.#at(ways)) proxy.cut()
  }

  /** New connections of these clients go to another server. */
  redirect(clients: readonly number[], port: number): void {
    for (const client of clients) for (const { proxy } of this.#links[client] ?? []) proxy.redirect(port)
  }

  /** Returns what ends it. */
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

/** A proxy knows one fault of a kind at a time. Here they overlap: the end of one leaves the others. */
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
    // A black hole ends with all that is wrong, and resets the connections that have lost bytes in it.
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
