import type { RenewAnswer, Renewal } from '../../core/driver.ts'
import { readProtocol } from '../shared/read-protocol.ts'
import { storeErrorFrom } from './errors.ts'
import { renewArgs, unexpectedReply } from './format.ts'
import { protocolScript, runScript, type ScriptCall } from './scripts.ts'
import { type Chunk, type ListParts, runLeases, sendList } from './send-batch.ts'

const renewScript = protocolScript(() => readProtocol('redis/renew.lua'))

export async function renewList(parts: ListParts, chunk: Chunk<Renewal>): Promise<RenewAnswer[]> {
  const [, ...replies] = await runLeases(parts, 'renew', chunk, renewArgs(chunk.requests))
  return replies.map((reply) => (Number(reply) === 1 ? 'renewed' : 'lost'))
}

/**
 * Renews long lists by the locks' own keys, which costs the client and the server less. A short list goes to leases.lua
 * at once: an extension of a shared lease must not take two round trips.
 */
export async function renewMany(parts: ListParts, chunk: Chunk<Renewal>): Promise<readonly (RenewAnswer | Error)[]> {
  const { requests } = chunk
  if (requests.length <= MAX_FEW_RENEWALS) return renewList(parts, chunk)
  const byKey = await renewByKeys(parts, requests)
  if (!byKey.includes(false)) return new Array<RenewAnswer>(requests.length).fill('renewed')
  const rest = restOf(requests, byKey)
  const asErrors = (error: Error): Error[] => rest.map(() => error)
  return withRest(byKey, await sendList(parts, rest, (part) => renewList(parts, part)).catch(asErrors))
}

/**
 * On a Cluster: renews each lease by the lock's own key, all in flight together. While a slot is being moved, a call
 * with several keys is refused unless all of them exist on one node. Leases would then expire although their holders
 * are alive. A renewal that the lock's own key does not decide goes to leases.lua.
 */
export async function renewEach(parts: ListParts, chunk: Chunk<Renewal>): Promise<(RenewAnswer | Error)[]> {
  const asError = (error: Error): [Error] => [error]
  const each = chunk.requests.map((renewal) => renewByKeys(parts, [renewal]).catch(asError))
  const byKey = (await Promise.all(each)).map(([answer]) => answer as boolean | Error)
  const rest = restOf(chunk.requests, byKey)
  const asErrors = (error: Error): Error[] => rest.map(() => error)
  const others = rest.length === 0 ? [] : await renewList(parts, { ...chunk, requests: rest }).catch(asErrors)
  return withRest(byKey, others)
}

/** False: leases.lua has to decide. */
async function renewByKeys({ connection, prefix }: ListParts, renewals: readonly Renewal[]): Promise<boolean[]> {
  const count = renewals.length
  const args = renewArgs(renewals)
  const call = new Array<string>(3 + count + args.length)
  call[0] = call[1] = ''
  call[2] = `${count}`
  for (let index = 0; index < count; index += 1) call[3 + index] = prefix + (renewals[index] as Renewal).lockName
  for (let index = 0; index < args.length; index += 1) call[3 + count + index] = args[index] as string
  let reply: unknown
  try {
    reply = await runScript(connection, renewScript(), call as ScriptCall)
  } catch (error) {
    throw storeErrorFrom('renew', error, connection)
  }
  const answers = answersIn(reply, count)
  if (connection.master?.expectsWrite && answers.includes(true)) connection.master.wrote()
  return answers
}

function answersIn(reply: unknown, count: number): boolean[] {
  if (!Array.isArray(reply)) return new Array<boolean>(count).fill(Number(reply) === 1)
  if (reply.length !== count) throw unexpectedReply('renew', reply)
  return reply.map((answer) => Number(answer) === 1)
}

const restOf = (renewals: readonly Renewal[], byKey: readonly (boolean | Error)[]): Renewal[] =>
  renewals.filter((_, index) => byKey[index] === false)

function withRest(
  byKey: readonly (boolean | Error)[],
  rest: readonly (RenewAnswer | Error)[],
): (RenewAnswer | Error)[] {
  let at = 0
  return byKey.map((answer) => {
    if (answer === false) return rest[at++] as RenewAnswer | Error
    return answer === true ? 'renewed' : answer
  })
}

/** How many renewals one script may have. It takes 2 µs for each, so this many block the server for a millisecond. */
export const MAX_RENEWALS = 512
const MAX_FEW_RENEWALS = 16
