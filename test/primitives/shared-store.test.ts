import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { createServer } from 'node:net'
import { Redis } from 'ioredis'
import pg from 'pg'
import { describe, inject, it } from 'vitest'
import { DistributedLock, LeaderElection, OnceOnly, RateLimiter, Semaphore } from '../../src/index.ts'

const redis = inject('servers').redis?.[0] ?? ''
const postgres = inject('servers').postgres ?? ''

/** A URL that no other test has, and the number of connections that it has at present. */
const stores: Record<string, () => { url: string; connections(): Promise<number>; end(): Promise<unknown> }> = {
  redis() {
    const user = `shared_${randomBytes(6).toString('hex')}`
    const url = new URL(redis)
    Object.assign(url, { username: user, password: 'secret' })
    const control = new Redis(redis)
    const ready = control.call('ACL', 'SETUSER', user, 'on', '>secret', '~*', '&*', '+@all')
    return {
      url: url.href,
      async connections() {
        await ready
        const list = String(await control.call('CLIENT', 'LIST'))
        return list.split('\n').filter((line) => line.includes(` user=${user} `)).length
      },
      async end() {
        await control.call('ACL', 'DELUSER', user)
        await control.quit()
      },
    }
  },
  postgres() {
    const name = `shared_${randomBytes(6).toString('hex')}`
    const url = new URL(postgres)
    url.searchParams.set('application_name', name)
    const control = new pg.Client(postgres)
    const ready = control.connect()
    return {
      url: url.href,
      async connections() {
        await ready
        const { rows } = await control.query('SELECT 1 FROM pg_stat_activity WHERE application_name = $1', [name])
        return rows.length
      },
      end: () => control.end(),
    }
  },
}

describe.concurrent.each(Object.entries(stores))('instances on one URL: %s', (_, open) => {
  it('share its connections, of any primitive, and the last one that is closed closes them', async () => {
    const { url, connections, end } = open()
    assert.equal(await connections(), 0)
    const lock = new DistributedLock({ url })
    const semaphore = new Semaphore({ url, limit: 2 })
    const election = new LeaderElection({ url, name: `leader:${url}` })
    const once = new OnceOnly({ url })
    const limiter = new RateLimiter({ url, limits: { limit: 10, periodSeconds: 60 } })
    const name = randomBytes(6).toString('hex')
    await lock.withLock(name, async () => {
      await semaphore.withPermits(`${name}:permits`, async () => {})
      await (await election.campaign({ blockingTimeoutSeconds: 5 })).resign()
      await once.once(`${name}:once`, () => 1, { forSeconds: 1 })
      await limiter.consume(name)
    })
    const most = await connections()
    assert.ok(most >= 1 && most <= 3, `${most} connections`)
    await Promise.all([lock, semaphore, election, once].map((each) => each.close()))
    assert.equal((await limiter.consume(name)).allowed, true)
    await limiter.close()
    while ((await connections()) > 0) await new Promise((resolve) => setTimeout(resolve, 20))
    await end()
  })

  it('cost little: 10,000 of them have one set of connections', async () => {
    const { url, connections, end } = open()
    await connections()
    const instances = Array.from({ length: 10_000 }, () => new DistributedLock({ url }))
    const name = randomBytes(6).toString('hex')
    const results = await Promise.all(
      instances.slice(0, 500).map((each, index) => each.acquire(`${name}:${index}`, { timeoutSeconds: 60 })),
    )
    assert.ok(results.every(({ acquired }) => acquired))
    const most = await connections()
    assert.ok(most >= 1 && most <= 6, `${most} connections`)
    await Promise.all(instances.map((each) => each.close()))
    while ((await connections()) > 0) await new Promise((resolve) => setTimeout(resolve, 20))
    await end()
  })
})

describe('an instance whose store could not be opened', () => {
  it('tries again with its next call, and so does one that shares the URL', async () => {
    const silent = createServer((socket) => socket.destroy()).listen(0, '127.0.0.1')
    await new Promise((resolve) => silent.once('listening', resolve))
    const { port } = silent.address() as { port: number }
    const url = `redis+cluster://127.0.0.1:${port}`
    const [first, second] = [new DistributedLock({ url }), new DistributedLock({ url })]
    const refused = { code: 'STORE_UNAVAILABLE' }
    await Promise.all([first, second].map((each) => assert.rejects(each.acquire('name'), refused)))
    await assert.rejects(first.acquire('name'), refused)
    await Promise.all([first.close(), second.close()])
    silent.close()
  })
})
