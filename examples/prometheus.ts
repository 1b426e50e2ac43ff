// A service with an endpoint for Prometheus, and what the endpoint says of two orders.
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { DistributedLock } from 'holdfast'
import { prometheusMetrics } from 'holdfast/prometheus'

// Names that the patterns do not match are counted as "other".
const metrics = prometheusMetrics({ templates: ['order:{id}'] })
const server = createServer((_, response) => {
  response.setHeader('content-type', metrics.contentType)
  response.end(metrics.text())
}).listen(0, '127.0.0.1')
await once(server, 'listening')

const lock = new DistributedLock({ url: 'memory:' })
const lease = await lock.hold('order:1')
await lock.acquire('order:1') // refused
await lock.withLock('order:2', async () => {})
await lock.withLock('jane@example.com', async () => {})

const { port } = server.address() as AddressInfo
const text = await (await fetch(`http://127.0.0.1:${port}/metrics`)).text()
for (const line of text.split('\n')) {
  if (/^holdfast_lock_(?:held|refusals_total|hold_duration_seconds_count)\{/.test(line)) console.log(line)
}

await lease.release()
await lock.close()
metrics.close()
server.closeAllConnections()
server.close()
