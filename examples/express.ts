// Express with a health page, and a shutdown that lets running requests end before the lock is closed.
import { once } from 'node:events'
import type { AddressInfo } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import express from 'express'
import { DistributedLock } from 'holdfast'
import { healthHandler, shutDown, toNodeHandler } from 'holdfast/http'

const lock = new DistributedLock({ url: 'memory:' })
const app = express()
app.get('/healthz', toNodeHandler(healthHandler(lock)))
app.post('/orders/:id/ship', async (request, response) => {
  const { id } = request.params
  await lock.withLock(`order:${id}`, ({ signal }) => sleep(100, undefined, { signal }))
  response.send(`order ${id} shipped`)
})
const server = app.listen(0, '127.0.0.1')
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
