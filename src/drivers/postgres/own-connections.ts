import { messageOf } from '../../core/foreign-errors.ts'
import { systemClock } from '../../core/time/clock.ts'
import { connectionTrouble } from '../shared/connection-trouble.ts'
import type { PostgresConnections } from './connections.ts'
import { sqlState } from './errors.ts'

/**
 * Beside a client of the caller: what keeps or ends a lease is sent on connections of our own. The application may have
 * used up its pool, or may have begun a transaction on its one connection, for longer than a lease lasts.
 *
 * `open` uses the settings of the caller's client. It connects when the first lease is renewed or released. While our
 * connection is refused, for example because the server has none left, the caller's client is used.
 */
export function besideCallers(
  callers: PostgresConnections,
  open: () => Promise<PostgresConnections>,
): PostgresConnections {
  let opened: Promise<PostgresConnections> | undefined
  let nextTryMs = 0
  let hasWarned = false
  return {
    ...callers,
    async keep(text, values) {
      const nowMs = systemClock.now().monotonicMs
      if (nowMs < nextTryMs) return callers.keep(text, values)
      opened ??= open()
      const own = await opened.catch((error: unknown) => new Refused(error))
      const answer = own instanceof Refused ? own : await own.call(text, values).catch(refusalIn)
      if (!(answer instanceof Refused)) return answer
      const rows = await callers.keep(text, values)
      // Only here: if the server is down, both are refused.
      nextTryMs = nowMs + PAUSE_MS
      if (!hasWarned) warn(answer.reason)
      hasWarned = true
      return rows
    },
    async close() {
      await opened?.then(
        (own) => own.close(),
        () => {}, // It was never open.
      )
      await callers.close()
    },
  }
}

class Refused {
  constructor(readonly reason: unknown) {}
}

/** Rethrows what is no refusal. A refused connection, or role, has done nothing, and the caller's may be accepted. */
function refusalIn(error: unknown): Refused {
  const state = sqlState(error)
  const trouble = state === undefined ? connectionTrouble(error) : undefined
  const isRefused = trouble !== undefined && trouble.kind !== 'closed'
  if (isRefused || state === '42501' || ['28', '3D', '53'].includes(state?.slice(0, 2) ?? '')) return new Refused(error)
  throw error
}

function warn(reason: unknown): void {
  const message =
    'holdfast could not open a connection beside the client that the postgres driver was given ' +
    `(${messageOf(reason)}). Leases are renewed with that client, and are lost if it has no free connection, or is ` +
    'in a transaction, for too long. Give the driver a URL, or let the server accept two more connections'
  process.emitWarning(message, { type: 'HoldfastWarning', code: 'HOLDFAST_POSTGRES_NO_OWN_CONNECTION' })
}

const PAUSE_MS = 10_000
