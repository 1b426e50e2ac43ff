import assert from 'node:assert/strict'
import { namedStatements } from '../shared/named-statements.ts'
import { readProtocol } from '../shared/read-protocol.ts'
import type { LockRequest } from './held-locks.ts'

const PREPARED = ['take', 'take_list', 'unlock', 'unlock_list', 'cancel', 'ping', 'prove', 'lacks', 'locks'] as const

export type PreparedName = (typeof PREPARED)[number]

type SessionName = 'identity' | 'wait' | 'timeline' | 'witness' | 'unlock_all' | 'own_locks' | 'release_requests'
type ProofName = 'version' | 'try_key' | 'see_key' | 'free_key'
type ForceName = 'may_end' | 'request_release' | 'raise_flag' | 'lower_flag' | 'withdraw_request' | 'end_session'
type LogName = 'log_force_release' | 'write_log'

export const advisoryStatements = namedStatements<
  PreparedName | SessionName | ProofName | ForceName | LogName | 'lock_in_transaction'
>(readProtocol('postgres/advisory.sql'))

/** A session that knows the statements has prepared them: its id is unique. `lead`: how far its tokens are ahead. */
export const preparation = (sessionId: string, lead: number): string =>
  PREPARED.map((name) => {
    const statement = advisoryStatements[name].replace(':"name"', preparedName(name, sessionId))
    return `${statement.replace(':lead', `${lead}::bigint`)};\n`
  }).join('')

export const deallocation = (sessionId: string): string =>
  PREPARED.map((name) => `DEALLOCATE ${preparedName(name, sessionId)};\n`).join('')

/** Values are numbers, booleans, or lists of them, so nothing in them can be taken as SQL. */
export function execution(name: PreparedName, sessionId: string, values: readonly (string | null)[]): string {
  const literals = values.map((value) => (value === null ? 'NULL' : numbers(value)))
  return `EXECUTE ${preparedName(name, sessionId)}${literals.length === 0 ? '' : `(${literals.join(',')})`}`
}

/** SQL that returns when the session has the lock. `waitedMs`: for how long the claim has waited before. */
export const waiting = ({ key, shared }: LockRequest, waitedMs: number): string =>
  advisoryStatements.wait
    .replaceAll(':key', numbers(key))
    .replaceAll(':shared', String(shared))
    .replaceAll(':waited', String(Math.round(waitedMs)))

/** SQL that restores the settings of a session from JSON. */
export const restoring = (before: string): string =>
  `SELECT set_config(key, value, false) FROM json_each_text(${literal(before)});\n`

export const unlocking = (locks: readonly LockRequest[]): string =>
  locks
    .map(({ key, shared }) => `SELECT pg_advisory_unlock${shared ? '_shared' : ''}(${literal(key)}::bigint);\n`)
    .join('')

export const unpublishing = (xid: string): string =>
  'SELECT pg_advisory_unlock_shared((x >> 32)::integer, ((x << 32) >> 32)::integer) ' +
  `FROM (SELECT ${literal(xid)}::bigint) AS last (x);\n`

const preparedName = (name: PreparedName, sessionId: string): string => `holdfast_${name}_${sessionId}`

function numbers(value: string): string {
  assert(/^[-0-9a-z,{}]*$/.test(value), `not a list of numbers: ${value}`)
  return `'${value}'`
}

const literal = (text: string): string => `'${text.replaceAll("'", "''")}'`
