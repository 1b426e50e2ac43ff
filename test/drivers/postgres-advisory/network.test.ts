import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { afterAll, beforeAll, describe, it } from 'vitest'
import type { AcquireAnswer } from '../../../src/core/driver.ts'
import { advisoryKey, openPostgresAdvisory } from '../../../src/drivers/postgres-advisory.ts'
import { DistributedLock, type DistributedLockOptions } from '../../../src/primitives/lock/distributed-lock.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { claimOn, granted, grantOn, unique, until } from '../../harness/postgres-context.ts'
import { startProxy } from '../../harness/proxy.ts'
import { type Server, startPostgres } from '../../harness/servers.ts'
import { startWorker, type Worker } from '../../harness/worker.ts'

/** The machine may be busy with other test files. */
const SLOW = { timeout: 60_000 }

let server: Server
let pool: pg.Pool
beforeAll(async () => {
  server = await startPostgres()
  pool = new pg.Pool({ connectionString: server.url, max: 4 })
})
afterAll(async () => {
  await pool.end()
  await server[Symbol.asyncDispose]()
})

describe.concurrent('postgres-advisory: replies that are late or lost', SLOW, () => {
  it('failure 10: an acquire that is granted after its client gave up is released', async () => {
    await using proxy = await startProxy(server.port)
    await using slow = await opened({ port: proxy.port, callTimeoutSeconds: 0.3 })
    const name = unique('late')
    await slow.driver.inspect({ lockName: name }) // connected
    proxy.hold('toClient')
    await assert.rejects(slow.lock.acquire(name, { blocking: false }), { code: 'STORE_UNAVAILABLE' })
    await until('the server to have granted it', async () => (await backends(name, true)).length === 1)
    proxy.release('toClient')
    await until('the detached release', async () => (await backends(name, true)).length === 0)
  })

  it('failure 11: a lost reply ends the session and its lock, and asking again takes it on a new one', async () => {
    await using proxy = await startProxy(server.port)
    await using instance = await opened({ port: proxy.port })
    const name = unique('lost-reply')
    await instance.driver.inspect({ lockName: name })
    const cut = proxy.cutAfterForwarding('EXECUTE holdfast_take')
    const result = await instance.lock.acquire(name, { blockingTimeoutSeconds: 15 })
    await cut
    assert.ok(result.acquired && result.lock.held)
    assert.equal((await backends(name, true)).length, 1)
  })

  it('failure 14: a renewal that is in flight when the lock is released does not keep it', async () => {
    await using proxy = await startProxy(server.port)
    await using slow = await opened({ port: proxy.port })
    const claim = claimOn(unique('renewal'))
    const { fencingToken } = await granted(slow.driver, claim)
    proxy.hold('toServer')
    const renewal = slow.driver.renew([{ ...claim, fencingToken }])
    const release = slow.driver.release([{ ...claim, fencingToken }])
    proxy.release('toServer')
    assert.deepEqual([await renewal, await release], [['held'], [true]])
    assert.deepEqual(await backends(claim.lockName, true), [])
  })
})

// A waiter that was granted its lock asks for it in a list, and another claim of the list is slow.
describe.concurrent('postgres-advisory: a slow list', SLOW, () => {
  it('the lease of a waiter that asks for it lasts until the answer, and longer than its place', async () => {
    await using scene = await slowList()
    await sleep(scene.waiter.waiterTtlMs + 100) // until the place of a waiter that does not ask has ended
    const answer = await scene.answer()
    assert.ok(!(answer instanceof Error) && answer.granted)
    const lease = { ...scene.waiter, fencingToken: answer.fencingToken }
    assert.deepEqual(await scene.slow.driver.renew([lease]), ['held'])
    assert.equal(await grantOn(scene.rival.driver, scene.waiter.lockName), undefined)
  })

  it('a lease whose session ends before the answer is not granted', async () => {
    await using scene = await slowList()
    const [pid] = await backends(scene.waiter.lockName, true)
    await pool.query('SELECT pg_terminate_backend($1, 5000)', [pid])
    const lost = `the connection that was granted "${scene.waiter.lockName}" has ended`
    await until('the loss', () => scene.lost.length > 0)
    assert.match(String(await scene.answer()), new RegExp(lost))
    assert.ok(await grantOn(scene.rival.driver, scene.waiter.lockName))
  })

  async function slowList() {
    const proxy = await startProxy(server.port)
    const [slow, rival] = [await opened({ port: proxy.port }), await opened()]
    const holder = claimOn(unique('slow-list'))
    const waiter = claimOn(holder.lockName, 2_500)
    const { fencingToken } = await granted(rival.driver, holder)
    const [heard, lost]: [string[], string[]] = [[], []]
    const hear = (claimId: string): unknown => heard.push(claimId)
    const notice = (claimId: string): unknown => lost.push(claimId)
    await slow.driver.listen?.({ wake() {}, granted: hear, lost: notice, disconnected() {} })
    await slow.driver.acquire([waiter], newCall())
    await rival.driver.release([{ ...holder, fencingToken }])
    await until('the grant', () => heard.length > 0)
    proxy.hold('toServer')
    const answers = slow.driver.acquire([waiter, claimOn(unique('other'))], newCall())
    return {
      slow,
      rival,
      waiter,
      lost,
      async answer(): Promise<AcquireAnswer | Error> {
        proxy.release('toServer')
        return (await answers)[0] as AcquireAnswer | Error
      },
      async [Symbol.asyncDispose]() {
        for (const each of [slow, rival]) await each[Symbol.asyncDispose]()
        await proxy.close()
      },
    }
  }
})

