import type { Lease, LockOptions, LockResult } from 'holdfast'
import type { Task } from './world.ts'

/** How many tasks share the lock name of a read lock or a semaphore. */
const SHARERS = 16
/** A claim that was refused, or that met a cut connection, is made again after this part of the longest TTL at most. */
const AGAIN = 0.1

/**
 * Keeps one lease at a time, for most of a run. Nothing contends for it: half of the names are new with every round,
 * and the other half are taken again and again.
 */
export async function keepLease(task: Task): Promise<void> {
  const { world, draw } = task
  const { rests, tally, settings } = world
  // Spreads the first claims.
  await rests.rest(draw.between(0, (settings.longestTtlSeconds * 1_000) / 2))
  for (let round = 0; !rests.isOver; round += 1) {
    const kind = draw.weighted(KINDS)
    const options = drawOptions(task)
    const result = await tally.attempt(kind, () => tally.asking(() => acquire(task, { kind, round, options })))
    if (result?.acquired) {
      tally.granted(kind)
      await use(task, result.lock, options).catch((error) => tally.failed(kind, error))
    } else {
      if (result !== undefined) tally.done.refused += 1
      await rests.rest(draw.between(0, AGAIN) * settings.longestTtlSeconds * 1_000)
    }
  }
}

type Kind = 'lock' | 'reader' | 'permit'
const KINDS: readonly (readonly [Kind, number])[] = [
  ['lock', 70],
  ['reader', 15],
  ['permit', 15],
]

type Drawn = LockOptions & { heartbeat: boolean; timeoutSeconds: number }

function drawOptions({ world, draw, shutdown }: Task): Drawn {
  const longest = world.settings.longestTtlSeconds
  const heartbeat = draw.chance(0.5)
  return {
    timeoutSeconds: draw.between(longest / 3, longest),
    heartbeat,
    ...(draw.chance(0.2) && { metadata: { job: draw.whole(1, 1e6), why: 'soak' } }),
    ...(draw.chance(0.3) && { signal: shutdown }),
    ...(heartbeat && draw.chance(0.2) && { maxHoldSeconds: longest * 4 }),
  }
}

interface Claim {
  kind: Kind
  round: number
  options: LockOptions
}

function acquire({ world, draw, number }: Task, { kind, round, options }: Claim): Promise<LockResult> {
  const group = Math.floor(number / SHARERS)
  switch (kind) {
    case 'lock':
      return world.lock.acquire(draw.chance(0.5) ? `job:${number}` : `job:${number}:${round}`, options)
    case 'reader':
      return world.sharing.acquireRead(`shelf:${group}`, options)
    case 'permit':
      return world.wide.acquire(`yard:${group}`, options)
  }
}

/** Holds a lease for a while, and ends it in one of several ways. */
async function use({ world, draw }: Task, lease: Lease, { heartbeat: hasHeartbeat, timeoutSeconds }: Drawn) {
  const { rests, tally, settings } = world
  const ttlMs = lease.remainingSeconds * 1_000
  // A grant that arrives late is renewed once to the full TTL.
  const endMs = performance.now() + ttlMs + timeoutSeconds * 1_000
  const how = hasHeartbeat ? 'release' : draw.weighted(ENDS)
  let isExtended = false
  if (hasHeartbeat) await rests.rest(draw.between(0.2, 1.5) * settings.longestTtlSeconds * 1_000)
  else if (how === 'release') await rests.rest(draw.between(0.3, 0.9) * ttlMs)
  else if (how === 'extend') {
    await rests.rest(ttlMs / 2)
    isExtended = await lease.extend(timeoutSeconds).catch((error) => {
      tally.failed('extend', error)
      return false
    })
    if (isExtended) tally.done.extended += 1
    await rests.rest(ttlMs / 3)
  } else {
    while (lease.held && performance.now() < endMs && !rests.isOver) {
      await rests.rest(lease.remainingSeconds * 1_000 + EXPIRED_AFTER_MS)
    }
  }

  if (how === 'expire' && !rests.isOver) {
    if (lease.held) tally.unexpected(`the lease on ${lease.lockName} is held after its end`)
    tally.ended('expired')
  } else if (!lease.held) tally.ended(hasHeartbeat ? 'lost' : 'expired')
  // Closing the instance releases the others.
  else if (rests.isOver && draw.chance(0.5)) tally.ended('abandoned')
  else {
    tally.ended('released')
    await lease.release()
  }
}

const ENDS: readonly (readonly ['release' | 'extend' | 'expire', number])[] = [
  ['release', 60],
  ['extend', 20],
  ['expire', 20],
]
/** How long after its end to look at a lease. */
const EXPIRED_AFTER_MS = 100
