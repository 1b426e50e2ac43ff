import { warnOfFault } from '../../core/call-listener.ts'
import { HoldfastError } from '../../core/errors.ts'
import type { LockEvents } from '../../core/events.ts'
import { attempt, isA, messageOf } from '../../core/foreign-errors.ts'
import type { LockInfo } from '../../core/lock-info.ts'
import { type Instant, systemClock } from '../../core/time/clock.ts'
import { type Handlers, listen } from '../listen.ts'
import { OTHER, templateFinder } from '../templates.ts'
import type {
  OpenTelemetryApi,
  OpenTelemetryAttributes,
  OpenTelemetryContext,
  OpenTelemetrySpan,
  OpenTelemetrySpanContext,
  OpenTelemetryTracer,
} from './api.ts'
import { LeaseSpans } from './links.ts'

export interface SpanParts {
  readonly api: Pick<OpenTelemetryApi, 'trace' | 'context'>
  readonly tracer: OpenTelemetryTracer
  readonly templates?: unknown
  readonly instances?: unknown
  /** Whether spans show lock names, and messages of errors, which contain them. */
  readonly lockNames: boolean
}

/**
 * A span for each claim, and one for each function that runs under a lease. Returns a function that ends it.
 *
 * @throws `InvalidArgumentError`
 */
export function traceSpans(parts: SpanParts): () => void {
  const claims = new Map<string, OpenClaim>()
  const leases = new LeaseSpans()
  const stop = listen(handlersFor(parts, claims, leases), parts.instances)
  return () => {
    stop()
    claims.clear()
    leases.clear()
  }
}

/**
 * A claim that has not ended. Its span is created when it ends, with the times and the parent of its beginning: so a
 * sampler sees all attributes and links.
 */
interface OpenClaim {
  readonly context: OpenTelemetryContext
  readonly started: Instant
  waits: boolean
  /** One of the leases that it waits for, or was refused for, and that lease's span, if it is known. */
  blocker?: LockInfo | undefined
  blocking?: { readonly spanContext: OpenTelemetrySpanContext } | undefined
  ahead?: number | undefined
}