describe.concurrent('postgres-advisory: leases whose session has ended', SLOW, () => {
  it('failure 12: a release returns false, and does not touch the rival’s lease', async () => {
    await using scene = await overtaken()
    assert.deepEqual(await scene.first.driver.release([scene.late]), [false])
    assert.deepEqual(await scene.rival.driver.renew([scene.lease]), ['held'])
  })

  it('failure 13: a renewal returns lost, with and without a rival', async () => {
    await using scene = await overtaken()
    assert.deepEqual(await scene.first.driver.renew([scene.late]), ['lost'])
    assert.deepEqual(await scene.rival.driver.release([scene.lease]), [true])
    assert.deepEqual(await scene.first.driver.renew([scene.late]), ['lost'])
    assert.deepEqual(await backends(scene.late.lockName, true), [])
  })
})

describe.concurrent('postgres-advisory: closing', SLOW, () => {
  it('a connection that is being opened again is closed with the driver', async () => {
    await using proxy = await startProxy(server.port)
    const name = unique('reopening').slice(-60)
    const driver = await openPostgresAdvisory(
      `${server.url.replace(`:${server.port}`, `:${proxy.port}`)}?application_name=${name}`,
    )
    const connected = async (): Promise<number> =>
      (await pool.query('SELECT FROM pg_stat_activity WHERE application_name = $1', [name])).rowCount ?? 0
    const lost: string[] = []
    const claim = claimOn(name)
    await driver.listen?.({ wake() {}, granted() {}, lost: (id) => void lost.push(id), disconnected() {} })
    await granted(driver, claim)
    await pool.query('SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = $1', [name])
    await until('the loss', () => lost.length > 0)
    proxy.hold('toClient')
    const asked = driver.inspect({}).catch((error: unknown) => error)
    await until('it to connect', async () => (await connected()) > 0)
    const closing = driver.close()
    await sleep(1_500) // longer than closing waits for the calls in flight
    proxy.release('toClient')
    await Promise.all([asked, closing])
    await until('all connections to end', async () => (await connected()) === 0)
  })
})

