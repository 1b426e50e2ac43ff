// An API that allows each customer three requests per minute, with the standard header fields.
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { RateLimiter } from 'holdfast'
import { rateLimitExpress } from 'holdfast/rate-limit-http'

const limiter = new RateLimiter({ url: 'memory:', limits: { limit: 3, periodSeconds: 60 } })

// In Express, the same function is a middleware: app.use(limit).
const limit = rateLimitExpress({ limiter, key: (request) => `api:${request.headers['x-api-key']}` })

const server = createServer((request, response) => {
  limit(request, response, (error) => {
    if (error !== undefined) response.writeHead(500)
    response.end('hello')
  })
}).listen(0, '127.0.0.1')
await once(server, 'listening')
const { port } = server.address() as AddressInfo

for (const customer of ['ann', 'ann', 'ann', 'ann', 'bob']) {
  const response = await fetch(`http://127.0.0.1:${port}/`, { headers: { 'x-api-key': customer } })
  const [remaining] = /r=\d+/.exec(response.headers.get('ratelimit') ?? '') ?? []
  const retries = response.headers.has('retry-after') ? ', with Retry-After' : ''
  console.log(`${customer}: ${response.status}, ${remaining}${retries}`)
}

server.closeAllConnections()
server.close()
await limiter.close()
