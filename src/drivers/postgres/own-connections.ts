import { messageOf } from '../../core/foreign-errors.ts'
import { systemClock } from '../../core/time/clock.ts'
import { connectionTrouble } from '../shared/connection-trouble.ts'
import type { PostgresConnections } from './connections.ts'
import { sqlState } from './errors.ts'

/**
 * Beside a client of the caller: renewals and releases are sent on connections of our own. The application may have
 * used up its pool, or may have begun a transaction on its one connection, for longer than a lease lasts.
 *
 * A release soon after another answer takes a free connection of the caller's pool, most likely that of its claim. Two
 * connections in turn would cost a short lock 1.5 times as much: each time another process of the server has to wake.
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
  let answeredMs = Number.NEGATIVE_INFINITY

  const call: PostgresConnections['call'] = async (text, values) => {
    const rows = await callers.call(text, values)
    answeredMs = now()
    return rows
  }
  const renew: PostgresConnections['renew'] = async (text, values) => {
    const nowMs = now()
    if (nowMs < nextTryMs) return call(text, values)
    opened ??= open()
    const own = await opened.catch((error: unknown) => new Refused(error))
    const answer = own instanceof Refused ? own : await own.call(text, values).catch(refusalIn)
    if (!(answer instanceof Refused)) return answer
    const rows = await call(text, values)
    // Only here: if the server is down, both are refused.
    nextTryMs = nowMs + PAUSE_MS
    if (!hasWarned) warn(answer.reason)
    hasWarned = true
    return rows
  }
  return {
    ...callers,
    call,
    renew,
    async release(text, values) {
      if (!callers.isFree?.() || now() > answeredMs + FRESH_MS) return renew(text, values)
      try {
        return await call(text, values)
      } catch (error) {
        // The application gave it back to its pool with a transaction open. Nothing was done.
        if (sqlState(error) !== '2D000' && sqlState(error) !== '25P02') throw error
        return renew(text, values)
      }
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

const now = (): number => systemClock.now().monotonicMs

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
/** A connection that has answered so recently is not half-open. */
const FRESH_MS = 1_000
