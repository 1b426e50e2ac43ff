// All instances share a mail service that takes ten messages per second. A caller waits, or learns when to try again.
import { RateLimitedError, RateLimiter } from 'holdfast'

// Two instances of one service. In production each is a separate process, on a store that both can reach.
const limits = { limit: 10, periodSeconds: 1, burst: 3 }
const instances = [
  new RateLimiter({ url: 'memory:mail', limits }),
  new RateLimiter({ url: 'memory:mail', limits }),
] as const

const startedMs = performance.now()

// Six calls at once from both instances: three are allowed, which is the burst.
const results = await Promise.all([1, 2, 3, 4, 5, 6].map((mail) => instances[mail % 2 === 0 ? 0 : 1].consume('mail')))
console.log(`${results.filter(({ allowed }) => allowed).length} of 6 sent at once`)
const refused = results.find(({ allowed }) => !allowed)
console.log(`retry within 0.1 s: ${refused !== undefined && refused.retryAfterSeconds <= 0.1}`)

// A newsletter can wait.
for (let mail = 0; mail < 5; mail += 1) await instances[0].wait('mail')
console.log(`5 more, one every 0.1 s: ${performance.now() - startedMs > 450}`)

// A password reset cannot.
const passwords = new RateLimiter({ url: 'memory:mail', limits: { limit: 1, periodSeconds: 3_600 } })
await passwords.consumeOrThrow('password:ann')
try {
  await passwords.consumeOrThrow('password:ann')
} catch (error) {
  if (!(error instanceof RateLimitedError)) throw error
  console.log(`refused with ${error.code}, and nothing was taken`)
}

for (const limiter of [...instances, passwords]) await limiter.close()
