import { randomInt } from 'node:crypto'
import { createServer } from 'node:net'

/** Redis Cluster nodes talk to each other on their port plus this number. */
const CLUSTER_BUS_OFFSET = 10_000

/**
 * A process reserves a port by listening on the same number at this address for as long as it lives. PostgreSQL takes
 * seconds until it listens itself, and no other process of this run or of another one may take its port meanwhile.
 * On Linux, all of 127.0.0.0/8 is this machine. Elsewhere the reservation fails, and the port is taken without it.
 */
const RESERVED_AT = '127.7.7.7'

/**
 * A free port on 127.0.0.1. The port 10,000 above, where a Redis Cluster node also listens, is free, too.
 *
 * It is below the range that the kernel uses for outgoing connections (32768 and up on Linux). Otherwise a client could
 * take the port of a server while it restarts.
 */
export async function freePort(): Promise<number> {
  for (let attempt = 0; attempt < 200; attempt++) {
    const port = randomInt(12_000, 22_000)
    if (!(await reserve(port))) continue
    if ((await canListen(port)) && (await canListen(port + CLUSTER_BUS_OFFSET))) return port
  }
  throw new Error('found no free port between 12000 and 22000 on 127.0.0.1')
}

/** Whether the port was free. It is not if another process has it, or if this process has reserved it before. */
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
