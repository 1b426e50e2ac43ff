import { describe, expect, inject, test } from 'vitest'
import { createStore, SLOW, type Store } from '../harness/cli.ts'
import { startWorker } from '../harness/worker.ts'

const { redis = [], cluster = [], postgres = '' } = inject('servers')

/** The URL of each store. A lease has no upper bound here: only the forced release can end it during the test. */
const stores: readonly (readonly [string, (store: Store) => string])[] = [
  ['redis', () => redis[0] ?? ''],
  ['redis cluster', () => (cluster[0] ?? '').replace('redis:', 'redis+cluster:')],
  ['redlock', () => `${redis.join(',').replaceAll(',redis://', ',').replace('redis:', 'redlock:')}?persistent=true`],
  ['postgres', () => postgres],
  ['postgres-advisory', () => postgres.replace('postgres:', 'postgres+advisory:')],
  ['sqlite', ({ path }) => `sqlite:${path}`],
]

/** What a person on call does with a lock that is stuck, on every store, with the program and a holder of its own. */
describe.concurrent('a lock that is stuck', SLOW, () => {
  test.each(stores)('on %s, is found, shown, measured, force-released, and its holder stops', async (name, urlOf) => {
    await using store = createStore()
    const url = urlOf(store)
    const lockName = `stuck:${store.folder}`
    await using holder = await startWorker({ source: holderOf(url) })
    await holder.call('hold', lockName)
    const metrics = metricsOf(await holder.call('metricsUrl'))
    expect(await metrics()).toEqual({ held: 1, losses: 0 })
    const run = async (...args: string[]) => (await store.run([...args, '--url', url])).stdout
    expect(await run('ls', lockName)).toContain('the holder')
    const shown = await run('show', lockName)
    expect(shown).toMatch(/^held by +the holder \(exclusive\)$/m)
    const args = ['force-release', lockName, '--reason', 'it is stuck', '--by', 'anna', '--yes', '--url', url]
    const { code, stderr } = await store.run(args)
    expect(stderr).toMatch(/is held by\n {2}the holder, for \d+s.*\nno claim waits for it\n/)
    expect(stderr).toContain(`ended the lease on "${lockName}"`)
    expect(code).toBe(0)
    // The lease lasts for hours, but a heartbeat renews it every few seconds.
    expect(await holder.call('lost')).toMatch(
      /LeaseLostError: the lease on "stuck:.*was lost: (?:the store no|the role)/,
    )
    expect(await metrics()).toEqual({ held: 0, losses: 1 })
    const after = await run('show', lockName)
    expect(after).toContain('it is free')
    if (name === 'postgres-advisory') expect(stderr).toContain('keeps no record of this')
    else expect(after).toMatch(/force-released before\n {2}\d+s ago by anna: it is stuck \(held by the holder\)\n/)
  })
})

/** Scrapes the holder, as Prometheus does: the leases that it holds, and those that it has lost. */
const metricsOf = (url: unknown) => async () => {
  const text = await (await fetch(String(url))).text()
  const values = [...text.matchAll(/^(holdfast_lock_(?:held|losses_total)\{lock="stuck:\{folder\}".*\}) (\d+)$/gm)]
  const sum = (part: string): number =>
    values.reduce((total, [, series = '', value]) => total + (series.includes(part) ? Number(value) : 0), 0)
  expect(values.length).toBeGreaterThan(2)
  return { held: sum('held'), losses: sum('losses') }
}

/** A process that holds a lock until its signal aborts, and serves its metrics. */
const holderOf = (url: string): string => `
  import { once } from 'node:events'
  import { createServer } from 'node:http'
  import { DistributedLock } from 'holdfast'
  import { prometheusMetrics } from 'holdfast/prometheus'
  const metrics = prometheusMetrics({ templates: ['stuck:{folder}'] })
  const server = createServer((request, response) => {
    response.setHeader('content-type', metrics.contentType).end(metrics.text())
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  const lock = new DistributedLock({ url: ${JSON.stringify(url)}, holderId: 'the holder' })
  let lost
  expose({
    async hold(name) {
      const { signal } = await lock.hold(name, { timeoutSeconds: 10_000, blocking: true })
      lost = new Promise((resolve) => signal.addEventListener('abort', () => resolve(String(signal.reason))))
    },
    metricsUrl: () => 'http://127.0.0.1:' + server.address().port + '/metrics',
    lost: () => lost,
  })`
