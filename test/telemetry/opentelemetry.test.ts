import * as api from '@opentelemetry/api'
import { AsyncLocalStorageContextManager } from '@opentelemetry/context-async-hooks'
import {
  AggregationTemporality,
  type DataPoint,
  type Histogram,
  InMemoryMetricExporter,
  MeterProvider,
  PeriodicExportingMetricReader,
} from '@opentelemetry/sdk-metrics'
import {
  BasicTracerProvider,
  InMemorySpanExporter,
  type ReadableSpan,
  SimpleSpanProcessor,
} from '@opentelemetry/sdk-trace-base'
import { afterEach, beforeAll, describe, expect, it, vi } from 'vitest'
import { createMemoryStore, memoryDriver } from '../../src/drivers/memory.ts'
import { DistributedLock, InvalidArgumentError, LeaseLostError, RateLimiter } from '../../src/index.ts'
import { METRICS } from '../../src/telemetry/metrics.ts'
import { openTelemetry, traceMetadata } from '../../src/telemetry/opentelemetry.ts'
import { gate } from '../harness/gate.ts'
import { rejectionOf } from '../harness/rejection.ts'
import { unreadableValues } from '../harness/unreadable.ts'

const spans = new InMemorySpanExporter()
const exporter = new InMemoryMetricExporter(AggregationTemporality.CUMULATIVE)
const reader = new PeriodicExportingMetricReader({ exporter, exportIntervalMillis: 3_600_000 })
const tracer = api.trace.getTracer('the application')
const ended: { close(): void }[] = []

beforeAll(() => {
  api.context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable())
  api.trace.setGlobalTracerProvider(new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(spans)] }))
  api.metrics.setGlobalMeterProvider(new MeterProvider({ readers: [reader] }))
})

afterEach(() => {
  for (const each of ended.splice(0)) each.close()
  spans.reset()
  exporter.reset()
})

function instrument(options: Partial<Parameters<typeof openTelemetry>[0]> = {}): void {
  ended.push(openTelemetry({ api, templates: ['order:{id}'], ...options }))
}

function fail(message: string): never {
  throw new Error(message)
}

/** The functions of an API whose methods are on its class. */
const unbound = ({ setSpan, getSpan, isSpanContextValid }: typeof api.trace) => ({
  setSpan,
  getSpan,
  isSpanContextValid,
})

const named = (name: string): ReadableSpan[] => spans.getFinishedSpans().filter((span) => span.name === name)

describe('the metrics', () => {
  it('have the names, units, attributes and values that the reference states', async () => {
    instrument({ spans: false })
    await using lock = new DistributedLock({ driver: memoryDriver() })
    await using limiter = new RateLimiter({ url: 'memory:', limits: { limit: 1, periodSeconds: 60 } })
    const lease = await lock.hold('order:1', { timeoutSeconds: 1 })
    await new Promise<void>((renewed) => lock.on('renewed', () => renewed()))
    await lock.acquire('order:1')
    const waiter = lock.hold('order:1', { blocking: true })
    await limiter.consume('k')
    await reader.forceFlush()
    const found = exporter.getMetrics().flatMap(({ scopeMetrics }) => scopeMetrics.flatMap(({ metrics }) => metrics))
    const pointsOf = (name: string) => found.find(({ descriptor }) => descriptor.name === name)?.dataPoints ?? []
    for (const [name, { unit, help, kind }] of Object.entries(METRICS)) {
      const metric = found.find(({ descriptor }) => descriptor.name === `holdfast.${name}`)
      if (kind === 'histogram' && metric === undefined) continue
      expect(metric?.descriptor, name).toMatchObject({ unit, description: help })
    }
    const lockAttributes = { 'holdfast.lock.template': 'order:{id}' }
    expect(pointsOf('holdfast.lock.held')).toMatchObject([{ value: 1, attributes: lockAttributes }])
    expect(pointsOf('holdfast.lock.waiters')).toMatchObject([{ value: 1 }])
    expect(pointsOf('holdfast.lock.contentions')).toMatchObject([{ value: 2, attributes: lockAttributes }])
    const [renewal] = pointsOf('holdfast.lock.renewal.duration') as DataPoint<Histogram>[]
    expect(renewal?.value.count).toBeGreaterThan(0)
    expect(renewal?.value.buckets.boundaries).toEqual(METRICS['lock.renewal.duration'].buckets)
    expect(pointsOf('holdfast.ratelimit.decisions')).toMatchObject([
      { value: 1, attributes: { 'holdfast.key.template': 'other', 'holdfast.decision': 'allowed' } },
      { value: 0, attributes: { 'holdfast.decision': 'denied' } },
    ])
    await lease.release()
    await (await waiter).release()
  })
})

