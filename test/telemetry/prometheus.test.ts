import { hasSubscribers } from 'node:diagnostics_channel'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { MAX_TEMPLATES } from '../../src/core/limits.ts'
import { memoryDriver } from '../../src/drivers/memory.ts'
import { DistributedLock, RateLimitedError, RateLimiter, Semaphore } from '../../src/index.ts'
import { LABELS, METRICS, metricIds } from '../../src/telemetry/metrics.ts'
import { prometheusMetrics } from '../../src/telemetry/prometheus.ts'
import { prometheusName, Registry, textOf } from '../../src/telemetry/prometheus-text.ts'
import { promtool } from '../harness/prometheus.ts'
import { rejectionOf } from '../harness/rejection.ts'

/** The lines of one metric, without its help. */
const linesOf = (text: string, name: string): string[] =>
  text.split('\n').filter((line) => new RegExp(`^${name}(?:\\{| )`).test(line))

describe('prometheusMetrics', () => {
  it('counts what every instance of the process does, also of those that are created later', async () => {
    const metrics = prometheusMetrics({ templates: ['order:{id}'] })
    await using lock = new DistributedLock({ driver: memoryDriver() })
    await using semaphore = new Semaphore({ driver: memoryDriver(), limit: 1 })
    const lease = await lock.hold('order:1')
    await lock.acquire('order:1')
    await semaphore.hold('permits')
    expect(linesOf(metrics.text(), 'holdfast_lock_held')).toEqual([
      'holdfast_lock_held{lock="order:{id}"} 1',
      'holdfast_lock_held{lock="other"} 1',
    ])
    expect(linesOf(metrics.text(), 'holdfast_lock_refusals_total')[0]).toBe(
      'holdfast_lock_refusals_total{lock="order:{id}"} 1',
    )
    await lease.release()
    expect(linesOf(metrics.text(), 'holdfast_lock_hold_duration_seconds_count')).toEqual([
      'holdfast_lock_hold_duration_seconds_count{lock="order:{id}",outcome="released"} 1',
    ])
    metrics.close()
  })

  it('counts only what the given instances do', async () => {
    await using lock = new DistributedLock({ driver: memoryDriver() })
    await using other = new DistributedLock({ driver: memoryDriver() })
    const metrics = prometheusMetrics({ instances: [lock] })
    await Promise.all([lock.hold('a'), other.hold('b')])
    expect(linesOf(metrics.text(), 'holdfast_lock_held')).toEqual(['holdfast_lock_held{lock="other"} 1'])
    metrics.close()
  })

  it('counts decisions of a rate limiter once, also when its fallback decides', async () => {
    const limits = { limit: 1, periodSeconds: 60 }
    const down = new RateLimiter({
      url: 'redis://127.0.0.1:1',
      limits,
      fallback: new RateLimiter({ url: 'memory:', limits }),
    })
    const metrics = prometheusMetrics()
    await down.consume('a')
    expect(await rejectionOf(() => down.wait('a', { blockingTimeoutSeconds: 0.001 }))).toBeInstanceOf(RateLimitedError)
    expect(linesOf(metrics.text(), 'holdfast_ratelimit_decisions_total')).toEqual([
      'holdfast_ratelimit_decisions_total{key="other",decision="allowed"} 1',
      'holdfast_ratelimit_decisions_total{key="other",decision="denied"} 1',
    ])
    expect(metrics.text()).toMatch(/^holdfast_store_errors_total\{operation="(?:open|consume)"\} [1-9]/m)
    metrics.close()
    await down.close()
  })

  it('has every counter of a lock from its first event on, so that a rate sees the first loss', async () => {
    const metrics = prometheusMetrics()
    await using lock = new DistributedLock({ driver: memoryDriver() })
    await lock.withLock('a', () => {})
    const text = metrics.text()
    for (const [name, { kind, labels }] of Object.entries(METRICS)) {
      if (kind === 'counter' && labels[0] !== 'key')
        expect(text).toContain(`holdfast_${name.replaceAll('.', '_')}_total`)
    }
    expect(linesOf(text, 'holdfast_lock_losses_total')).toHaveLength(5)
    metrics.close()
  })

  it('answers a scrape with a Response, without `this`', async () => {
    const { handler, contentType, close } = prometheusMetrics()
    const response = handler(new Request('http://localhost/metrics'))
    expect(response.headers.get('content-type')).toBe(contentType)
    expect(await response.text()).toContain('# TYPE holdfast_store_errors_total counter')
    close()
  })

  it('stops at close: nothing listens any more, and gauges are 0', async () => {
    const metrics = prometheusMetrics()
    await using lock = new DistributedLock({ driver: memoryDriver() })
    await lock.hold('a')
    metrics.close()
    metrics.close()
    await lock.hold('b')
    expect(linesOf(metrics.text(), 'holdfast_lock_held')).toEqual(['holdfast_lock_held{lock="other"} 0'])
    expect(hasSubscribers('holdfast:acquired')).toBe(false)
  })

  it.each([
    [{ template: [] }, 'did you mean templates'],
    [{ instances: [{}] }, 'instances[0] must be'],
    [{ instances: new Map() }, 'instances must be a list'],
    [{ templates: 7 }, 'templates must be'],
  ])('refuses the options %j', (options, message) => {
    expect(() => prometheusMetrics(options as object)).toThrow(message)
  })
})

