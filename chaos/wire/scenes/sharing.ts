import { pause } from '../play.ts'
import { parts, type Scene } from './scene.ts'

/** Two readers, a writer that waits for both, and a reader behind the writer. */
export const shared: Scene = {
  name: 'shared',
  stores: ['redis', 'redlock', 'postgres', 'advisory'],
  clients: 3,
  async play(play, clients) {
    const { name, a, b, c } = parts(play, clients)
    const readers = await Promise.all([play.read(a, { name, heartbeat: true }), play.read(b, { name })])
    const writing = play.acquire(c, { name, waits: true, heartbeat: true })
    await pause(60)
    await play.release(a, readers[0])
    const again = play.read(a, { name, waits: true })
    await play.release(b, readers[1])
    const writer = await writing
    await pause(60)
    await play.release(c, writer)
    await play.release(a, await again)
  },
}

/** Two permits for three clients. */
export const limited: Scene = {
  name: 'limited',
  stores: ['redis', 'postgres'],
  clients: 3,
  async play(play, clients) {
    const { name, a, b, c } = parts(play, clients)
    const first = await play.permit(a, 2, { name, heartbeat: true })
    const second = await play.permit(b, 2, { name })
    const waiting = play.permit(c, 2, { name, waits: true, heartbeat: true })
    await pause(80)
    await play.release(a, first)
    const third = await waiting
    const again = play.permit(a, 2, { name, waits: true })
    await play.release(b, second)
    await play.release(a, await again)
    await play.release(c, third)
  },
}

/** Two clients want the same two locks, in opposite order. */
export const withLocks: Scene = {
  name: 'with-locks',
  stores: ['redis', 'redlock', 'postgres', 'advisory'],
  clients: 2,
  locks: 2,
  async play(play, clients) {
    const { a, b } = parts(play, clients)
    const [one, two] = play.names as [string, string]
    const first = play.withLocks(a, [one, two], 120)
    await pause(30)
    await Promise.all([first, play.withLocks(b, [two, one], 40)])
  },
}

/** Two clients ask at the same moment, and the loser again and again. With Redlock, their votes may split. */
export const vote: Scene = {
  name: 'vote',
  stores: ['redis', 'redlock', 'postgres', 'advisory'],
  clients: 2,
  async play(play, clients) {
    const { name } = parts(play, clients)
    await Promise.all(
      clients.map(async (client) => {
        const lease = await play.acquire(client, { name, waits: true })
        await pause(40)
        await play.release(client, lease)
      }),
    )
  },
}
