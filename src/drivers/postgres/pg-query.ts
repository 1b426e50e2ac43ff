import { createHash } from 'node:crypto'
import type { PostgresConnections, Row } from './connections.ts'
import { sqlState } from './errors.ts'
import type { PgClient } from './pg-types.ts'
import { createSerialQueue, type SerialQueue } from './serial-queue.ts'

/** A half-open connection neither answers nor fails. After this time its query fails, and a pool drops it. */
export const QUERY_MS = 10_000

export async function query(
  client: Pick<PgClient, 'query'>,
  text: string,
  values: readonly (string | null)[] | undefined,
  { timeoutMs = QUERY_MS, name }: { timeoutMs?: number; name?: string } = {},
): Promise<readonly Row[]> {
  const config = { text, query_timeout: timeoutMs, ...(values && { values: [...values] }), ...(name && { name }) }
  const { rows } = await client.query(config)
  return rows as readonly Row[]
}

/**
 * Named statements are parsed and planned once for each connection. Behind a pooler in transaction mode, the next
 * transaction may get a connection that does not have the statement, or has it already. Then nothing was done. The
 * statement is sent again without a name, and so is every later one.
 */
export function queryPrepared(client: Pick<PgClient, 'query'>): PostgresConnections['query'] {
  let prepares = true
  return async (text, values) => {
    if (!prepares) return query(client, text, values)
    try {
      return await query(client, text, values, { name: statementName(text) })
    } catch (error) {
      if (!['26000', '42P05'].includes(sqlState(error) ?? '')) throw error
      prepares = false
      return query(client, text, values)
    }
  }
}

/** A hash of the text, so that two statements never have the same name, even if the application uses the connection. */
export function statementName(text: string): string {
  const known = names.get(text)
  if (known !== undefined) return known
  const name = `holdfast_${createHash('sha256').update(text).digest('hex').slice(0, 24)}`
  names.set(text, name)
  return name
}

const names = new Map<string, string>()

/**
 * pg warns about a query on a client that is busy, and will refuse it in a later version. So each client has one queue,
 * however many drivers use it.
 */
export function queueOf(client: PgClient): SerialQueue {
  const queue = queues.get(client) ?? createSerialQueue()
  queues.set(client, queue)
  return queue
}

const queues = new WeakMap<PgClient, SerialQueue>()
