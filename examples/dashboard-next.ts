// The dashboard as a route handler of Next: in an application, the part between the lines is the file
// app/locks/[[...path]]/route.ts. A route handler is a function from Request to Response, and is called as one here.
import { DistributedLock } from 'holdfast'
import { createDashboard } from 'holdfast/dashboard'

// ── app/locks/[[...path]]/route.ts
const dashboard = createDashboard({
  stores: [{ name: 'main', url: 'memory:dashboard-next' }],
  authorize: (request) => {
    const user = request.headers.get('x-user')
    return user === 'ada' && { user }
  },
})
const GET = dashboard
const POST = dashboard
// export const dynamic = 'force-dynamic'
// export { dashboard as GET, dashboard as POST }
// ──

const lock = new DistributedLock({ url: 'memory:dashboard-next', holderId: 'instance-1' })
await lock.acquire('order:123')

const base = 'http://localhost:3000/locks'
console.log(`without a user: ${(await GET(new Request(base))).status}`)
const headers = { 'x-user': 'ada' }
const page = await GET(new Request(base, { headers }))
console.log(`for ada: ${page.status}, ${page.headers.get('content-type')}`)
const shown = await GET(new Request(`${base}/api/lock?store=0&name=order:123`, { headers }))
const { leases } = (await shown.json()) as { leases: { holder: string }[] }
console.log(`order:123 is held by ${leases[0]?.holder}`)
const acted = await POST(
  new Request(`${base}/api/force-release`, { method: 'POST', headers: { ...headers, origin: base } }),
)
console.log(`actions are not allowed: ${acted.status}`)

await lock.close()
await dashboard.close()