function handlersFor(parts: SpanParts, claims: Map<string, OpenClaim>, leases: LeaseSpans): Handlers {
  const { api, tracer, lockNames } = parts
  const templateOf = templateFinder(parts.templates)

  const nameOf = (verb: string, template: string): string => (template === OTHER ? verb : `${verb} ${template}`)
  const base = (template: string, { lockName, holderId }: { lockName: string; holderId: string }) => ({
    'holdfast.lock.template': template,
    ...(lockNames && { 'holdfast.lock.name': lockName }),
    'holdfast.holder.id': holderId,
  })

  function endClaim(
    event: Ended,
    outcome: string,
    more: OpenTelemetryAttributes,
    finish: (span: OpenTelemetrySpan) => void = () => {},
  ): void {
    const claim = claims.get(event.claimId)
    if (claim === undefined) return
    claims.delete(event.claimId)
    const template = templateOf(event.lockName)
    const { blocker, blocking, ahead, started, waits } = claim
    const attributes: OpenTelemetryAttributes = {
      ...base(template, event),
      'holdfast.outcome': outcome,
      'holdfast.waited': waits,
      ...(ahead !== undefined && { 'holdfast.waiters.ahead': ahead }),
      ...(blocker && {
        'holdfast.blocker.holder.id': blocker.holderId,
        'holdfast.blocker.fencing_token': blocker.fencingToken,
      }),
      ...more,
    }
    const links = blocking && [{ context: blocking.spanContext, attributes: { 'holdfast.link': 'blocker' } }]
    const options = { startTime: started.wallMs, attributes, ...(links && { links }) }
    const span = tracer.startSpan(nameOf('acquire', template), options, claim.context)
    finish(span)
    // On the monotonic clock, so that a step of the wall clock makes no span of hours.
    span.end(started.wallMs + systemClock.now().monotonicMs - started.monotonicMs)
  }

  /** A fault of the tracer, or of a span processor, must not become one of the function. */
  function runInSpan<T>(event: LockEvents['running'], run: () => Promise<T>): Promise<T> {
    const begun = quietly(() => beginLocked(event))
    if (begun === undefined) return run()
    const { span, context } = begun
    return api.context.with(context, run).then(
      (result) => {
        quietly(() => span.end())
        return result
      },
      (error: unknown) => {
        quietly(() => {
          fail(span, error)
          if (lockNames && isA(error, Error)) span.recordException(error)
        })
        quietly(() => span.end())
        throw error
      },
    )
  }

  function beginLocked(event: LockEvents['running']): { span: OpenTelemetrySpan; context: OpenTelemetryContext } {
    const template = templateOf(event.lockName)
    const active = api.context.active()
    const attributes = { ...base(template, event), 'holdfast.fencing_token': event.fencingToken }
    const span = tracer.startSpan(nameOf('locked', template), { attributes }, active)
    const lease = leases.get(event.claimId)
    if (lease !== undefined) Object.assign(lease, { spanContext: span.spanContext(), running: span })
    return { span, context: api.trace.setSpan(active, span) }
  }

  function fail(span: OpenTelemetrySpan, error: unknown): void {
    span.setAttribute('error.type', errorType(error))
    const message = lockNames && isA(error, Error) ? messageOf(error) : undefined
    span.setStatus({ code: ERROR, ...(message !== undefined && { message }) })
  }

  return {
    requested: ({ claimId }) =>
      void claims.set(claimId, { context: api.context.active(), started: systemClock.now(), waits: false }),
    waiting({ claimId, holder, ahead }) {
      const claim = claims.get(claimId)
      // Looked up now: when the wait is over, that lease has ended.
      const blocking = holder && leases.spanOf(holder)
      if (claim !== undefined) Object.assign(claim, { waits: true, blocker: holder, blocking, ahead })
    },
    acquired: (event) =>
      endClaim(event, 'acquired', { 'holdfast.fencing_token': event.fencingToken }, (span) =>
        leases.add(event.claimId, { ...event, spanContext: span.spanContext() }),
      ),
    refused(event) {
      const { holder: blocker } = event
      const claim = claims.get(event.claimId)
      if (claim !== undefined && claim.blocker === undefined && blocker !== undefined) {
        Object.assign(claim, { blocker, blocking: leases.spanOf(blocker) })
      }
      endClaim(event, 'refused', {})
    },
    acquireFailed: (event) =>
      endClaim(event, 'failed', { 'error.type': errorType(event.error) }, (span) => {
        if (!ENDED_BY_CALLER.has(errorType(event.error))) fail(span, event.error)
      }),
    running: (event) => event.wrap((run) => runInSpan(event, run)),
    lost({ claimId, reason, error }) {
      const message = lockNames ? { 'exception.message': error.message } : {}
      leases.get(claimId)?.running?.addEvent('holdfast.lease.lost', { 'holdfast.reason': reason, ...message })
      leases.remove(claimId)
    },
    released: ({ claimId }) => leases.remove(claimId),
    handedOver: ({ claimId }) => leases.remove(claimId),
    releaseFailed: ({ claimId }) => leases.remove(claimId),
  }
}

function quietly<T>(call: () => T): T | undefined {
  try {
    return call()
  } catch (error) {
    warnOfFault('OpenTelemetry', error)
    return undefined
  }
}

type Ended = { readonly lockName: string; readonly holderId: string; readonly claimId: string }

const errorType = (error: unknown): string => {
  if (isA(error, HoldfastError)) return error.code
  const name = isA(error, Error) ? attempt(() => error.name) : typeof error
  return typeof name === 'string' ? name : 'Error'
}

/** The caller wanted this end, so it is no error of the claim. */
const ENDED_BY_CALLER = new Set(['ABORTED', 'CLOSED'])

/** `SpanStatusCode.ERROR` */
const ERROR = 2
