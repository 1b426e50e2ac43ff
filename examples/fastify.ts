// A Fastify server with the plugin: the lock as app.holdfast, a health page, and a shutdown that loses no request.
import { setTimeout as sleep } from 'node:timers/promises'
import fastify from 'fastify'
import { DistributedLock } from 'holdfast'
import { holdfastFastify } from 'holdfast/fastify'

declare module 'fastify' {
  interface FastifyInstance {
    holdfast: DistributedLock
  }
}

const app = fastify()
await app.register(holdfastFastify, {
  lock: new DistributedLock({ url: 'memory:shipping' }),
  healthPath: '/healthz',
  close: { drainSeconds: 10 },
})

app.post<{ Params: { id: string } }>('/orders/:id/ship', async ({ params: { id } }, reply) => {
  const result = await app.holdfast.acquire(`order:${id}`, { heartbeat: true })
  if (!result.acquired) return reply.code(409).send(`order ${id} is being shipped`)
  await using lease = result.lock
  await sleep(100, undefined, { signal: lease.signal })
  return `order ${id} shipped`
})

const url = await app.listen({ port: 0, host: '127.0.0.1' })
const ship = (order: number) => fetch(`${url}/orders/${order}/ship`, { method: 'POST' })

// Another instance of the service is shipping order 1.
const another = new DistributedLock({ url: 'memory:shipping' })
await another.withLock('order:1', async () => {
  for (const answer of [await ship(1), await ship(2)]) console.log(answer.status, await answer.text())
})
await another.close()
console.log('health:', (await fetch(`${url}/healthz`)).status)

// A request that runs when the server closes is answered.
const locked = new Promise((resolve) => app.holdfast.on('acquired', resolve))
const last = ship(3)
await locked
await app.close()
console.log('after the shutdown:', await (await last).text())
