import { pause } from '../play.ts'
import { CALL_MS, SLACK_MS, TTL_MS, WAIT_MS } from '../settings.ts'
import { ALL, parts, type Scene } from './scene.ts'

/** Of the lease by which `forceRelease` takes a lock. A process that dies in it leaves the lock for this long. */
const FORCING_TTL_MS = 5_000

/** A lock is taken from its holder by force, while another client waits for it. */
export const force: Scene = {
  name: 'force',
  stores: ['redis', 'postgres'],
  clients: 3,
  grants: 2,
  async play(play, clients) {
    const { name, a, b, c } = parts(play, clients)
    const first = await play.acquire(a, { name, heartbeat: true })
    const waiting = play.acquire(c, { name, waits: true, heartbeat: true })
    await pause(60)
    // Without a first lease, the waiter is the holder that loses its lease by force. Until its grant is known, it
    // looks like one that lost its lease for no reason.
    if (first === undefined) await waiting
    play.watch.taken(name, FORCING_TTL_MS)
    const ended = await play.settles('b forceRelease', CALL_MS * 6, () => b.lock.forceRelease(name, { by: 'client b' }))
    if (ended !== undefined) play.watch.freed(name)
    const second = await waiting
    await pause(60)
    if (ended?.some(({ fencingToken }) => fencingToken === first?.fencingToken)) await play.loses(a, first)
    await play.release(c, second)
    await play.release(a, first)
  },
}

/** A leader resigns, and the next candidate is elected. It loses its term by closing. */
export const election: Scene = {
  name: 'election',
  stores: ALL,
  clients: 2,
  async play(play, clients) {
    const { name, a, b } = parts(play, clients)
    const [first, second] = [a.election(name), b.election(name)]
    const term = await play.campaign(a, first, name)
    const campaign = play.campaign(b, second, name)
    await pause(TTL_MS / 2)
    if (term) {
      play.watch.ended(term)
      await play.settles('a resign', CALL_MS * 2, () => term.resign())
    }
    const next = await campaign
    await play.settles('a leader', CALL_MS * 2, () => first.leader())
    await pause(40)
    if (next) play.watch.ended(next)
    await play.settles('b close', WAIT_MS, () => second.close({ drainSeconds: 0 }))
  },
}

/** A waiter gives up in the moment of a release. Its claim must not keep the lock. */
export const giveUp: Scene = {
  name: 'give-up',
  stores: ALL,
  clients: 3,
  grants: 2,
  async play(play, clients) {
    const { name, a, b, c } = parts(play, clients)
    const first = await play.acquire(a, { name, heartbeat: true })
    const abort = new AbortController()
    const givenUp = play.acquire(b, { name, waits: true, signal: abort.signal })
    await pause(80)
    const waiting = play.acquire(c, { name, waits: true })
    await pause(40)
    const released = play.release(a, first)
    abort.abort()
    await play.release(b, await givenUp)
    await released
    await play.release(c, await waiting)
  },
}

/** The process of the holder ends in order, with a waiter of its own. */
export const closing: Scene = {
  name: 'close',
  stores: ALL,
  clients: 2,
  async play(play, clients) {
    const { name, a, b } = parts(play, clients)
    const first = await play.acquire(a, { name, heartbeat: true })
    const waiting = play.acquire(b, { name, waits: true, heartbeat: true })
    await pause(80)
    if (first) play.watch.ended(first)
    await play.settles('a close', WAIT_MS + SLACK_MS, () => a.lock.close({ drainSeconds: 0 }))
    await play.release(b, await waiting)
  },
}
