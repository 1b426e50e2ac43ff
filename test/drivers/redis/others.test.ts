import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import { Redis } from 'ioredis'
import { afterAll, describe, it } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import { redisDriver } from '../../../src/drivers/redis.ts'
import { redlockDriver } from '../../../src/drivers/redlock.ts'
import { DistributedLock } from '../../../src/index.ts'
import { python as interpreter } from '../../harness/python.ts'
import { type Server, startRedis, startServers } from '../../harness/servers.ts'
import { startWorker } from '../../harness/worker.ts'

/**
 * Holdfast and other lock clients on the same key exclude each other. A second server counts the clients that hold the
 * lock. HOLDFAST_CONTEND_SECONDS=10 lets them contend for longer.
 */
const CONTEND_MS = Number(process.env['HOLDFAST_CONTEND_SECONDS'] ?? 2.5) * 1_000

const clients: Redis[] = []

afterAll(() => {
  for (const client of clients) client.disconnect()
})

describe('redis: other clients', () => {
  it('Holdfast, redis-py’s Lock, the package redlock and SET NX PX exclude each other on one key', async () => {
    await using server = await startRedis()
    await using judge = await startRedis()
    await contend(judge, {
      holdfast: () => ours(redisDriver({ client: client(server) }), judge),
      'redis-py': () => python(server, judge),
      redlock: () => npmRedlock([server], judge),
      'by hand': () => byHand(server, judge),
    })
  }, 60_000)

  it('Holdfast’s Redlock and the package redlock exclude each other on 3 servers', async () => {
    await using started = await startServers({ redis: 3 })
    await using judge = await startRedis()
    const nodes = started.redis.map((server) => redisDriver({ client: client(server) }))
    await contend(judge, {
      holdfast: () => ours(redlockDriver({ nodes, persistent: true, nodeTimeoutSeconds: 5 }), judge),
      redlock: () => npmRedlock(started.redis, judge),
    })
  }, 60_000)
})

/** Runs all clients at once, for the same time. Each of them must have held the lock. */
async function contend(judge: Server, clientsByName: Record<string, () => Promise<void>>): Promise<void> {
  await Promise.all(Object.values(clientsByName).map((work) => work()))
  const names = Object.keys(clientsByName)
  const turns = (await client(judge).mget(names.map((who) => `turns:${who}`))).map(Number)
  const seen = names.map((who, at) => `${who} ${turns[at]}`).join(', ')
  if (process.env['HOLDFAST_CONTEND_SECONDS'] !== undefined) console.log(`turns in ${CONTEND_MS} ms: ${seen}`)
  assert.ok(Math.min(...turns) > 0, `turns: ${seen}`)
}

async function ours(driver: Driver, judge: Server): Promise<void> {
  const lock = new DistributedLock({ driver })
  const control = client(judge)
  const endMs = performance.now() + CONTEND_MS
  while (performance.now() < endMs) {
    const result = await lock.acquire('shared', { blockingTimeoutSeconds: 5, timeoutSeconds: 10 })
    if (!result.acquired) continue
    await inside(control, 'holdfast')
    await result.lock.release()
    await sleep(5) // for the others, which poll
  }
  await lock.close()
}

async function byHand(server: Server, judge: Server): Promise<void> {
  const [hand, control] = [client(server), client(judge)]
  const endMs = performance.now() + CONTEND_MS
  for (let turn = 0; performance.now() < endMs; turn += 1) {
    const value = `${process.pid}:${turn}`
    if ((await hand.set('lock:shared', value, 'PX', 10_000, 'NX')) === 'OK') {
      await inside(control, 'by hand')
      assert.equal(await hand.eval(DELETE_IF_MINE, 1, 'lock:shared', value), 1)
      await sleep(15) // for the others
    }
    await sleep(2) // its poll
  }
}

async function inside(control: Redis, who: string): Promise<void> {
  assert.equal(await control.incr('inside'), 1, `two holders, ${who} is one of them`)
  await sleep(1) // a short job
  await control.decr('inside')
  await control.incr(`turns:${who}`)
}

const DELETE_IF_MINE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"

async function python(server: Server, judge: Server): Promise<void> {
  const args = [server.port, judge.port, CONTEND_MS / 1_000].map(String)
  const child = spawn(interpreter, ['-c', REDIS_PY, ...args])
  let printed = ''
  child.stderr.on('data', (text) => {
    printed += text
  })
  const [code] = await once(child, 'exit')
  assert.equal(code, 0, `python ended with ${code}: ${printed}`)
}

const REDIS_PY = `
import sys, time
try:
    import redis
except ImportError:
    sys.exit('redis-py is missing: apt-get install python3-redis')
server, judge = (redis.Redis(port=int(port), socket_timeout=10) for port in sys.argv[1:3])
end = time.monotonic() + float(sys.argv[3])
while time.monotonic() < end:
    lock = server.lock('lock:shared', timeout=10, sleep=0.002, blocking_timeout=5)
    if not lock.acquire():
        continue
    assert judge.incr('inside') == 1, 'two holders, redis-py is one of them'
    time.sleep(0.001)
    judge.decr('inside')
    judge.incr('turns:redis-py')
    lock.release()
    time.sleep(0.015)
`

async function npmRedlock(servers: readonly Server[], judge: Server): Promise<void> {
  await using worker = await startWorker({ source: NPM_REDLOCK }, { callTimeoutMs: CONTEND_MS + 30_000 })
  const ports = servers.map(({ port }) => port)
  await worker.call('contend', ports, judge.port, CONTEND_MS)
}

const NPM_REDLOCK = `
  import { setTimeout as sleep } from 'node:timers/promises'
  import { Redis } from 'ioredis'
  import redlock from 'redlock'
  const Redlock = redlock.default ?? redlock
  expose({
    async contend(ports, judgePort, ms) {
      // Its own retries keep the leases of a lost vote and then fail because of them. So each attempt is a new call.
      const lock = new Redlock(ports.map((port) => new Redis(port)), { retryCount: 0 })
      lock.on('error', () => {})
      const judge = new Redis(judgePort)
      const endMs = performance.now() + ms
      while (performance.now() < endMs) {
        const held = await lock.acquire(['lock:shared'], 10_000).catch(() => undefined)
        if (held === undefined) {
          await sleep(1 + 3 * Math.random()) // its poll
          continue
        }
        if (await judge.incr('inside') !== 1) throw new Error('two holders, redlock is one of them')
        await sleep(1)
        await judge.decr('inside')
        await judge.incr('turns:redlock')
        await held.release()
        await sleep(15)
      }
    },
  })
`

function client({ port }: Server): Redis {
  const opened = new Redis(port, { commandTimeout: 20_000, retryStrategy: () => 20 })
  opened.on('error', () => {})
  clients.push(opened)
  return opened
}
