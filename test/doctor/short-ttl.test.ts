import { randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, describe, expect, inject, test } from 'vitest'
import { connect } from '../../src/connect.ts'
import type { Driver } from '../../src/core/driver.ts'
import { aboutTtls, roundTripsOf } from '../../src/doctor/timing.ts'
import { examineUse } from '../../src/doctor/use.ts'
import { DistributedLock } from '../../src/primitives/lock/distributed-lock.ts'
import { makeFolder } from '../harness/folders.ts'
import { startProxy } from '../harness/proxy.ts'
import { disposeAll, startAll } from '../harness/redis.ts'

const { redis = [], cluster = [], postgres = '' } = inject('servers')

/** Stores in a network, each without the leases of other tests. `own` is a word that no other test has. */
const remote: readonly (readonly [string, (own: string) => string])[] = [
  ['redis', (own) => `${redis[0]}?prefix=${own}:`],
  ['redlock', (own) => `redlock://${redis.map(hostOf).join(',')}?persistent=true&prefix=${own}:`],
  ['postgres', (own) => `${postgres}?holdfast_schema=${own}`],
]
const folder = makeFolder('doctor-ttl')
const all = [
  ...remote,
  ['redis cluster', (own: string) => `redis+cluster://${hostOf(cluster[0] ?? '')}?prefix=${own}:`],
  ['sqlite', (own: string) => `sqlite:${folder.path}/${own}.db`],
] as const

afterAll(() => folder.remove())

const ownWord = (): string => `ttl_${randomBytes(6).toString('hex')}`

// At the same time: each of them waits much more than it computes.
describe.concurrent('doctor compares round trips with the TTLs in use', { timeout: 120_000 }, () => {
  test.each(remote)('on %s, a lease that is renewed in time is too short for a slow network', async (_, urlOf) => {
    const url = urlOf(ownWord())
    const hosts = [...url.matchAll(/127\.0\.0\.1:(\d+)/g)].map(([, port]) => Number(port))
    const proxies = await startAll(hosts.map((port) => startProxy(port)))
    await using _closing = { [Symbol.asyncDispose]: () => disposeAll(proxies) }
    await using store = await openStore(url)
    await store.lock.hold('roomy', { timeoutSeconds: 10, heartbeat: true })
    const behind = proxies.reduce((text, { port }, at) => text.replace(`:${hosts[at]}`, `:${port}`), url)
    const found = async (delayMs: number) => {
      const drivers = [await connected(behind), await connected(behind)]
      for (const proxy of proxies) proxy.delay(delayMs)
      const findings = await examineUse(async () => drivers.shift() as Driver, 'no statement')
      return findings.filter(({ code }) => code === 'SHORT_TTL').map(({ what }) => what)
    }
    expect(await found(0)).toEqual([])
    await store.lock.hold('short', { timeoutSeconds: 2, heartbeat: true })
    expect(await found(130)).toEqual([expect.stringMatching(/^"short" has a lease of about /)])
  })

  test.each(all)('on %s, by the shortest lease: a third is an error, a ninth a warning', async (_, urlOf) => {
    await using store = await openStore(urlOf(ownWord()))
    await store.lock.hold('long', { timeoutSeconds: 60, heartbeat: false })
    await store.lock.hold('short', { timeoutSeconds: 6, heartbeat: false })
    const [third = [], ninth = [], less] = await Promise.all([2_100, 700, 600].map(store.about))
    expect(third).toMatchObject([{ code: 'SHORT_TTL', severity: 'error' }])
    expect(ninth).toMatchObject([{ code: 'SHORT_TTL', severity: 'warning' }])
    const [{ what, fix } = { what: '', fix: '' }] = ninth
    expect(what).toMatch(/^"short" has a lease of about 6\.0 s, .* takes 700 ms, and at worst 700 ms\.$/)
    expect(fix).toContain('timeoutSeconds of this lock to 21 or more')
    expect(less).toEqual([])
  })

  test('what is left of a lease is not its TTL', async () => {
    await using store = await openStore(`sqlite:${folder.path}/left.db`)
    await store.lock.hold('near its end', { timeoutSeconds: 4, heartbeat: false })
    // Until less is left than nine of the calls below take.
    await sleep(2_500)
    expect(await store.about(200)).toEqual([])
  })

  test('leases that end with their session have no TTL to compare', async () => {
    await using store = await openStore(postgres.replace('postgres:', 'postgres+advisory:'))
    await store.lock.hold(ownWord(), { timeoutSeconds: 3, heartbeat: true })
    expect(await store.about(60_000)).toEqual([])
  })
})

/** A holder, and what doctor says of its store if a call takes this long. */
async function openStore(url: string) {
  const driver = await connect(url)
  const lock = new DistributedLock({ driver })
  return {
    lock,
    about: (callMs: number) => aboutTtls(lock, driver, roundTripsOf([callMs, callMs])),
    async [Symbol.asyncDispose]() {
      await lock.close()
      await driver.close()
    },
  }
}

/** A driver that has its connection before the network becomes slow. The nodes of Redlock have a second to connect. */
async function connected(url: string): Promise<Driver> {
  const driver = await connect(url)
  await new DistributedLock({ driver }).ping()
  return driver
}

function hostOf(url: string): string {
  return new URL(url).host
}
