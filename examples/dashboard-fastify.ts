// The dashboard inside a Fastify application, in a scope of its own.
import fastify from 'fastify'
import { DistributedLock } from 'holdfast'
import { createDashboard, toNodeHandler } from 'holdfast/dashboard'

const dashboard = createDashboard({
  stores: [{ name: 'main', url: 'memory:dashboard-fastify' }],
  // The hook below has decided already.
  authorize: 'none',
})
const handler = toNodeHandler(dashboard)

const app = fastify()
await app.register(
  async (scope) => {
    scope.addHook('onRequest', async (request, reply) => {
      if (request.headers['x-user'] !== 'ada') await reply.code(401).send('log in first')
    })
    // The dashboard reads bodies itself.
    scope.removeAllContentTypeParsers()
    scope.addContentTypeParser('*', (_request, _payload, done) => done(null))
    for (const url of ['/', '/*']) {
      scope.all(url, (request, reply) => {
        reply.hijack()
        handler(request.raw, reply.raw)
      })
    }
  },
  { prefix: '/locks' },
)
const base = `${await app.listen({ port: 0, host: '127.0.0.1' })}/locks`

const lock = new DistributedLock({ url: 'memory:dashboard-fastify', holderId: 'instance-1' })
await lock.acquire('order:123')

// What a browser would send.
console.log(`without a user: ${(await fetch(`${base}/`)).status}`)
const headers = { 'x-user': 'ada' }
const page = await fetch(`${base}/`, { headers })
console.log(`for ada: ${page.status}, ${page.headers.get('content-type')}`)
const shown = await fetch(`${base}/api/lock?store=0&name=order:123`, { headers })
const { leases } = (await shown.json()) as { leases: { holder: string }[] }
console.log(`order:123 is held by ${leases[0]?.holder}`)

await app.close()
await lock.close()
await dashboard.close()
