import { checkMethods } from '../core/arguments.ts'
import { InvalidArgumentError } from '../core/errors.ts'
import { checkOptions, optionNames } from '../core/options.ts'
import type { CloseOptions } from '../primitives/instance.ts'
import { type ClosableInstance, closingOf } from './closing.ts'
import type { HealthTarget } from './health.ts'
import { healthHandler } from './http.ts'

export interface HoldfastFastifyOptions {
  /** The lock, such as a `DistributedLock`. Routes find it as `app.holdfast`. It is closed with the server. */
  lock: HealthTarget & ClosableInstance
  /**
   * How the lock is closed. Requests that run, and other work under a lease, have `drainSeconds` to end.
   *
   * @default 10 for `drainSeconds`, 5 for `deadlineSeconds`
   */
  close?: CloseOptions
  /**
   * Where `GET` answers whether the store works: see `healthHandler` of `holdfast/http`.
   *
   * @default no route
   */
  healthPath?: string
  /** What `metricsPath` returns, such as `prometheusMetrics()` of `holdfast/prometheus`. */
  metrics?: MetricsText
  /**
   * Where `GET` returns the metrics.
   *
   * @default `/metrics` with `metrics`, otherwise no route
   */
  metricsPath?: string
}

/** Metrics as text, and what kind of text it is. */
export interface MetricsText {
  readonly contentType: string
  text(): string
}

/** The members of a Fastify instance that are used. */
export interface FastifyLike {
  readonly server: object
  decorate(name: string, value: unknown): unknown
  addHook(name: 'preClose' | 'onClose', hook: () => Promise<void>): unknown
  get(path: string, handler: (request: unknown, reply: FastifyReplyLike) => Promise<string>): unknown
}

/** The members of a reply of Fastify that are used. */
export interface FastifyReplyLike {
  code(status: number): FastifyReplyLike
  headers(values: Record<string, string>): FastifyReplyLike
}

const OPTIONS = optionNames<HoldfastFastifyOptions>({
  lock: true,
  close: true,
  healthPath: true,
  metrics: true,
  metricsPath: true,
})

/**
 * A plugin for Fastify 5: the lock as `app.holdfast`, closed with the server, and pages for health and metrics if their
 * paths are given. `app.close()` stops taking requests, lets those that run end, and then closes the lock. A request
 * that runs for longer than `drainSeconds` sees the `signal` of its lease abort.
 *
 * The plugin is not encapsulated: it applies to the instance on which it is registered, and `prefix` is refused.
 * Fastify closes plugins in the reverse of their order. Register this one after the pools that locked work uses.
 *
 * @throws `InvalidArgumentError`
 *
 * @example
 * ```ts
 * await app.register(holdfastFastify, { lock, healthPath: '/healthz' })
 * app.post('/orders/:id/ship', ({ params }) => app.holdfast.withLock(`order:${params.id}`, () => ship(params.id)))
 * ```
 */
export async function holdfastFastify(app: FastifyLike, options: HoldfastFastifyOptions): Promise<void> {
  const { lock, close, healthPath, metrics, metricsPath = '/metrics' } = checkOptions(options, OPTIONS)
  checkMethods('lock', lock, ['ping', 'close'], 'a DistributedLock')
  if (metrics !== undefined) checkMethods('metrics', metrics, ['text'], 'metrics with text() and contentType')
  else if (options.metricsPath !== undefined)
    throw new InvalidArgumentError('metricsPath', metricsPath, 'left out without metrics')
  const closing = closingOf([lock], close, app.server)

  app.decorate('holdfast', lock)
  // Before the server stops, and after its last response.
  app.addHook('preClose', async () => closing.begin())
  app.addHook('onClose', () => {
    closing.served()
    return closing.done()
  })
  // Both return text: Fastify also answers HEAD with a route for GET, but not if that returns a `Response`.
  if (healthPath !== undefined) {
    const health = healthHandler(lock)
    app.get(healthPath, async (_, reply) => {
      const response = await health()
      reply.code(response.status).headers(Object.fromEntries(response.headers))
      return response.text()
    })
  }
  if (metrics !== undefined) {
    app.get(metricsPath, async (_, reply) => {
      reply.headers({ 'content-type': metrics.contentType })
      return metrics.text()
    })
  }
}

// What the package fastify-plugin sets: without it, only routes registered inside the plugin would find the lock.
Object.assign(holdfastFastify, {
  [Symbol.for('skip-override')]: true,
  [Symbol.for('fastify.display-name')]: 'holdfast',
  [Symbol.for('plugin-meta')]: { name: 'holdfast', fastify: '5.x' },
})
