import type { Lease, LockOptions, LockResult } from 'holdfast'
import { PlannedError } from './tally.ts'
import type { Task } from './world.ts'

/** How many tasks contend for one lock name. */
const RIVALS = 5
const HOLD_MS = { least: 10, most: 300 }
const WAIT_SECONDS = { least: 0.2, most: 2 }
const REST_MS = { least: 100, most: 2_000 }
/** With long TTLs, contenders rest longer, too: up to this part of the longest TTL. */
const REST_PART = 1 / 60

/** Contends with a few other tasks for locks, read locks and permits, each for a moment. */
export async function contend(task: Task): Promise<void> {
  const { rests, tally, settings } = task.world
  const { draw } = task
  const mostMs = Math.max(REST_MS.most, settings.longestTtlSeconds * 1_000 * REST_PART)
  while (!rests.isOver) {
    await rests.rest(draw.between(REST_MS.least, mostMs))
    if (rests.isOver) return
    const [name, act] = draw.weighted(ACTS)
    await tally.attempt(name, () => act(task))
  }
}

type Act = (task: Task) => Promise<unknown>

/** Waits in the queue of a lock. Some claims are not patient enough. */
const wait: Act = (task) => holdFor(task, 'wait', (options) => task.world.lock.acquire(orderOf(task), options))

/** Gives up by its own signal while it waits, or just when it is granted the lock. */
const abort: Act = async (task) => {
  const { world, draw } = task
  const giveUp = new AbortController()
  const claim = holdFor(task, 'abort', (options) =>
    world.lock.acquire(orderOf(task), { ...options, signal: giveUp.signal }),
  )
  await Promise.all([claim, world.rests.rest(draw.between(0, 400)).then(() => giveUp.abort())])
}

/** The function under the lock throws. */
const fail: Act = (task) =>
  counted(task, 'fail', (during) => {
    const run = async (): Promise<never> => {
      await during()
      throw new PlannedError('on purpose')
    }
    return task.world.lock.withLock(orderOf(task), run, waiting(task))
  })

/** Takes several locks at once, and one of them again inside. */
const several: Act = (task) => {
  const { world, draw, number } = task
  const names = draw.some([0, 1, 2, 3, 4], 3).map((each) => `part:${number % 7}:${each}`)
  return counted(task, 'several', (during) =>
    world.lock.withLocks(
      names,
      async () => world.lock.withLock(names[0] ?? '', during, { timeoutSeconds: SHORT_TTL_SECONDS }),
      waiting(task),
    ),
  )
}

const read: Act = (task) => holdFor(task, 'read', (options) => task.world.sharing.acquireRead(pageOf(task), options))
const write: Act = (task) => holdFor(task, 'write', (options) => task.world.sharing.acquireWrite(pageOf(task), options))
const permit: Act = (task) => {
  const permits = task.draw.whole(1, 2)
  return holdFor(task, 'permits', (options) =>
    task.world.narrow.acquire(`pool:${Math.floor(task.number / 2 / RIVALS)}`, { ...options, permits }),
  )
}

const rate: Act = async ({ world, draw }) => {
  const key = draw.chance(0.5) ? `api:${draw.whole(0, 20)}` : `api:user:${draw.whole(0, 1e6)}`
  world.tally.done.rateSteps += 1
  if (draw.chance(0.8)) await world.rate.consume(key)
  else await world.rate.wait(key, { cost: 3, blockingTimeoutSeconds: 1 })
}

const ACTS: readonly (readonly [readonly [string, Act], number])[] = [
  [['wait', wait], 30],
  [['abort', abort], 15],
  [['fail', fail], 15],
  [['several', several], 5],
  [['read', read], 12],
  [['write', write], 5],
  [['permits', permit], 10],
  [['rate', rate], 15],
]

const SHORT_TTL_SECONDS = 10

const orderOf = ({ number }: Task): string => `order:${Math.floor(number / RIVALS)}`
const pageOf = ({ number }: Task): string => `page:${Math.floor(number / RIVALS)}`

function waiting({ world, draw, shutdown }: Task): LockOptions {
  return {
    timeoutSeconds: Math.min(SHORT_TTL_SECONDS, world.settings.longestTtlSeconds),
    blockingTimeoutSeconds: draw.between(WAIT_SECONDS.least, WAIT_SECONDS.most),
    heartbeat: draw.chance(0.5),
    ...(draw.chance(0.5) && { signal: shutdown }),
  }
}

/** Claims, holds for a moment, and releases. */
async function holdFor(task: Task, kind: string, claim: (options: LockOptions) => Promise<LockResult>): Promise<void> {
  const { tally, rests } = task.world
  const options = waiting(task)
  const holdMs = task.draw.between(HOLD_MS.least, HOLD_MS.most)
  const result = await tally.asking(() => claim(options))
  if (!result.acquired) {
    tally.done.refused += 1
    return
  }
  tally.granted(kind)
  await rests.rest(holdMs)
  await end(task, result.lock)
}

async function end({ world }: Task, lease: Lease): Promise<void> {
  world.tally.ended(lease.held ? 'released' : 'lost')
  await lease.release()
}

/** Runs a `with…`, and counts the lease that its function runs under. */
async function counted<T>(
  { world, draw }: Task,
  kind: string,
  run: (during: () => Promise<void>) => Promise<T>,
): Promise<T> {
  const { tally, rests } = world
  const holdMs = draw.between(HOLD_MS.least, HOLD_MS.most)
  let isGranted = false
  try {
    return await tally.asking(() =>
      run(async () => {
        tally.granted(kind)
        isGranted = true
        await rests.rest(holdMs)
      }),
    )
  } finally {
    if (isGranted) tally.ended('released')
  }
}
