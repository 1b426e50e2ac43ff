// Hono with a health page, and a shutdown that lets running requests end before the lock is closed.
import { once } from 'node:events'
import type { Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { serve } from '@hono/node-server'
import { DistributedLock } from 'holdfast'
import { healthHandler, shutDown } from 'holdfast/http'
import { Hono } from 'hono'

const lock = new DistributedLock({ url: 'memory:' })
const app = new Hono()
app.get('/healthz', healthHandler(lock))
app.post('/orders/:id/ship', async (context) => {
  const id = context.req.param('id')
  await lock.withLock(`order:${id}`, ({ signal }) => sleep(100, undefined, { signal }))
  return context.text(`order ${id} shipped`)
})
const server = serve({ fetch: app.fetch, port: 0, hostname: '127.0.0.1' }) as Server
await once(server, 'listening')

// In a service: process.once('SIGTERM', stop)
const stop = () => shutDown(server, lock, { drainSeconds: 10 })

const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
const health = await fetch(`${url}/healthz`)
console.log(health.status, await health.text())
const locked = new Promise((resolve) => lock.on('acquired', resolve))
const last = fetch(`${url}/orders/7/ship`, { method: 'POST' })
await locked
await stop()
console.log(await (await last).text(), '- closed:', lock.closed)
