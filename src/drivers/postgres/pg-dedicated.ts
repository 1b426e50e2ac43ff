import { systemClock } from '../../core/time/clock.ts'
import { settlesWithin } from '../../core/time/timeout.ts'
import type { DedicatedConnection, DedicatedEvents } from './connections.ts'
import { QUERY_MS, query, queueOf } from './pg-query.ts'
import type { PgClient, PgNotification, WithSocket } from './pg-types.ts'

/** A client of pg as a connection that nothing else uses. `close` ends it, or gives it back to the caller. */
export function dedicatedConnection(
  client: PgClient,
  events: DedicatedEvents,
  close: () => Promise<void>,
  isCallers = false,
): DedicatedConnection {
  let ended = false
  const onEnd = (cause: Error): void => {
    if (ended) return
    stop()
    events.onEnd(cause)
  }
  const onError = (error: Error): void => onEnd(error)
  const onClosed = (): void => onEnd(new Error('the server closed the connection'))
  const onNotification = ({ channel, payload = '' }: PgNotification): void => events.onNotification?.(channel, payload)
  const stop = (): void => {
    ended = true
    client.removeListener('notification', onNotification)
    client.removeListener('error', onError)
    client.removeListener('end', onClosed)
  }
  client.on('error', onError)
  client.on('end', onClosed)
  client.on('notification', onNotification)
  const inTurn = queueOf(client)
  return {
    query: (text, values, timeoutMs = QUERY_MS) => inTurn(() => query(client, text, values, { timeoutMs })),
    async script(text) {
      await inTurn(() => client.query({ text, query_timeout: SCRIPT_MS }))
    },
    get serverPid() {
      const { processID } = client as { processID?: number | null }
      return processID ? String(processID) : undefined
    },
    isCallers,
    keepAlive(wanted) {
      if (isCallers) return
      const { connection } = client as WithSocket
      if (wanted) connection?.stream?.ref?.()
      else connection?.stream?.unref?.()
    },
    async end() {
      if (ended) return
      stop()
      await close()
    },
  }
}

const SCRIPT_MS = 120_000

/**
 * Ends a client or a pool. A server that does not answer does not confirm the end either, and the sockets would keep
 * the process alive. So they are destroyed after a while.
 */
export async function endOrDestroy(what: { end(): Promise<void> }, clients: () => Iterable<WithSocket>): Promise<void> {
  const ending = what.end()
  if (await settlesWithin(systemClock, END_MS, ending)) return
  for (const { connection } of clients()) connection?.stream?.destroy?.()
  await ending
}

const END_MS = 1_000
