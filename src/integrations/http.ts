import { checkMethods } from '../core/arguments.ts'
import { isArray } from '../core/options.ts'
import { settlesWithin } from '../core/time/abort.ts'
import { systemClock } from '../core/time/clock.ts'
import type { CloseOptions } from '../primitives/instance.ts'
import { type ClosableInstance, closingOf } from './closing.ts'
import { type HealthOptions, type HealthTarget, healthCheck } from './health.ts'

export { type NodeHandler, type NodeRequest, type NodeResponse, toNodeHandler } from '../dashboard/node-handler.ts'
export type { ClosableInstance } from './closing.ts'
export type { HealthOptions, HealthReport, HealthTarget } from './health.ts'

/**
 * A handler for a health page, for frameworks with `(request) => response`; `toNodeHandler` adapts it to Express. It
 * answers 200 with `{"status":"up"}`, or 503 with `{"status":"down","code":…,"reason":…}` if the store does not work or
 * the instance is closing. It ignores the request. `reason` contains no password, but it names the store's host.
 *
 * Use it for readiness. A process should not be restarted because its store is down.
 *
 * @throws `InvalidArgumentError`. The handler itself never rejects
 *
 * @example
 * ```ts
 * const health = healthHandler(lock)
 * app.get('/healthz', () => health()) // Hono
 * app.get('/healthz', toNodeHandler(health)) // Express
 * ```
 */
export function healthHandler(lock: HealthTarget, options: HealthOptions = {}): () => Promise<Response> {
  const check = healthCheck(lock, options)
  return async () => {
    const report = await check()
    const headers = { 'cache-control': 'no-store', 'content-type': 'application/json' }
    return new Response(JSON.stringify(report), { status: report.status === 'up' ? 200 : 503, headers })
  }
}

/** The members of a server of node:http that are used. */
export interface ServerLike {
  close(callback: (error?: Error) => void): unknown
  closeIdleConnections?(): void
  closeAllConnections?(): void
}

/**
 * Shuts a server down in the order that loses no work, for Express, Hono and others on a server of node:http:
 *
 * 1. The server accepts no more connections, and closes those that are idle.
 * 2. Requests that run may end, and may still take locks, for up to `drainSeconds`.
 * 3. The instances are closed with what is left of `drainSeconds`, so that other work under a lease may end, too. Then
 *    the signals of leases abort, and everything is released, within `deadlineSeconds`. See `CloseOptions`.
 * 4. Half a second later, connections that are still open are destroyed, except those that are no longer HTTP/1, such
 *    as WebSockets. Close these yourself: Node does not exit before.
 *
 * So it takes at most `drainSeconds`, `deadlineSeconds` and a second. Here `drainSeconds` is 10 by default.
 *
 * @throws `InvalidArgumentError`, before anything is stopped
 * @throws what closing an instance throws, after all has been stopped
 *
 * @example
 * ```ts
 * process.once('SIGTERM', () => shutDown(server, lock, { drainSeconds: 10 }))
 * ```
 */
export async function shutDown(
  server: ServerLike,
  instances: ClosableInstance | readonly ClosableInstance[],
  options: CloseOptions = {},
): Promise<void> {
  checkMethods('server', server, ['close'], 'a server of node:http')
  const closing = closingOf(isArray(instances) ? instances : [instances as ClosableInstance], options, server)
  closing.begin()
  const stopped = new Promise<void>((resolve) => {
    // It fails if the server does not listen, which is what is wanted.
    server.close(() => resolve())
  }).then(() => closing.served())
  try {
    await closing.done()
  } finally {
    // Requests whose lease was lost may still say so.
    if (!(await settlesWithin(systemClock, LAST_RESPONSES_MS, stopped))) {
      server.closeAllConnections?.()
      // Bounded: it does not know a WebSocket, HTTP/2 does not have it, and such a client may stay as long as it likes.
      await settlesWithin(systemClock, LAST_RESPONSES_MS, stopped)
    }
    closing.served()
  }
}

const LAST_RESPONSES_MS = 500
