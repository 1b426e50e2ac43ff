// The dashboard inside a Hono application, for its administrators.

import { DistributedLock } from 'holdfast'
import { createDashboard } from 'holdfast/dashboard'
import { Hono } from 'hono'

const dashboard = createDashboard({
  stores: [{ name: 'main', url: 'memory:dashboard-hono' }],
  // Who may see it, and under which name forced releases are recorded. Here: a header that a proxy sets.
  authorize: (request) => {
    const user = request.headers.get('x-user')
    return user === 'ada' && { user }
  },
})

const app = new Hono()
app.get('/', (context) => context.text('the application'))
app.all('/locks/*', (context) => dashboard(context.req.raw))

const lock = new DistributedLock({ url: 'memory:dashboard-hono', holderId: 'instance-1' })
await lock.acquire('order:123')

// What a browser would send.
const refused = await app.request('/locks/')
console.log(`without a user: ${refused.status}`)
const headers = { 'x-user': 'ada' }
const page = await app.request('/locks/', { headers })
console.log(`for ada: ${page.status}, ${page.headers.get('content-type')}`)
const shown = await app.request('/locks/api/lock?store=0&name=order:123', { headers })
const { leases } = (await shown.json()) as { leases: { holder: string }[] }
console.log(`order:123 is held by ${leases[0]?.holder}`)

await lock.close()
await dashboard.close()