describe('hostile lock names', () => {
  /** What could end a label, a line or a metric, and what other formats give a meaning to. */
  const piece = fc.oneof(
    fc.constantFrom(
      '"',
      '\\',
      '\n',
      '\r',
      '{',
      '}',
      '#',
      '=',
      ',',
      ' ',
      '\t',
      '\\n',
      '# HELP',
      'le',
      '\u2028',
      '💥',
      '\x7f',
    ),
    fc.string({ unit: 'binary', maxLength: 4 }),
  )
  const name = fc.array(piece, { minLength: 1, maxLength: 12 }).map((pieces) => pieces.join(''))

  it('as templates become labels that Prometheus reads, each on its own line', async () => {
    const names = fc.sample(name, 300)
    const registry = new Registry()
    const found = new Set(names.filter((each) => !each.includes('\0') && each.isWellFormed()))
    for (const each of found) registry.add('lock.forced_releases', [each], 1)
    const text = textOf(registry, [{ id: 'lock.held', values: [[...found][0] ?? ''], value: 1 }])
    expect(text.split('\n')).toHaveLength(found.size + 6)
    expect(text.split('\n').filter((line) => line.startsWith('holdfast_lock_forced_releases_total{'))).toHaveLength(
      found.size,
    )
    expect(await promtool(['check', 'metrics'], { input: text })).toBe('')
  })

  it('make no more series than the stated number of templates', async () => {
    const metrics = prometheusMetrics({ templates: (lockName) => lockName })
    await using lock = new DistributedLock({ driver: memoryDriver() })
    await using limiter = new RateLimiter({ url: 'memory:', limits: { limit: 1_000_000, periodSeconds: 1 } })
    for (let count = 0; count < 2_000; count += 1) {
      await lock.withLock(`user-${count}"} 1\n#`, () => {})
      await limiter.consume(`key-${count}`)
    }
    const text = metrics.text()
    const locks = new Set([...text.matchAll(/lock="((?:[^"\\]|\\.)*)"/g)].map(([, label]) => label))
    const keys = new Set([...text.matchAll(/key="((?:[^"\\]|\\.)*)"/g)].map(([, label]) => label))
    // Locks and keys share the templates.
    expect(new Set([...locks, ...keys]).size).toBe(MAX_TEMPLATES + 1)
    expect(text.split('\n').length).toBeLessThan(MAX_TEMPLATES * 140)
    expect(await promtool(['check', 'metrics'], { input: text })).toBe('')
    metrics.close()
  })
})

describe('docs/reference/telemetry.md', () => {
  const page = readFileSync(join(import.meta.dirname, '../../docs/reference/telemetry.md'), 'utf8')

  it('lists every metric with its two names, its kind and its labels, and no other', () => {
    const rows = [...page.matchAll(/^\| `(holdfast\.[\w.]+)` \| `(holdfast_\w+)` \| (\w+) \|([^|]*)\|/gm)]
    const listed = rows.map(([, name, prometheus, kind, labels = '']) => ({
      name,
      prometheus,
      kind,
      labels: labels.trim(),
    }))
    const known = metricIds.map((id) => ({
      name: `holdfast.${id}`,
      prometheus: prometheusName(id),
      kind: METRICS[id].kind,
      labels: METRICS[id].labels.map((label) => `\`${label}\``).join(', '),
    }))
    expect(listed).toEqual(known)
  })

  it('lists every label with both names', () => {
    for (const [label, attribute] of Object.entries(LABELS))
      expect(page).toContain(`| \`${label}\` | \`${attribute}\` |`)
  })
})
