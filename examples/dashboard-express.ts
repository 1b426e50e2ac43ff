// The dashboard inside an Express application, behind the application's own login.
import { once } from 'node:events'
import type { AddressInfo } from 'node:net'
import express from 'express'
import { DistributedLock } from 'holdfast'
import { createDashboard, toNodeHandler } from 'holdfast/dashboard'

const dashboard = createDashboard({
  stores: [{ name: 'main', url: 'memory:dashboard-express' }],
  // The middleware below has decided already.
  authorize: 'none',
})

const app = express()
app.use(express.json())
app.use('/locks', (request, response, next) => {
  if (request.headers['x-user'] === 'ada') next()
  else response.sendStatus(401)
})
app.use('/locks', toNodeHandler(dashboard))

const server = app.listen(0, '127.0.0.1')
await once(server, 'listening')
const base = `http://127.0.0.1:${(server.address() as AddressInfo).port}/locks`

const lock = new DistributedLock({ url: 'memory:dashboard-express', holderId: 'instance-1' })
await lock.acquire('order:123')

// What a browser would send.
console.log(`without a user: ${(await fetch(base)).status}`)
const headers = { 'x-user': 'ada' }
const page = await fetch(base, { headers })
console.log(`for ada: ${page.status}, ${page.headers.get('content-type')}`)
const shown = await fetch(`${base}/api/lock?store=0&name=order:123`, { headers })
const { leases } = (await shown.json()) as { leases: { holder: string }[] }
console.log(`order:123 is held by ${leases[0]?.holder}`)

server.closeAllConnections()
server.close()
await lock.close()
await dashboard.close()
