// The time of an acquire over five Redis servers while two of them are killed, hung or behind a black hole, compared
// with five other servers without faults. The two groups take turns, so that other work on the machine slows both. Run
// `npm run build` first, then `node bench/redlock.mjs [acquires]`. It starts its servers itself.
import { once } from 'node:events'
import { connect, createServer } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { Redis } from 'ioredis'
import { freePort, runRedisServer } from './support/redis-server.mjs'
import { quantile } from './support/statistics.mjs'

const DIST = process.env['HOLDFAST_DIST'] ?? new URL('../dist/', import.meta.url).href
const { DistributedLock } = await import(`${DIST}index.js`)
const { redisDriver } = await import(`${DIST}drivers/redis.js`)
const { redlockDriver } = await import(`${DIST}drivers/redlock.js`)

const acquires = Number(process.argv[2] ?? 1_000)
const HURT = [1, 3]

const [well, badly] = await Promise.all([startNodes(), startNodes()])
try {
  for (const [how, hurt, heal] of [
    ['killed', (node) => node.stop(), (node) => node.start()],
    ['hung', (node) => node.pause(), (node) => node.resume()],
    ['behind a black hole', (node) => node.swallow(true), (node) => node.swallow(false)],
  ]) {
    const times = { well: [], badly: [] }
    const locks = { well: openLock(well), badly: openLock(badly) }
    for (let turn = -50; turn < acquires; turn += 1) {
      if (turn === 0) {
        await Promise.all(HURT.map((at) => hurt(badly[at])))
        await sleep(100) // so that the clients notice the faults
      }
      for (const [kind, { lock }] of Object.entries(locks)) {
        const startedMs = performance.now()
        const lease = await lock.hold(`bench:${turn}`, { timeoutSeconds: 30, heartbeat: false })
        if (turn >= 0) times[kind].push(performance.now() - startedMs)
        await lease.release()
      }
    }
    await Promise.all(HURT.map((at) => heal(badly[at])))
    for (const { close } of Object.values(locks)) await close()
    const ratio = (share) => (quantile(times.badly, share) / quantile(times.well, share)).toFixed(2)
    const shown = (kind) =>
      `p50 ${quantile(times[kind], 0.5).toFixed(2)} ms, p95 ${quantile(times[kind], 0.95).toFixed(2)} ms`
    console.log(`2 of 5 ${how}: ${shown('badly')}; all well: ${shown('well')}; × ${ratio(0.5)} and × ${ratio(0.95)}`)
  }
} finally {
  for (const node of [...well, ...badly]) node.end()
}

function openLock(nodes) {
  const clients = nodes.map(({ port }) => new Redis(port, { maxRetriesPerRequest: 0, retryStrategy: () => 50 }))
  for (const client of clients) client.on('error', () => {})
  const drivers = clients.map((client) => redisDriver({ client, onWarning() {} }))
  const lock = new DistributedLock({ driver: redlockDriver({ nodes: drivers, persistent: true }) })
  const close = async () => {
    // Ends calls that still hang.
    for (const client of clients) client.disconnect()
    await lock.close().catch(() => {})
  }
  return { lock, close }
}

function startNodes() {
  return Promise.all(Array.from({ length: 5 }, startNode))
}

/** A server behind a proxy that can drop everything. */
async function startNode() {
  const [port, serverPort] = [await freePort(), await freePort()]
  let child
  let swallows = false
  const start = async () => {
    child = await runRedisServer(serverPort)
  }
  const proxy = createServer({ noDelay: true }, (client) => {
    const server = connect({ port: serverPort, host: '127.0.0.1', noDelay: true })
    for (const [from, to] of [
      [client, server],
      [server, client],
    ]) {
      from.on('data', (chunk) => swallows || to.write(chunk))
      from.on('error', () => {})
      from.on('close', () => swallows || to.destroy())
    }
  })
  proxy.listen(port, '127.0.0.1')
  await start()
  return {
    port,
    start,
    async stop() {
      child.kill('SIGKILL')
      await once(child, 'exit')
    },
    pause: () => child.kill('SIGSTOP'),
    resume: () => child.kill('SIGCONT'),
    swallow(on) {
      swallows = on
    },
    end() {
      child.kill('SIGKILL')
      proxy.close()
      proxy.unref()
    },
  }
}
