import type { DistributedLock } from 'holdfast'
import type { Task } from './world.ts'

const REST_MS = { least: 500, most: 2_500 }
/** With long TTLs, visitors rest longer, too: up to this part of the longest TTL. */
const REST_PART = 1 / 60

/** Opens an instance, uses it for a moment, and closes it, again and again. */
export async function visit(task: Task): Promise<void> {
  const { rests, tally, settings } = task.world
  const { draw } = task
  const mostMs = Math.max(REST_MS.most, settings.longestTtlSeconds * 1_000 * REST_PART)
  for (let round = 0; !rests.isOver; round += 1) {
    const [name, act] = draw.weighted(VISITS)
    await tally.attempt(name, () => act(task, round))
    tally.done.instances += 1
    await rests.rest(draw.between(REST_MS.least, mostMs))
  }
}

/** Every kind of visit once, so that all code is loaded and has run. */
export async function visitOnce(task: Task): Promise<void> {
  for (const [round, [[name, act]]] of VISITS.entries()) {
    await task.world.tally.attempt(name, () => act(task, -1 - round))
    task.world.tally.done.instances += 1
  }
}

type Visit = (task: Task, round: number) => Promise<unknown>

/** Opens the store by itself. Some of its claims wait, and some of its leases are held, when it is closed. */
const ownStore: Visit = async (task, round) => {
  const { library, settings } = task.world
  const lock = new library.DistributedLock({ url: settings.url })
  await useAndClose(task, lock, round)
}

/** The heartbeat has a thread and a connection of its own. */
const ownThread: Visit = async (task, round) => {
  const { library, settings } = task.world
  const lock = new library.DistributedLock({ url: settings.url, heartbeatThread: true })
  await useAndClose(task, lock, round)
}

/** On the application's client, which stays open. */
const onClient: Visit = async (task, round) => {
  const { application, library } = task.world
  const driver = application.openDriver()
  const lock = new library.DistributedLock({ driver })
  try {
    await useAndClose(task, lock, round)
  } finally {
    await driver.close()
  }
}

const election: Visit = async ({ world, draw, number }) => {
  const { url } = world.settings
  await using candidate = new world.library.LeaderElection({ url, name: `leader:${number}`, timeoutSeconds: 5 })
  const term = await candidate.campaign({ value: { round: draw.whole(1, 100) }, blockingTimeoutSeconds: 5 })
  await candidate.leader()
  if (draw.chance(0.5)) await term.resign()
}

const once: Visit = async ({ world, number, draw }, round) => {
  await using jobs = new world.library.OnceOnly({ url: world.settings.url })
  const key = `invoice:${number}:${round}`
  const options = { forSeconds: 1 + draw.fraction(), blockingTimeoutSeconds: 5 }
  await Promise.all([1, 2].map(() => jobs.once(key, async () => ({ round }), options)))
}

const limiter: Visit = async ({ world, number }, round) => {
  await using own = new world.library.RateLimiter({
    url: world.settings.url,
    limits: [
      { limit: 5, periodSeconds: 1 },
      { limit: 50, periodSeconds: 10 },
    ],
  })
  await Promise.all([1, 2, 3].map((each) => own.consume(`visit:${number}:${round % 100}:${each}`)))
}

const VISITS: readonly (readonly [readonly [string, Visit], number])[] = [
  [['own store', ownStore], 35],
  [['own thread', ownThread], 8],
  [['on client', onClient], 25],
  [['election', election], 12],
  [['once', once], 10],
  [['limiter', limiter], 10],
]

/** Takes leases, lets a claim wait for one of them, and closes the instance with some of that unfinished. */
async function useAndClose({ world, draw, number, shutdown }: Task, lock: DistributedLock, round: number) {
  const { rests, tally } = world
  const timeoutSeconds = Math.min(10, world.settings.longestTtlSeconds)
  const stopListening = lock.on('lost', () => {})
  try {
    const names = ['a', 'b', 'c'].map((each) => `visit:${number}:${round}:${each}`)
    const options = { timeoutSeconds, heartbeat: draw.chance(0.7) }
    await Promise.all(names.map((name) => lock.acquire(name, options)))
    const waiter = lock.acquire(names[0] ?? '', { timeoutSeconds, blockingTimeoutSeconds: 30, signal: shutdown })
    const waited = tally.attempt('waiter of a visit', () => waiter)
    await rests.rest(draw.between(20, 400))
    if (draw.chance(0.5)) await lock.release(names[0] ?? '')
    if (draw.chance(0.5)) await rests.rest(draw.between(1, 50))
    if (draw.chance(0.3)) await lock.releaseAll()
    if (draw.chance(0.5)) stopListening()
    await lock.close()
    await waited
  } finally {
    await lock.close()
  }
}
