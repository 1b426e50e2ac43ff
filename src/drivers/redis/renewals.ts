import type { RenewAnswer, Renewal } from '../../core/driver.ts'
import { readProtocol } from '../shared/read-protocol.ts'
import { storeErrorFrom } from './errors.ts'
import { entryOf, renewArgs, ttlText } from './format.ts'
import { protocolScript, runScript, scriptCall } from './scripts.ts'
import { type Chunk, type ListParts, runLeases } from './send-batch.ts'

const renewScript = protocolScript(() => readProtocol('redis/renew.lua'))

export async function renewList(parts: ListParts, chunk: Chunk<Renewal>): Promise<RenewAnswer[]> {
  const [, ...replies] = await runLeases(parts, 'renew', chunk, renewArgs(chunk.requests))
  return replies.map((reply) => (Number(reply) === 1 ? 'renewed' : 'lost'))
}

/**
 * On a Cluster: renews each lease by the lock's own key, all in flight together. While a slot is being moved, a call
 * with several keys is refused unless all of them exist on one node. Leases would then expire although their holders
 * are alive. A renewal that the lock's own key does not decide goes to leases.lua.
 */
export async function renewEach(parts: ListParts, chunk: Chunk<Renewal>): Promise<(RenewAnswer | Error)[]> {
  const byKey = await Promise.all(chunk.requests.map((renewal) => renewByKey(parts, renewal)))
  const open = chunk.requests.filter((_, index) => byKey[index] === undefined)
  const asError = (error: Error): Error[] => open.map(() => error)
  const others = open.length === 0 ? [] : await renewList(parts, { ...chunk, requests: open }).catch(asError)
  let at = 0
  return byKey.map((answer) => answer ?? (others[at++] as RenewAnswer | Error))
}

/** Undefined: leases.lua has to decide. */
async function renewByKey({ connection, prefix }: ListParts, renewal: Renewal): Promise<'renewed' | Error | undefined> {
  const call = scriptCall([prefix + renewal.lockName], [entryOf(renewal), ttlText(renewal)])
  try {
    const reply = await runScript(connection, renewScript(), call)
    return Number(reply) === 1 ? 'renewed' : undefined
  } catch (error) {
    return storeErrorFrom('renew', error, connection)
  }
}
