// Traces of two tasks that want one lock: the span of the second links to the work that it waited for.
import * as api from '@opentelemetry/api'
import { AsyncLocalStorageContextManager } from '@opentelemetry/context-async-hooks'
import { BasicTracerProvider, InMemorySpanExporter, SimpleSpanProcessor } from '@opentelemetry/sdk-trace-base'
import { DistributedLock } from 'holdfast'
import { openTelemetry } from 'holdfast/opentelemetry'

// Your own set-up. Here spans stay in memory, to be printed.
const exporter = new InMemorySpanExporter()
api.context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable())
api.trace.setGlobalTracerProvider(new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] }))
const tracer = api.trace.getTracer('example')

const telemetry = openTelemetry({ api, templates: ['order:{id}'] })
const lock = new DistributedLock({ url: 'memory:' })

const waits = new Promise<void>((resolve) => lock.on('waiting', () => resolve()))
const task = (name: string, work: () => Promise<void>): Promise<void> =>
  tracer.startActiveSpan(name, async (span) => {
    await lock.withLock('order:1', work, { blocking: true })
    span.end()
  })
await Promise.all([task('ship', () => waits), task('invoice', async () => {})])
await lock.close()
telemetry.close()

const spans = exporter.getFinishedSpans()
const nameOf = (spanId: string | undefined): string | undefined =>
  spans.find((span) => span.spanContext().spanId === spanId)?.name
for (const { name, parentSpanContext, links } of spans) {
  const parent = nameOf(parentSpanContext?.spanId)
  const waitedFor = links.map(({ context }) => `, waited for ${nameOf(context.spanId)}`).join('')
  console.log(`${parent === undefined ? '' : `${parent} > `}${name}${waitedFor}`)
}
