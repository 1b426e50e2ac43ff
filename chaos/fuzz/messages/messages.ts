import type { Draw } from '../../draw.ts'
import { pause } from '../../wire/play.ts'
import type { Judge } from '../judge.ts'
import type { Ground, Stage, Target } from '../target.ts'
import { checkLease, checkResult } from '../valid.ts'
import type { ChannelStore } from './channel.ts'
import { forgedMessage } from './forgery.ts'
import { openPostgresChannels } from './postgres-channels.ts'
import { openRedisChannels } from './redis-channels.ts'

/** Forged messages on the channels that drivers listen to, while a claim waits and a lease is watched. */
export const messages: Target = {
  name: 'messages',
  jobs: 6,
  async open({ library, servers }: Ground): Promise<Stage> {
    const stores = await Promise.all([
      openRedisChannels(library, 1),
      openRedisChannels(library, 3),
      openPostgresChannels(library, servers.postgres),
    ])
    return {
      run: (draw, judge) => runOn(draw.one(stores), draw, judge),
      async [Symbol.asyncDispose]() {
        await Promise.all(stores.map((store) => store[Symbol.asyncDispose]()))
      },
    }
  },
}

async function runOn(store: ChannelStore, draw: Draw, judge: Judge): Promise<void> {
  const { other, clients } = store
  const { lock, driver } = draw.one(clients)
  const [lockName, heldName] = [judge.name, `${judge.name}.held`]
  const blocking = await other.lock.acquire(lockName, { timeoutSeconds: 60 })
  const watched = await lock.acquire(heldName, { timeoutSeconds: 10, heartbeat: true })
  if (!blocking.acquired || !watched.acquired) throw new Error('the locks are not free')
  const [heldRecord] = (await driver.inspect({ lockName: heldName })).leases

  let isGranted = false
  const waiting = judge.settles(
    'wait',
    () => lock.acquire(lockName, { timeoutSeconds: 5, blockingTimeoutSeconds: 20 }),
    {
      boundMs: 40_000,
    },
  )
  void waiting.then((result) => {
    isGranted = result?.acquired === true
  })
  const { claimId, channels } = await store.waiting(lockName)
  const known = { claimId, lockName, heldClaimId: heldRecord?.claimId ?? '', heard: [...store.heard] }
  const count = draw.whole(1, 40)
  judge.note(`${store.name}, ${count} messages`)
  for (let sent = 0; sent < count; sent += 1) {
    const channel = draw.one(channels)
    const message = forgedMessage(draw, known)
    judge.note(`${channel} ${message.toString('latin1').slice(0, 100)}`)
    await store.send(channel, message)
    judge.check(!isGranted, () => 'a waiter was granted a lock that another client holds')
  }
  // For the messages to arrive, and for a holder that was told of a forced release to ask the store.
  await pause(60)
  judge.check(!isGranted, () => 'a waiter was granted a lock that another client holds')
  // A process that stalls for longer than a lease lasts has lost it, too.
  if (!blocking.lock.held) judge.late.push('the lock of another client was lost')
  if (!watched.lock.held || watched.lock.signal.aborted) judge.late.push('a lease was lost to a forged message')
  checkLease(judge, watched.lock, 10_000)
  await blocking.lock.release()
  const releasedAt = performance.now()
  const lease = checkResult(judge, await waiting, 5_000)
  const lateMs = performance.now() - releasedAt
  judge.check(lease !== undefined, () => 'the waiter was not granted the lock that was released')
  if (lateMs > MAX_LATE_MS)
    judge.late.push(`the waiter was granted the lock ${Math.round(lateMs)} ms after its release`)
  await judge.settles('release', () => lease?.release())
  await judge.settles('release', () => watched.lock.release())
}

/** A forger may delay a wake-up, but a slow poll follows. */
const MAX_LATE_MS = 12_000
