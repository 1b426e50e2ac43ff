import { type ChildProcessByStdio, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import type { Readable, Writable } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeAll, describe, expect, inject, it } from 'vitest'
import { DistributedLock, HoldfastError, type LockEvent, RateLimiter } from '../../src/index.ts'
import { METRICS, metricIds } from '../../src/telemetry/metrics.ts'
import { type PrometheusMetrics, prometheusMetrics } from '../../src/telemetry/prometheus.ts'
import { prometheusName } from '../../src/telemetry/prometheus-text.ts'
import { makeFolder } from '../harness/folders.ts'
import { freePort } from '../harness/ports.ts'
import { until } from '../harness/processes.ts'
import { type Prometheus, promtool, startPrometheus } from '../harness/prometheus.ts'
import { assertPython, python } from '../harness/python.ts'
import { reapProcess } from '../harness/reaper.ts'

const files = join(import.meta.dirname, '../../examples/monitoring')
const rules = join(files, 'alerts.yml')

/** The services of both languages, as Grafana's variable `$job` has them. */
const JOBS = ['node', 'python']

/** Every query of the dashboard, with the values that Grafana would put in for one service. */
const queries = (
  JSON.parse(readFileSync(join(files, 'dashboard.json'), 'utf8')) as {
    panels: { title: string; targets: { expr: string }[] }[]
  }
).panels.flatMap(({ title, targets }) =>
  targets.flatMap(({ expr }) =>
    JOBS.map((job): [title: string, query: string] => [
      title,
      expr
        .replaceAll('$__rate_interval', '10s')
        .replaceAll('$__range', '1m')
        .replaceAll(/\$job\b/g, job)
        .replaceAll(/\$lock\b/g, '.*'),
    ]),
  ),
)

const packageOfPython = join(import.meta.dirname, '../../python')
const { redis = [], postgres = '' } = inject('servers')
const folder = makeFolder('monitoring')
const ended = new AbortController()
const work: Promise<void>[] = []
let metrics: PrometheusMetrics
let server: Server
let pythonService: ChildProcessByStdio<Writable, Readable, Readable> | undefined
let prometheus: Prometheus

