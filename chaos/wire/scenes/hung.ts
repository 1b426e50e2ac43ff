import type { Lease } from 'holdfast'
import type { Client } from '../client.ts'
import { type Play, pause } from '../play.ts'
import { CALL_MS, TTL_MS } from '../settings.ts'
import { parts, type Scene, type SceneServers } from './scene.ts'

/** The first lock is on the master that hangs, the others are on masters that answer. */
const HUNG = 0

/** A client claims, renews and releases locks of masters that answer, in the same turns as locks of one that hangs. */
export const besideHung: Scene = {
  name: 'beside-hung',
  stores: ['cluster'],
  clients: 2,
  locks: 3,
  grants: 3,
  async play(play, clients, servers) {
    const { a, b } = parts(play, clients)
    const [hung, near, far] = play.names as [string, string, string]
    const [first, kept] = await Promise.all([
      play.acquire(a, { name: hung, heartbeat: true }),
      play.acquire(a, { name: near, heartbeat: true }),
    ])
    await whileHanging(servers, async () => {
      const hanging = play.acquire(b, { name: hung })
      const quick = await granted(play, b, play.acquire(b, { name: far, heartbeat: true }))
      await hanging
      // Both leases on masters that answer are renewed in lists with that of the one that hangs.
      await pause(TTL_MS * 1.5)
      stillHeld(play, a, kept)
      stillHeld(play, b, quick)
      await Promise.all([play.release(a, first), play.release(a, kept), play.release(b, quick)])
    })
  },
}

/** Clients that have never waited begin to wait for a lock of a master that answers, and get it in their order. */
export const handOffBesideHung: Scene = {
  name: 'hand-off-beside-hung',
  stores: ['cluster'],
  clients: 3,
  locks: 2,
  grants: 3,
  async play(play, clients, servers) {
    const { a, b, c } = parts(play, clients)
    const [hung, name] = play.names as [string, string]
    const first = await play.acquire(a, { name, heartbeat: true })
    await whileHanging(servers, async () => {
      const hanging = play.acquire(b, { name: hung })
      const isUnhurt = clients.every((client) => !play.isHurt(client))
      const waiting = [b, c].map(async (client) => {
        const lease = await play.acquire(client, { name, waits: true, heartbeat: true })
        if (lease === undefined && isUnhurt) play.watch.late(`${client.id} is stuck in the queue of ${name}`)
        await pause(60)
        await play.release(client, lease)
      })
      await pause(150)
      await play.release(a, first)
      await Promise.all(waiting)
      await hanging
    })
  },
}

/** Several locks at once: those that answer are held together, and are free again if another one hangs. */
export const withLocksBesideHung: Scene = {
  name: 'with-locks-beside-hung',
  stores: ['cluster'],
  clients: 2,
  locks: 3,
  grants: 2,
  async play(play, clients, servers) {
    const { a, b } = parts(play, clients)
    const [hung, near, far] = play.names as [string, string, string]
    await whileHanging(servers, async () => {
      const failing = play.withLocks(a, [near, hung], 40)
      await play.withLocks(b, [near, far], 60)
      await pause(CALL_MS)
      return failing
    })
  },
}

async function whileHanging(servers: SceneServers, work: () => Promise<void>): Promise<void> {
  const resume = servers.hang(HUNG)
  try {
    await work()
  } finally {
    resume()
  }
}

/** A claim of a client without a fault, on a master that answers. */
async function granted(play: Play, client: Client, asked: Promise<Lease | undefined>): Promise<Lease | undefined> {
  const lease = await asked
  if (lease === undefined && !play.isHurt(client))
    play.watch.late(`${client.id} got no answer beside a master that hangs`)
  return lease
}

function stillHeld(play: Play, client: Client, lease: Lease | undefined): void {
  if (lease === undefined || lease.held || play.isHurt(client)) return
  play.watch.late(`${client.id} has lost ${lease.lockName} beside a master that hangs`)
}
