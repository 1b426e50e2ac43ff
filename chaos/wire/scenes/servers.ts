import { pause } from '../play.ts'
import { CALL_MS, TTL_MS } from '../settings.ts'
import { parts, type Scene } from './scene.ts'

/** The servers forget their scripts, while a lock is held and another client waits. */
export const scriptsLost: Scene = {
  name: 'scripts-lost',
  stores: ['redis', 'redlock'],
  clients: 2,
  ground: 'own',
  async play(play, clients, servers) {
    const { name, a, b } = parts(play, clients)
    await servers.flushScripts()
    const first = await play.acquire(a, { name, heartbeat: true })
    await servers.flushScripts()
    const waiting = play.acquire(b, { name, waits: true, heartbeat: true })
    await pause(TTL_MS / 2)
    await servers.flushScripts()
    await play.release(a, first)
    const second = await waiting
    await servers.flushScripts()
    await play.release(b, second)
  },
}

/** A planned failover, which loses no write, while a lock is held and another client waits. */
export const failover: Scene = {
  name: 'failover',
  stores: ['redis'],
  clients: 2,
  ground: 'pair',
  async play(play, clients, servers) {
    const { name, a, b } = parts(play, clients)
    const first = await play.acquire(a, { name, heartbeat: true })
    const waiting = play.acquire(b, { name, waits: true, heartbeat: true })
    await pause(60)
    await servers.failOver()
    await pause(TTL_MS / 2)
    await play.release(a, first)
    await play.release(b, await waiting)
  },
}

/** The servers refuse writes, as without enough replicas, while a lock is released to a waiter. */
export const refusedWrites: Scene = {
  name: 'refused-writes',
  stores: ['redis', 'redlock'],
  clients: 2,
  ground: 'own',
  async play(play, clients, servers) {
    const { name, a, b } = parts(play, clients)
    const first = await play.acquire(a, { name })
    const waiting = play.acquire(b, { name, waits: true })
    await pause(150)
    await servers.refuseWrites(true)
    let released: Promise<unknown>
    try {
      released = play.release(a, first)
      await pause(CALL_MS / 2)
    } finally {
      await servers.refuseWrites(false)
    }
    await released
    await play.release(b, await waiting)
  },
}
