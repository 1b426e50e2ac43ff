import type { AcquireAnswer, Claim, Grant, RenewAnswer, Renewal } from '../../core/driver.ts'
import { StoreError } from '../../core/errors.ts'
import { failTogether } from '../shared/groups.ts'
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
 * Renews, and waits until enough replicas have confirmed it. Only then is the answer `renewed`. With too few, it is
 * unknown how long the lease lasts, because a failover may set its end back.
 *
 * WAIT covers what its own connection has written. Over another connection, to a replica that was promoted meanwhile,
 * it is answered at once and says nothing about this lease. So both commands go over one connection. If that ends in
 * between, neither counts.
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

/**
 * A grant counts when enough replicas have confirmed it. Otherwise a failover at this moment would forget it. For that
 * it is renewed, over the connection that WAIT then covers. A renewal never re-creates a lease that was lost meanwhile.
 *
 * A grant that is not confirmed stays in the store, and its claim fails. The caller asks again or withdraws the claim.
 * A release from here could arrive after the same claim has asked again, and end the new lease.
 */
export async function confirmGrants(
  parts: ListParts,
  replicas: ReplicaWait,
  { requests, slot }: Chunk<Claim>,
  answers: readonly (AcquireAnswer | Error)[],
): Promise<readonly (AcquireAnswer | Error)[]> {
  const renewals: Renewal[] = []
  requests.forEach(({ lockName, claimId, ttlMs }, index) => {
    const answer = answers[index]
    if (!isGrant(answer)) return
    renewals.push({ lockName, claimId, ttlMs, fencingToken: answer.fencingToken })
  })
  if (renewals.length === 0) return [...answers]
  const asError = (error: Error): Error[] => renewals.map(() => error)
  const results = await renewOnReplicas(parts, replicas, { requests: renewals, slot }).catch(asError)
  let at = 0
  const counted = answers.map((answer, index) => {
    if (!isGrant(answer)) return answer
    const result = results[at++]
    if (result === 'renewed') return { ...answer, ttlMs: (requests[index] as Claim).ttlMs }
    return result instanceof Error ? result : new StoreError('the lease was lost before replicas had confirmed it')
  })
  return failTogether(requests, counted)
}

const isGrant = (answer: AcquireAnswer | Error | undefined): answer is Grant =>
  answer !== undefined && 'granted' in answer && answer.granted
