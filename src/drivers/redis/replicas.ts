import type { RenewAnswer, Renewal } from '../../core/driver.ts'
import { StoreError } from '../../core/errors.ts'
import { inTime, isNoScript } from './errors.ts'
import { renewArgs } from './format.ts'
import type { runScript } from './scripts.ts'
import { type Chunk, type ListParts, runLeases } from './send-batch.ts'

export interface ReplicaWait {
  /** How many replicas must have confirmed a grant or a renewal. */
  readonly count: number
  readonly timeoutMs: number
}

/**
 * Renews, and waits until enough replicas have it. `renewed` is answered only for what they have confirmed. With too
 * few, it is not known how long the lease lasts, because a failover may set its end back.
 *
 * WAIT speaks of what its own connection has written. Over another one, to a replica that was promoted meanwhile, it is
 * answered at once and says nothing of this lease. So both go over one connection; if that ends in between, none of it
 * counts.
 */
export async function renewOnReplicas(
  parts: ListParts,
  { count, timeoutMs }: ReplicaWait,
  chunk: Chunk<Renewal>,
): Promise<(RenewAnswer | Error)[]> {
  let seen = 0
  const run: typeof runScript = async (connection, { text, sha }, [, , ...keysAndArgs]) => {
    const send = async (command: string, script: string): Promise<unknown> => {
      const wait = ['WAIT', `${count}`, `${timeoutMs}`]
      const [reply, confirmed] = (await connection.together?.([[command, script, ...keysAndArgs], wait])) ?? []
      seen = Number(confirmed)
      return reply
    }
    return send('EVALSHA', sha).catch((error: unknown) => {
      if (isNoScript(error)) return send('EVAL', text)
      connection.master?.failed(error)
      throw error
    })
  }
  const renew = () => runLeases(parts, 'renew', chunk, renewArgs(chunk.requests), undefined, run)
  const [, ...replies] = await inTime('wait for replicas', timeoutMs + parts.timeoutMs, renew, parts.connection)
  return replies.map((reply) => {
    if (Number(reply) !== 1) return 'lost'
    if (seen >= count) return 'renewed'
    return new StoreError(`${seen} of ${count} replicas confirmed the lease within ${timeoutMs} ms: it does not count`)
  })
}