describe.concurrent('postgres-advisory: waiters', SLOW, () => {
  it('failure 15: a waiter that was paused past its grant does not rely on it', async () => {
    await using holder = await opened()
    const name = unique('paused-waiter')
    const lease = await holder.lock.hold(name)
    await using worker = await waiterProcess(1)
    const answer = worker.call('hold', name)
    const [waiting] = await until('it to wait', () => some(backends(name, false)))
    await worker.pause()
    await lease.release()
    await until('the server to hand over', async () => (await backends(name, true)).includes(waiting as number))
    await sleep(1_200) // longer than its place lasts
    worker.resume()
    assert.equal(await answer, true)
    assert.equal((await backends(name, true)).length, 1)
    assert.equal(await grantOn(holder.driver, name), undefined)
  })

  it('failure 29: a waiter whose connection was ended is queued again, and is served', async () => {
    await using holder = await opened()
    await using waiting = await opened({ waiterTtlSeconds: 2 })
    const name = unique('cut-off')
    const lease = await holder.lock.hold(name)
    const next = waiting.lock.hold(name, { blockingTimeoutSeconds: 30 })
    const [pid] = await until('it to wait', () => some(backends(name, false)))
    await pool.query('SELECT pg_terminate_backend($1, 5000)', [pid])
    await lease.release()
    assert.equal((await next).held, true)
  })

  it('failure 30: a release while the waiter joins the queue is not missed', async () => {
    await using proxy = await startProxy(server.port)
    await using holder = await opened()
    await using waiting = await opened({ port: proxy.port, waiterTtlSeconds: 60 })
    const name = unique('on-its-way')
    const lease = await holder.lock.hold(name)
    await waiting.driver.inspect({ lockName: name })
    proxy.hold('toServer')
    const next = waiting.lock.hold(name, { blockingTimeoutSeconds: 30 })
    await lease.release()
    proxy.release('toServer')
    assert.equal((await next).held, true)
  })

  it('failure 31: when the first waiter is killed, the next one is served at once', async () => {
    await using holder = await opened()
    const name = unique('killed')
    const lease = await holder.lock.hold(name)
    await using worker = await waiterProcess(10)
    worker.call('hold', name).catch(() => {})
    await until('it to wait', () => some(backends(name, false)))
    await using next = await opened()
    const turn = next.lock.hold(name, { blockingTimeoutSeconds: 30 })
    await until('both to wait', async () => (await backends(name, false)).length === 2)
    await worker.kill()
    const startedMs = performance.now()
    await lease.release()
    assert.equal((await turn).held, true)
    // The dead waiter's place would have lasted 10 s, but its connection ended with it.
    assert.ok(performance.now() - startedMs < 8_000)
  })

  it('failure 35: 1,000 waiters of a process are one connection in the queue, and a hand-over wakes one', async () => {
    await using holder = await opened()
    await using waiting = await opened()
    const name = unique('herd')
    const lease = await holder.lock.hold(name)
    const stop = new AbortController()
    let served = 0
    const waiters = Array.from({ length: 1_000 }, async () => {
      const mine = await waiting.lock.hold(name, { blockingTimeoutSeconds: 60, signal: stop.signal })
      served += 1
      assert.ok((await backends(name, false)).length <= 1)
      await mine.release()
      if (served === 20) stop.abort()
    })
    await until('them to wait', () => some(backends(name, false)))
    await lease.release()
    const outcomes = await Promise.allSettled(waiters)
    const failed = outcomes.flatMap((outcome) => (outcome.status === 'rejected' ? [outcome.reason] : []))
    assert.equal(served + failed.length, 1_000)
    assert.ok(
      failed.every(({ code }) => code === 'ABORTED'),
      String(failed.find(({ code }) => code !== 'ABORTED')),
    )
    assert.ok(served >= 20)
    await until('the queue to be empty', async () => (await backends(name, false)).length === 0)
  })
})

async function opened({ port = server.port, ...options }: DistributedLockOptions & { port?: number } = {}) {
  const driver = await openPostgresAdvisory(server.url.replace(`:${server.port}`, `:${port}`))
  const lock = new DistributedLock({ driver, ...options })
  return {
    driver,
    lock,
    async [Symbol.asyncDispose]() {
      await lock.close()
      await driver.close()
    },
  }
}

/** A lease whose connection the server has ended, and the one that a rival was granted then. */
async function overtaken() {
  const [first, rival] = [await opened(), await opened()]
  const claim = claimOn(unique('overtaken'))
  const { fencingToken } = await granted(first.driver, claim)
  const [pid] = await backends(claim.lockName, true)
  await pool.query('SELECT pg_terminate_backend($1, 5000)', [pid])
  const next = claimOn(claim.lockName)
  const grant = await granted(rival.driver, next)
  assert.ok(grant.fencingToken > fencingToken)
  return {
    first,
    rival,
    late: { ...claim, fencingToken },
    lease: { ...next, fencingToken: grant.fencingToken },
    async [Symbol.asyncDispose]() {
      await first[Symbol.asyncDispose]()
      await rival[Symbol.asyncDispose]()
    },
  }
}

/** The server's processes that have a lock, or wait for it. */
async function backends(lockName: string, isGranted: boolean): Promise<number[]> {
  const text = `SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted = $2
    AND (classid::bigint << 32 | objid::bigint) = $1`
  return (await pool.query(text, [advisoryKey(lockName), isGranted])).rows.map(({ pid }) => pid)
}

const some = async <T>(found: Promise<T[]>): Promise<T[] | undefined> => {
  const all = await found
  return all.length > 0 ? all : undefined
}

/** A process that waits for a lock, and says whether it has it. */
function waiterProcess(waiterTtlSeconds: number): Promise<Worker> {
  const source = `
    import { DistributedLock } from 'holdfast'
    import { openPostgresAdvisory } from 'holdfast/drivers/postgres-advisory'
    const driver = await openPostgresAdvisory(${JSON.stringify(server.url)})
    const lock = new DistributedLock({ driver, waiterTtlSeconds: ${waiterTtlSeconds} })
    expose({ hold: async (name) => (await lock.hold(name, { blockingTimeoutSeconds: 30 })).held })`
  return startWorker({ source }, { callTimeoutMs: 30_000 })
}
