import { connect, createServer, type Socket } from 'node:net'
import { freePort } from './ports.ts'

export type Direction = 'toServer' | 'toClient'

/**
 * A proxy between a client and a server that behaves like a bad network. A fault applies to open and to new
 * connections, and to both directions unless one is given. Bytes never overtake each other.
 */
export interface FaultProxy extends AsyncDisposable {
  readonly port: number
  /** How many connections are open now. */
  readonly connections: number
  /** Delivers all data this much later. 0 ends the delay. */
  delay(ms: number, direction?: Direction): void
  /** Resets every open connection on both sides. New connections work. */
  cut(): void
  /** Sends new connections to another server, as a failover behind one address does. Open connections stay. */
  redirect(targetPort: number): void
  /**
   * Drops everything, also the end of a connection: each side looks silent to the other, not gone. New connections are
   * accepted, because a refusal would be an answer.
   */
  blackHole(direction?: Direction): void
  /** Holds data back, also the end of a connection, even when the sender has gone meanwhile. */
  hold(direction: Direction): void
  /** Delivers in order what `hold` held back, and ends the hold. */
  release(direction: Direction): void
  /**
   * Loses a reply. Forwards the next request (or the next one that contains `request`), waits until the server has
   * answered it, and resets the connection instead of passing the answer on. Resolves when that is done.
   * A reply to an earlier, pipelined request on the same connection counts as the answer, too.
   */
  cutAfterForwarding(request?: string): Promise<void>
  /** Ends every fault. Resets connections that have lost data in a black hole: their streams are broken. */
  heal(): void
  close(): Promise<void>
}

export async function startProxy(targetPort: number, targetHost = '127.0.0.1'): Promise<FaultProxy> {
  const faults: Record<Direction, Fault> = { toServer: noFault(), toClient: noFault() }
  const open = new Set<Connection>()
  const ambushes = new Set<Ambush>()

  let currentPort = targetPort

  const listener = createServer({ allowHalfOpen: true, noDelay: true }, (client) => {
    const server = connect({ port: currentPort, host: targetHost, allowHalfOpen: true, noDelay: true })
    const connection = joinSockets({ client, server, faults, ambushes })
    open.add(connection)
    connection.onClosed(() => open.delete(connection))
  })
  const port = await freePort()
  await new Promise<void>((resolve, reject) => listener.once('error', reject).listen(port, '127.0.0.1', resolve))

  const change = (direction: Direction | undefined, fault: Partial<Fault>) => {
    for (const each of direction ? [direction] : DIRECTIONS) Object.assign(faults[each], fault)
    for (const connection of open) connection.flush()
  }
  const close = async () => {
    const closed = new Promise<void>((resolve) => listener.close(() => resolve()))
    for (const connection of open) connection.reset()
    await closed
  }
  return {
    port,
    get connections() {
      return open.size
    },
    delay: (delayMs, direction) => change(direction, { delayMs }),
    cut() {
      for (const connection of open) connection.reset()
    },
    redirect(port) {
      currentPort = port
    },
    blackHole: (direction) => change(direction, { isBlackHole: true }),
    hold: (direction) => change(direction, { isHeld: true }),
    release: (direction) => change(direction, { isHeld: false }),
    cutAfterForwarding: (request = '') => new Promise((done) => ambushes.add({ request, done })),
    heal() {
      for (const connection of open) if (connection.hasLostData()) connection.reset()
      ambushes.clear()
      change(undefined, noFault())
    },
    close,
    [Symbol.asyncDispose]: close,
  }
}

interface Fault {
  delayMs: number
  isHeld: boolean
  isBlackHole: boolean
}

/** Waits for a request to pass. */
interface Ambush {
  request: string
  done: () => void
}

const DIRECTIONS = ['toServer', 'toClient'] as const

function noFault(): Fault {
  return { delayMs: 0, isHeld: false, isBlackHole: false }
}

interface Connection {
  flush(): void
  reset(): void
  hasLostData(): boolean
  onClosed(listener: () => void): void
}

function joinSockets({
  client,
  server,
  faults,
  ambushes,
}: {
  client: Socket
  server: Socket
  faults: Record<Direction, Fault>
  ambushes: Set<Ambush>
}): Connection {
  let ambush: Ambush | undefined
  let closedCount = 0
  const closedListeners: (() => void)[] = []
  const reset = () => {
    client.resetAndDestroy()
    server.resetAndDestroy()
  }
  const toServer = makePipe(server, faults.toServer)
  const toClient = makePipe(client, faults.toClient)

  client.on('data', (chunk) => {
    if (ambush === undefined) {
      const text = chunk.toString('latin1')
      ambush = [...ambushes].find((each) => text.includes(each.request))
      if (ambush) ambushes.delete(ambush)
    }
    toServer.push(chunk)
  })
  server.on('data', (chunk) => {
    if (ambush === undefined) return toClient.push(chunk)
    reset()
    ambush.done()
  })
  client.on('end', () => toServer.push('end'))
  server.on('end', () => toClient.push('end'))
  // What a client has sent is still delivered after the client has gone, even if it is held back or delayed.
  client.on('error', () => toServer.push('reset'))
  server.on('error', () => toClient.push('reset'))
  for (const socket of [client, server]) {
    socket.on('close', () => {
      if (++closedCount === 2) for (const listener of closedListeners) listener()
    })
  }
  return {
    flush() {
      toServer.flush()
      toClient.flush()
    },
    reset,
    hasLostData: () => toServer.hasLostData() || toClient.hasLostData(),
    onClosed: (listener) => closedListeners.push(listener),
  }
}

export type Item = Buffer | 'end' | 'reset'

/** One direction of one connection: a queue of chunks, each with its earliest time of delivery. */
function makePipe(target: Socket, fault: Fault) {
  const queue: { item: Item; dueAt: number }[] = []
  let timer: NodeJS.Timeout | undefined
  let lostData = false

  const flush = () => {
    clearTimeout(timer)
    while (queue[0] !== undefined) {
      if (fault.isBlackHole) {
        queue.length = 0
        lostData = true
        return
      }
      if (fault.isHeld) return
      const waiterTtlMs = fault.delayMs === 0 ? 0 : queue[0].dueAt - performance.now()
      if (waiterTtlMs > 0) {
        timer = setTimeout(flush, waiterTtlMs)
        return
      }
      deliver(target, queue.shift()?.item ?? 'end')
    }
  }
  return {
    push(item: Item) {
      queue.push({ item, dueAt: performance.now() + fault.delayMs })
      flush()
    },
    flush,
    hasLostData: () => lostData,
  }
}

export function deliver(target: Socket, item: Item): void {
  if (target.destroyed) return
  if (item === 'end') target.end()
  else if (item === 'reset') target.resetAndDestroy()
  else target.write(item)
}
