import type { AcquireAnswer, Claim, Grant, RenewAnswer, Renewal } from '../../core/driver.ts'
import { StoreError } from '../../core/errors.ts'
import { failTogether } from '../shared/groups.ts'
import { readProtocol } from '../shared/read-protocol.ts'
import type { RedisConnection } from './connection.ts'
import { inTime, isNoScript, storeErrorFrom } from './errors.ts'
import { entryError, renewArgs, unexpectedReply } from './format.ts'
import { type Send, sendList } from './lists.ts'
import { type ListParts, leasesRun, protocolScript, runLeases, runScript, type ScriptCall } from './scripts.ts'

const renewScript = protocolScript(() => readProtocol('redis/renew.lua'))

const renewPart: Send<Renewal, RenewAnswer> = (parts, requests, slot) =>
  runLeases(parts, slot, { operation: 'renew', requests, args: renewArgs(requests) }, ([, ...replies]) =>
    replies.map((reply) => entryError('renew', reply) ?? (Number(reply) === 1 ? 'renewed' : 'lost')),
  )

/**
 * Renews long lists by the locks' own keys, which costs the client and the server less. A short list goes to leases.lua
 * at once: an extension of a shared lease must not take two round trips.
 */
export const renewMany: Send<Renewal, RenewAnswer> = (parts, renewals, slot) =>
  renewals.length <= MAX_FEW_RENEWALS
    ? renewPart(parts, renewals, slot)
    : renewByKeys(parts, renewals).then((byKey) => withRest(parts, renewals, byKey))

/**
 * On a Cluster: renews each lease by the lock's own key, all in flight together. While a slot is being moved, a call
 * with several keys is refused unless all of them exist on one node. Leases would then expire although their holders
 * are alive. A renewal that the lock's own key does not decide goes to leases.lua.
 */
export const renewEach: Send<Renewal, RenewAnswer> = async (parts, renewals) => {
  const asError = (error: Error): [Error] => [error]
  const each = renewals.map((renewal) => renewByKeys(parts, [renewal]).catch(asError))
  return withRest(parts, renewals, (await Promise.all(each)).flat())
}

/** False: leases.lua has to decide. */
function renewByKeys({ connection, prefix }: ListParts, renewals: readonly Renewal[]): Promise<boolean[]> {
  const keys = renewals.map(({ lockName }) => prefix + lockName)
  const call = ['', '', `${keys.length}`, ...keys, ...renewArgs(renewals)] as string[] as ScriptCall
  const read = (reply: unknown, { master }: RedisConnection): boolean[] => {
    const answers = answersIn(reply, keys.length)
    if (answers.includes(true)) master?.wrote()
    return answers
  }
  return runScript(connection, { what: 'renew', script: renewScript(), call, read })
}

function answersIn(reply: unknown, count: number): boolean[] {
  if (!Array.isArray(reply)) return new Array<boolean>(count).fill(Number(reply) === 1)
  if (reply.length !== count) throw unexpectedReply('renew', reply)
  return reply.map((answer) => Number(answer) === 1)
}

/** Leaves to leases.lua what the locks' own keys did not decide. */
async function withRest(
  parts: ListParts,
  renewals: readonly Renewal[],
  byKey: readonly (boolean | Error)[],
): Promise<readonly (RenewAnswer | Error)[]> {
  const rest = renewals.filter((_, index) => byKey[index] === false)
  const answers = await sendList(parts, rest, renewPart).catch((error: Error) => rest.map(() => error))
  let at = 0
  return byKey.map((answer) => {
    if (answer === false) return answers[at++] as RenewAnswer | Error
    return answer === true ? 'renewed' : answer
  })
}

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
  { connection, prefix, timeoutMs: callMs }: ListParts,
  { count, timeoutMs }: ReplicaWait,
  requests: readonly Renewal[],
): Promise<(RenewAnswer | Error)[]> {
  const list = { operation: 'renew', requests, args: renewArgs(requests) } as const
  const { script, call, read } = leasesRun(prefix, undefined, list, ([, ...answers]) => answers)
  const [, , ...keysAndArgs] = call
  const send = async (command: string, text: string): Promise<readonly unknown[]> =>
    (await connection.together?.([
      [command, text, ...keysAndArgs],
      ['WAIT', `${count}`, `${timeoutMs}`],
    ])) ?? []
  const renew = (): Promise<readonly unknown[]> =>
    send('EVALSHA', script.sha).catch((error: unknown) => {
      if (isNoScript(error)) return send('EVAL', script.text)
      connection.master?.failed(error)
      throw storeErrorFrom('renew', error, connection)
    })
  const [reply, confirmed] = await inTime('wait for replicas', timeoutMs + callMs, renew, connection)
  const seen = Number(confirmed)
  return (await read(reply, connection, undefined)).map((answer) => {
    if (Number(answer) !== 1) return entryError('renew', answer) ?? 'lost'
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
  requests: readonly Claim[],
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
  const results = await renewOnReplicas(parts, replicas, renewals).catch(asError)
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

/** How many renewals one script may have. It takes 2 µs for each, so this many block the server for a millisecond. */
export const MAX_RENEWALS = 512
const MAX_FEW_RENEWALS = 16
