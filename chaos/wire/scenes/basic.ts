import { pause } from '../play.ts'
import { TTL_MS, WAIT_MS } from '../settings.ts'
import { ALL, parts, type Scene } from './scene.ts'

/** The first claim of a fresh client, a refusal, a release. */
export const acquire: Scene = {
  name: 'acquire',
  stores: ALL,
  clients: 2,
  grants: 1,
  isCold: true,
  async play(play, clients) {
    const { name, a, b } = parts(play, clients)
    const first = await play.acquire(a, { name })
    const second = await play.acquire(b, { name })
    await play.release(a, first)
    await play.release(b, second)
  },
}

/**
 * Each client claims a lock that no other client wants, until the store answers. A lost answer must not lock it out:
 * its own lease would end only after it has stopped to wait.
 */
export const askAgain: Scene = {
  name: 'ask-again',
  stores: ALL,
  clients: 2,
  locks: 2,
  longestTtlMs: WAIT_MS + 1_000,
  async play(play, clients) {
    await Promise.all(
      clients.map(async (client, at) => {
        const ask = { name: play.names[at] as string, waits: true, ttlMs: WAIT_MS + 1_000, isAlone: true }
        await play.release(client, await play.acquire(client, ask))
      }),
    )
  },
}

/** A lock goes from its holder to two waiters, one after the other. */
export const handOff: Scene = {
  name: 'hand-off',
  stores: ALL,
  clients: 3,
  async play(play, clients) {
    const { name, a, b, c } = parts(play, clients)
    const first = await play.acquire(a, { name, heartbeat: true })
    const waiting = [b, c].map(async (client) => {
      const lease = await play.acquire(client, { name, waits: true, heartbeat: true })
      await pause(60)
      await play.release(client, lease)
    })
    await pause(150)
    await play.release(a, first)
    await Promise.all(waiting)
  },
}

/** A release, while another client claims the lock, and the first one claims it again. */
export const release: Scene = {
  name: 'release',
  stores: ALL,
  clients: 2,
  async play(play, clients) {
    const { name, a, b } = parts(play, clients)
    const first = await play.acquire(a, { name })
    const released = play.release(a, first)
    const second = await play.acquire(b, { name, waits: true })
    await released
    const again = play.acquire(a, { name, waits: true })
    await pause(40)
    await play.release(b, second)
    await play.release(a, await again)
  },
}

/** Several renewals, an extension, and a release with a renewal in flight. */
export const renewal: Scene = {
  name: 'renewal',
  stores: ALL,
  clients: 2,
  async play(play, clients) {
    const { name, a, b } = parts(play, clients)
    const first = await play.acquire(a, { name, heartbeat: true })
    const waiting = play.acquire(b, { name, waits: true })
    await pause(TTL_MS * 1.2)
    const extended = play.extend(a, first)
    await play.release(a, first)
    await extended
    const second = await waiting
    await pause(30)
    await play.release(b, second)
  },
}

/** A lease expires. Its holder extends and releases it too late. */
export const expiry: Scene = {
  name: 'expiry',
  stores: ALL,
  clients: 2,
  async play(play, clients) {
    const { name, a, b } = parts(play, clients)
    const first = await play.acquire(a, { name })
    const second = await play.acquire(b, { name, waits: true, heartbeat: true })
    const [extended, released] = [await play.extend(a, first), await play.release(a, first)]
    if (second?.held && (extended || released)) play.watch.violation('an expired lease was extended or released')
    await pause(50)
    await play.release(b, second)
  },
}
