import { randomInt } from 'node:crypto'
import { createServer } from 'node:net'

/** Redis Cluster nodes talk to each other on their port plus this. */
const CLUSTER_BUS_OFFSET = 10_000

/**
 * Where a process that was handed a port listens on the same number for as long as it lives: PostgreSQL takes seconds until it listens itself, and no other
 * process of this run, or of another one, may be handed its port meanwhile. All of 127.0.0.0/8 is this machine on Linux; elsewhere nobody can listen
 * there, and chance has to do.
 */
const RESERVED_AT = '127.7.7.7'

/**
 * A free port on 127.0.0.1, and with it the one 10,000 above, where a Redis Cluster node listens too.
 *
 * It lies below the range from which the kernel serves outgoing connections (32768 and up on Linux), so that a server that
 * is down for a restart does not find its port taken by somebody's client.
 */
export async function freePort(): Promise<number> {
  for (let attempt = 0; attempt < 200; attempt++) {
    const port = randomInt(12_000, 22_000)
    if (!(await reserve(port))) continue
    if ((await canListen(port)) && (await canListen(port + CLUSTER_BUS_OFFSET))) return port
  }
  throw new Error('found no free port between 12000 and 22000 on 127.0.0.1')
}

/** False: another process has it, or this one was handed it before. */
function reserve(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const reservation = createServer().unref()
    reservation.once('error', (error: NodeJS.ErrnoException) => resolve(error.code !== 'EADDRINUSE'))
    reservation.listen(port, RESERVED_AT, () => resolve(true))
  })
}

function canListen(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const probe = createServer()
    probe.once('error', () => resolve(false))
    probe.listen(port, '127.0.0.1', () => probe.close(() => resolve(true)))
  })
}