beforeAll(async () => {
  metrics = prometheusMetrics({ templates: ['order:{id}', 'report', 'api:{user}'] })
  server = createServer((_, response) => {
    response.setHeader('content-type', metrics.contentType)
    response.end(metrics.text())
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  const stores = [redis[0] ?? '', postgres, `sqlite:${join(folder.path, 'locks.db')}`]
  const deadStore = `redis://127.0.0.1:${await freePort()}`
  work.push(...stores.map(useLocks), useDeadStore(deadStore))
  const targets = { node: port, python: await startPythonService(redis[0] ?? '', deadStore) }
  prometheus = await startPrometheus({ targets, scrapeMs: 500, rules: [rules] })
})

afterAll(async () => {
  ended.abort()
  await Promise.all(work)
  pythonService?.stdin.end()
  await prometheus?.[Symbol.asyncDispose]()
  server?.close()
  metrics?.close()
  folder.remove()
})

/** Returns the port of its metrics. It does in Python what the rest of this file does in Node. */
async function startPythonService(...urls: string[]): Promise<number> {
  await assertPython()
  const service = spawn(python, [join(packageOfPython, 'tests/support/metrics_service.py'), ...urls], {
    env: { ...process.env, PYTHONPATH: join(packageOfPython, 'src') },
    stdio: ['pipe', 'pipe', 'pipe'],
  })
  pythonService = service
  if (service.pid !== undefined) reapProcess(service.pid)
  let printed = ''
  service.stderr.on('data', (text) => {
    printed += text
  })
  const [port] = await Promise.race([once(service.stdout, 'data'), once(service, 'exit').then(() => [])])
  if (port === undefined) throw new Error(`the Python service has ended:\n${printed}`)
  return Number(port)
}

/** Does again and again what a service does on a busy day. */
async function useLocks(url: string): Promise<void> {
  await using lock = new DistributedLock({ url })
  await using rival = new DistributedLock({ url })
  await using limiter = new RateLimiter({ url, limits: { limit: 1, periodSeconds: 3_600 } })
  for (let count = 0; !ended.signal.aborted; count += 1) {
    const work: Promise<unknown>[] = [compete(lock, rival, `order:monitoring-${count}`), forceRelease(lock, rival)]
    for (const _ of ['allowed', 'denied']) work.push(limiter.consume(`api:monitoring-${count}`))
    for (const { reason } of (await Promise.allSettled(work)) as { reason?: unknown }[]) {
      // A machine that is too busy loses a lease, or gets a late answer. The next round makes up for it.
      if (reason !== undefined && !(reason instanceof HoldfastError)) throw reason
    }
  }
}

/** One claim holds the lock until its heartbeat has renewed it, one is refused, and one waits. */
async function compete(lock: DistributedLock, rival: DistributedLock, name: string): Promise<void> {
  await using _ = await lock.hold(name, { timeoutSeconds: 3 })
  await rival.acquire(name)
  const waiter = rival.withLock(name, async () => {}, { blockingTimeoutSeconds: 60 })
  await Promise.race([event(lock, 'renewed'), event(lock, 'lost'), waiter])
}

/** With its next heartbeat, the holder learns of it. */
async function forceRelease(lock: DistributedLock, rival: DistributedLock): Promise<void> {
  const lost = event(lock, 'lost')
  await lock.hold('report', { timeoutSeconds: 3 })
  await rival.forceRelease('report', { by: 'the test' })
  await lost
}

const event = (lock: DistributedLock, name: LockEvent): Promise<void> =>
  new Promise((resolve) => {
    const stop = lock.on(name, () => {
      stop()
      resolve()
    })
  })

/** Nothing listens at that port. */
async function useDeadStore(url: string): Promise<void> {
  const lock = new DistributedLock({ url, callTimeoutSeconds: 1 })
  while (!ended.signal.aborted) {
    await lock.acquire('order:1').catch(() => {})
    await sleep(100, undefined, { signal: ended.signal }).catch(() => {}) // so that it does not spin
  }
  await lock.close({ deadlineSeconds: 0.2 })
}

/** Long enough for a busy machine. */
const SOON = { timeoutMs: 40_000, everyMs: 100 }

describe('the metrics of a run on Redis, PostgreSQL and SQLite', () => {
  it('reach Prometheus, each of them', async () => {
    const names = metricIds.map((id) =>
      METRICS[id].kind === 'histogram' ? `${prometheusName(id)}_count` : prometheusName(id),
    )
    let missing = names.flatMap((name) => JOBS.map((job) => `${name}{job="${job}"}`))
    await until(
      async () => {
        const found = await Promise.all(missing.map(async (name) => (await prometheus.query(name)).length > 0))
        missing = missing.filter((_, index) => !found[index])
        return missing.length === 0
      },
      { ...SOON, failure: () => `Prometheus has no ${missing.join(', ')}` },
    )
    // One scrape of a busy machine may take too long.
    const up = await prometheus.query('max_over_time(up[1m])')
    expect(up.map(({ labels, value }) => [labels['job'], value]).sort()).toEqual(JOBS.map((job) => [job, 1]))
  })

  it('have the same series from Python and Node: the names of labels, and the bounds of buckets', async () => {
    const shapes = async (job: string): Promise<string[]> => {
      const found = await prometheus.query(`{__name__=~"holdfast_.+", job="${job}"}`)
      const shape = ({ le = '', ...labels }: Record<string, string>): string =>
        [labels['__name__'], ...Object.keys(labels).sort(), le].join(' ')
      return [...new Set(found.map(({ labels }) => shape(labels)))].sort()
    }
    expect(await shapes('python')).toEqual(await shapes('node'))
  })

  it('have nothing that promtool objects to', async () => {
    expect(await promtool(['check', 'metrics'], { input: metrics.text() })).toBe('')
  })
})

describe('the dashboard', () => {
  it('has queries', () => {
    expect(queries.length).toBeGreaterThan(20)
  })

  it.concurrent.each(queries)('shows data in "%s": %s', async (_, query) => {
    await until(async () => (await prometheus.query(query)).some(({ value }) => Number.isFinite(value)), {
      ...SOON,
      failure: () => `no data for ${query}`,
    })
  })
})

describe('the alert rules', () => {
  it('are valid, and do what their tests say', async () => {
    expect(await promtool(['check', 'rules', rules])).toContain('SUCCESS')
    expect(await promtool(['test', 'rules', 'alerts.test.yml'], { cwd: files })).toContain('SUCCESS')
  })

  it('are evaluated by Prometheus, and report forced releases, lost leases and the dead store', async () => {
    const wanted = {
      HoldfastLeaseLost: ['firing'],
      HoldfastLockForceReleased: ['firing'],
      // It fires after a minute.
      HoldfastStoreUnreachable: ['pending', 'firing'],
      HoldfastWaitingTooLong: ['inactive'],
      // A claim that was not answered is withdrawn, and that is not answered either.
      HoldfastReleaseFailed: ['firing'],
    } as Record<string, string[]>
    let seen = ''
    await until(
      async () => {
        const all = await prometheus.rules()
        seen = JSON.stringify(all.map(({ name, state, health, lastError }) => ({ name, state, health, lastError })))
        expect(all.map(({ name }) => name).sort()).toEqual(Object.keys(wanted).sort())
        const isPython = await prometheus.query('count by (alertname) (ALERTS{job="python"})')
        const alerts = isPython.map(({ labels }) => labels['alertname'])
        const both = Object.keys(wanted).every((name) => wanted[name]?.[0] === 'inactive' || alerts.includes(name))
        return both && all.every(({ name, health, state }) => health === 'ok' && wanted[name]?.includes(state))
      },
      { ...SOON, failure: () => `the rules are ${seen}` },
    )
  })
})