describe('the spans', () => {
  it('are children of the caller’s, and the function of withLock runs in its own', async () => {
    instrument({ metrics: false })
    await using lock = new DistributedLock({ driver: memoryDriver(), holderId: 'me' })
    await tracer.startActiveSpan('request', async (request) => {
      await lock.withLock('order:1', () => tracer.startSpan('inside').end())
      request.end()
    })
    const [request, acquire, locked, inside] = ['request', 'acquire order:{id}', 'locked order:{id}', 'inside'].map(
      (name) => named(name)[0] as ReadableSpan,
    )
    expect(acquire?.parentSpanContext?.spanId).toBe(request?.spanContext().spanId)
    expect(locked?.parentSpanContext?.spanId).toBe(request?.spanContext().spanId)
    expect(inside?.parentSpanContext?.spanId).toBe(locked?.spanContext().spanId)
    const { 'holdfast.fencing_token': token, ...attributes } = acquire?.attributes ?? {}
    expect(token).toBe(locked?.attributes['holdfast.fencing_token'])
    expect(attributes).toEqual({
      'holdfast.lock.template': 'order:{id}',
      'holdfast.lock.name': 'order:1',
      'holdfast.holder.id': 'me',
      'holdfast.outcome': 'acquired',
      'holdfast.waited': false,
    })
  })

  it('of a waiter links to the function that holds the lock, although it has ended by then', async () => {
    instrument({ metrics: false })
    const store = createMemoryStore()
    await using holder = new DistributedLock({ driver: memoryDriver({ store }), holderId: 'holder' })
    await using waiter = new DistributedLock({ driver: memoryDriver({ store }), holderId: 'waiter' })
    const [begun, waits] = [gate(), gate()]
    const first = holder.withLock('order:1', async () => {
      begun.open()
      await waits.opened
    })
    await begun.opened
    waiter.on('waiting', () => waits.open())
    await waiter.withLock('order:1', () => {}, { blocking: true })
    await first
    const [held] = named('locked order:{id}')
    const waited = named('acquire order:{id}').find((span) => span.attributes['holdfast.waited'] === true)
    expect(waited?.links.map(({ context }) => context.spanId)).toEqual([held?.spanContext().spanId])
    expect(waited?.attributes).toMatchObject({
      'holdfast.holder.id': 'waiter',
      'holdfast.blocker.holder.id': 'holder',
      'holdfast.blocker.fencing_token': held?.attributes['holdfast.fencing_token'],
      'holdfast.waiters.ahead': 0,
    })
  })

  it('of a claim that is refused links to the holder’s span in another process, if its metadata has it', async () => {
    const store = createMemoryStore()
    await using far = new DistributedLock({ driver: memoryDriver({ store }) })
    let [spanId, bad] = ['', 0]
    await tracer.startActiveSpan('far away', async (span) => {
      spanId = span.spanContext().spanId
      // Not instrumented: as if it were another process.
      await far.acquire('order:1', { metadata: { ...traceMetadata(api), job: 'nightly' } })
      span.end()
    })
    for (const traceparent of [
      '',
      '00-0-0-00',
      `00-${'0'.repeat(32)}-${'1'.repeat(16)}-01`,
      7,
      `${'x'.repeat(9_000)}`,
    ]) {
      await far.acquire(`bad:${bad++}`, { metadata: { traceparent } })
    }
    instrument({ metrics: false })
    await using lock = new DistributedLock({ driver: memoryDriver({ store }) })
    await lock.acquire('order:1')
    for (let each = 0; each < bad; each += 1) await lock.acquire(`bad:${each}`)
    const [refused] = named('acquire order:{id}')
    expect(refused?.attributes['holdfast.outcome']).toBe('refused')
    expect(refused?.links.map(({ context }) => context)).toMatchObject([{ spanId, isRemote: true }])
    expect(named('acquire').map(({ links }) => links.length)).toEqual([0, 0, 0, 0, 0])
    expect(traceMetadata(api)).toEqual({})
  })

  it('say why a claim ended, and mark outages and not aborts as errors', async () => {
    instrument({ metrics: false })
    const store = createMemoryStore()
    await using lock = new DistributedLock({ driver: memoryDriver({ store }) })
    await lock.hold('order:1')
    const abort = new AbortController()
    const waiting = rejectionOf(() => lock.hold('order:1', { blocking: true, signal: abort.signal }))
    abort.abort()
    await waiting
    const driver = memoryDriver({ store })
    await using broken = new DistributedLock({ driver: { ...driver, acquire: () => Promise.reject(new Error('cut')) } })
    await rejectionOf(() => broken.acquire('order:2'))
    const [aborted, failed] = named('acquire order:{id}').slice(1)
    expect([aborted?.attributes['error.type'], aborted?.status.code]).toEqual(['ABORTED', api.SpanStatusCode.UNSET])
    expect(failed?.attributes['error.type']).toBe('STORE_UNAVAILABLE')
    expect(failed?.status).toMatchObject({ code: api.SpanStatusCode.ERROR, message: expect.stringContaining('cut') })
  })

  it('of a function show its error, and that its lease was lost', async () => {
    instrument({ metrics: false })
    const store = createMemoryStore()
    await using lock = new DistributedLock({ driver: memoryDriver({ store }) })
    await rejectionOf(() => lock.withLock('order:1', () => Promise.reject(new TypeError('mine'))))
    const lost = await rejectionOf(() => lock.withLock('order:2', () => lock.forceRelease('order:2', { by: 'test' })))
    expect(lost).toBeInstanceOf(LeaseLostError)
    const [failed, ended] = named('locked order:{id}')
    expect(failed?.attributes['error.type']).toBe('TypeError')
    expect(failed?.events.map(({ name }) => name)).toEqual(['exception'])
    expect(ended?.events.map(({ name, attributes }) => [name, attributes?.['holdfast.reason']])).toEqual([
      ['holdfast.lease.lost', 'force-released'],
    ])
  })

  it('contain neither a lock name nor a message with `lockNames: false`', async () => {
    instrument({ metrics: false, lockNames: false })
    await using lock = new DistributedLock({ driver: memoryDriver() })
    await rejectionOf(() =>
      lock.withLock('order:SECRET', async () => {
        await lock.withLock('order:SECRET-2', () => Promise.reject(new Error('SECRET')))
      }),
    )
    await rejectionOf(() => lock.hold('order:SECRET', { signal: AbortSignal.abort() }))
    const shown = spans
      .getFinishedSpans()
      .map(({ name, attributes, events, status, links }) => ({ name, attributes, events, status, links }))
    expect(shown).toHaveLength(4)
    expect(JSON.stringify(shown)).not.toContain('SECRET')
  })

  it.each(['onStart', 'onEnd'] as const)(
    'do not fail a function when %s of a span processor throws',
    async (broken) => {
      const warn = vi.spyOn(process, 'emitWarning').mockImplementation(() => {})
      const processor = { onStart() {}, onEnd() {}, forceFlush: async () => {}, shutdown: async () => {} }
      const throws = { ...processor, [broken]: () => fail('in a span processor') }
      const provider = new BasicTracerProvider({ spanProcessors: [throws] })
      const trace = { ...unbound(api.trace), getTracer: (name: string) => provider.getTracer(name) }
      ended.push(openTelemetry({ api: { ...api, trace }, metrics: false }))
      await using lock = new DistributedLock({ driver: memoryDriver() })
      const results = [
        await lock.withLock('a', (lease) => lease.held),
        await rejectionOf(() => lock.withLock('a', () => fail('mine'))),
      ]
      const warnings = warn.mock.calls.length
      vi.restoreAllMocks()
      expect(results).toEqual([true, expect.objectContaining({ message: 'mine' })])
      expect(warnings).toBe(4)
    },
  )

  it.each(Object.entries(unreadableValues()))(
    'end when the function throws what cannot be read (%s), and the caller gets it unchanged',
    async (_, thrown) => {
      vi.spyOn(process, 'emitWarning').mockImplementation(() => {})
      instrument()
      await using lock = new DistributedLock({ driver: memoryDriver() })
      const isThrown = (error: unknown): boolean => error === thrown
      const caught = lock.withLock('order:1', () => Promise.reject(thrown)).catch(isThrown)
      expect(await caught).toBe(true)
      vi.restoreAllMocks()
      expect(named('locked order:{id}')).toMatchObject([{ status: { code: api.SpanStatusCode.ERROR } }])
    },
  )

  it('end with close, and functions then run without one', async () => {
    instrument()
    for (const each of ended.splice(0)) each.close()
    await using lock = new DistributedLock({ driver: memoryDriver() })
    expect(await lock.withLock('order:1', (lease) => lease.held)).toBe(true)
    expect(spans.getFinishedSpans()).toEqual([])
  })

  it('leave re-entry as it is: the function runs inside its lock, and the same name is entered again', async () => {
    instrument()
    await using lock = new DistributedLock({ driver: memoryDriver() })
    const both = lock.withLocks(['order:1', 'order:2'], async () => {
      await lock.withLock('order:1', () => {})
      return lock.release('order:2')
    })
    expect(await both).toBe(true)
    expect(named('locked order:{id}')).toHaveLength(2)
  })
})

it.each([[{}], [{ api: {} }], [{ api, spans: 1 }], [{ api, template: [] }], [{ api, templates: [''] }]])(
  'openTelemetry refuses the options %#',
  (options) => {
    expect(() => openTelemetry(options as never)).toThrow(InvalidArgumentError)
  },
)
