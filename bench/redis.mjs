// The cost of a lock on Redis, compared with bare commands through the same client, in interleaved rounds.
// Run `npm run build` first, then `node bench/redis.mjs [url] [seconds per round] [rounds]`. Without a URL it starts
// redis-server on a free port.
import { fork } from 'node:child_process'
import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import { Redis } from 'ioredis'
import { startRedisServer } from './support/redis-server.mjs'
import { median, quantile } from './support/statistics.mjs'

const DIST = process.env['HOLDFAST_DIST'] ?? new URL('../dist/', import.meta.url).href
const { DistributedLock } = await import(`${DIST}index.js`)
const { redisDriver } = await import(`${DIST}drivers/redis.js`)

const DELETE_IF_MINE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
const SHA = createHash('sha1').update(DELETE_IF_MINE).digest('hex')
const WARM_UP_TURNS = 1_000
const AT_ONCE = { blocking: false, timeoutSeconds: 30 }

if (process.argv[2] === 'hand-off') await handOffProcess()
else await main()

async function main() {
  const server = process.argv[2] ? { url: process.argv[2], stop() {} } : await startRedisServer()
  const seconds = Number(process.argv[3] ?? 1)
  const rounds = Number(process.argv[4] ?? 5)
  try {
    for (const concurrency of [1, 64, 512]) await throughput(server.url, { concurrency, seconds, rounds })
    await wakeUps(server.url)
    await handOffs(server.url, Math.max(2, seconds))
  } finally {
    server.stop()
  }
}

/** Acquires and releases distinct names, in `concurrency` tasks at once. */
async function throughput(url, { concurrency, seconds, rounds }) {
  const bareClient = new Redis(url)
  const client = new Redis(url)
  const lock = new DistributedLock({ driver: redisDriver({ client, onWarning() {} }) })
  await bareClient.script('LOAD', DELETE_IF_MINE)
  const bare = async (name, turn) => {
    const value = `${name}:${turn}:${process.pid}`
    await bareClient.set(`lock:bare:${name}`, value, 'PX', 30_000, 'NX')
    await bareClient.evalsha(SHA, 1, `lock:bare:${name}`, value)
  }
  const ours = async (name) => {
    const result = await lock.acquire(`ours:${name}`, AT_ONCE)
    if (!result.acquired) throw new Error('not acquired')
    await result.lock.release()
  }
  const rates = { bare: [], ours: [] }
  // On a shared machine, the CPU time says more than the wall clock.
  const cpu = { bare: [], ours: [] }
  // Runs until the code is compiled, as it is in a service that has run for a while.
  for (const work of [bare, ours, bare, ours]) await timed(work, 64, 1)
  for (let round = 0; round < rounds; round += 1) {
    for (const [kind, work] of Object.entries({ bare, ours })) {
      const { rate, cpuMicros } = await timed(work, concurrency, seconds)
      rates[kind].push(rate)
      cpu[kind].push(cpuMicros)
    }
  }
  const [ofBare, ofOurs] = [median(rates.bare), median(rates.ours)]
  const ratios = rates.ours.map((rate, at) => rate / rates.bare[at])
  const spread = ratios.map((ratio) => ratio.toFixed(2)).join(' ')
  const per = (rate) => `${Math.round(rate).toLocaleString('en')}/s (${((1e6 * concurrency) / rate) | 0} µs each)`
  console.log(
    `${concurrency} at once: bare ${per(ofBare)}, holdfast ${per(ofOurs)}, ` +
      `${median(ratios).toFixed(2)} × bare (${spread})`,
  )
  console.log(
    `  the client's CPU for each: bare ${median(cpu.bare).toFixed(1)} µs, holdfast ${median(cpu.ours).toFixed(1)} µs`,
  )
  await lock.close()
  client.disconnect()
  bareClient.disconnect()
}

async function timed(work, concurrency, seconds) {
  let done = 0
  const usedBefore = process.cpuUsage()
  const started = performance.now()
  const end = started + seconds * 1_000
  await Promise.all(
    Array.from({ length: concurrency }, async (_, name) => {
      for (let turn = 0; performance.now() < end; turn += 1) {
        await work(name, turn)
        done += 1
      }
    }),
  )
  const { user, system } = process.cpuUsage(usedBefore)
  return { rate: done / ((performance.now() - started) / 1_000), cpuMicros: (user + system) / done }
}

/** The time from before a release until its waiter continues, compared with a bare publish to a subscriber. */
async function wakeUps(url) {
  const clients = [new Redis(url), new Redis(url), new Redis(url), new Redis(url)]
  const [a, b] = clients
    .slice(0, 2)
    .map((client) => new DistributedLock({ driver: redisDriver({ client, onWarning() {} }) }))
  const [publisher, subscriber] = clients.slice(2)
  await subscriber.subscribe('bench')
  const times = { bare: [], ours: [] }
  for (let turn = 0; turn < 600; turn += 1) {
    const heard = once(subscriber, 'message')
    await sleep(1)
    const published = performance.now()
    publisher.publish('bench', 'x')
    await heard
    times.bare.push(performance.now() - published)

    const held = await a.hold('wake', { timeoutSeconds: 30, blocking: true })
    const waiting = b.hold('wake', { timeoutSeconds: 30, blocking: true })
    await sleep(turn === 0 ? 100 : 2) // until the waiter is in the queue, and subscribed the first time
    const released = performance.now()
    const releasing = held.release()
    const next = await waiting
    times.ours.push(performance.now() - released)
    await releasing
    await next.release()
  }
  const show = (list) => `p50 ${quantile(list, 0.5).toFixed(3)} ms, p99 ${quantile(list, 0.99).toFixed(3)} ms`
  const ratio = quantile(times.ours, 0.5) / quantile(times.bare, 0.5)
  console.log(`wake-up: bare publish ${show(times.bare)}; holdfast ${show(times.ours)}; p50 ${ratio.toFixed(2)} × bare`)
  await a.close()
  await b.close()
  for (const client of clients) client.disconnect()
}

/** Eight processes hold one name for a millisecond each, compared with a token that they pass on with BLPOP. */
async function handOffs(url, seconds) {
  const control = new Redis(url)
  const rates = { bare: [], ours: [] }
  for (let round = 0; round < 3; round += 1) {
    for (const kind of ['bare', 'ours']) {
      await control.del('bench:hand-off')
      const children = Array.from({ length: 8 }, () =>
        fork(new URL(import.meta.url), ['hand-off', url, kind, `${seconds}`]),
      )
      await Promise.all(children.map((child) => once(child, 'message')))
      if (kind === 'bare') await control.rpush('bench:hand-off', 'x')
      for (const child of children) child.send('go')
      const counts = await Promise.all(children.map(async (child) => (await once(child, 'message'))[0]))
      const total = counts.reduce((sum, count) => sum + count, 0)
      rates[kind].push(total / seconds)
      const unfair = Math.max(...counts) / Math.min(...counts)
      console.log(`  ${kind}: ${(total / seconds).toFixed(0)} hand-offs/s, most ÷ least ${unfair.toFixed(2)}`)
    }
  }
  const [bare, ours] = [median(rates.bare), median(rates.ours)]
  const figures = `bare BLPOP ${bare.toFixed(0)}/s, holdfast ${ours.toFixed(0)}/s, ${(ours / bare).toFixed(2)} × bare`
  console.log(`8 processes, 1 ms each: ${figures}`)
  control.disconnect()
}

async function handOffProcess() {
  const [, , , url, kind, seconds] = process.argv
  const clients = [new Redis(url), new Redis(url)]
  const players = clients.map((client) => (kind === 'bare' ? barePlayer(client) : ourPlayer(client)))
  // Two players compete in this process until its code is compiled, as it is in a service that has run for a while.
  const own = `warm-up:${process.pid}`
  if (kind === 'bare') await clients[0].rpush(own, 'x')
  await Promise.all(
    players.map(async ({ turn }) => {
      for (let turns = 0; turns < WARM_UP_TURNS; turns += 1) await turn(own, () => {})
    }),
  )
  await clients[0].del(own)
  process.send('ready')
  await once(process, 'message')
  const [{ turn }] = players
  const end = performance.now() + Number(seconds) * 1_000
  let count = 0
  while (performance.now() < end) {
    if (await turn('bench:hand-off', () => sleep(1))) count += 1
  }
  process.send(count)
  for (const player of players) await player.close()
  for (const client of clients) client.disconnect()
  process.disconnect()
}

function barePlayer(client) {
  return {
    async turn(name, hold) {
      if ((await client.blpop(name, 1)) === null) return false
      await hold()
      await client.rpush(name, 'x')
      return true
    },
    async close() {},
  }
}

function ourPlayer(client) {
  const lock = new DistributedLock({ driver: redisDriver({ client, onWarning() {} }) })
  return {
    async turn(name, hold) {
      const held = await lock.hold(name, { timeoutSeconds: 30, blocking: true })
      await hold()
      return held.release()
    },
    close: () => lock.close(),
  }
}
