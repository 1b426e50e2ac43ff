import assert from 'node:assert/strict'
import { withoutComments } from '../postgres/migrate.ts'
import { namedStatements } from '../shared/named-statements.ts'
import { readProtocol } from '../shared/read-protocol.ts'
import type { BoardEntry } from './activity-comment.ts'

const PREPARED = ['take', 'take_list', 'unlock', 'unlock_list', 'still', 'locks'] as const

export type PreparedName = (typeof PREPARED)[number]

type StatementName =
  | PreparedName
  | 'identity'
  | 'timeline'
  | 'witness'
  | 'unlock_all'
  | 'cancel'
  | 'mine'
  | 'lock_in_transaction'
  | 'try_in_transaction'

export const advisoryStatements = namedStatements<StatementName>(withoutComments(readProtocol('postgres/advisory.sql')))

/** Somebody who asks, before there is a token. */
export interface Asking extends BoardEntry {
  readonly key: string
}

/**
 * `word`: one that no other session has, so whoever knows the statement is the session that prepared it. `lead`: of its
 * tokens.
 */
export const preparation = (word: string, lead: number): string =>
  PREPARED.map((name) => {
    const statement = advisoryStatements[name].replace(':"name"', preparedName(name, word))
    return `${statement.replace(':lead', `${lead}::bigint`)};\n`
  }).join('')

export const deallocation = (word: string): string =>
  PREPARED.map((name) => `DEALLOCATE ${preparedName(name, word)};\n`).join('')

/** Values are numbers and truth values, or lists of them, so nothing in them can be taken for SQL. */
export function execution(name: PreparedName, word: string, values: readonly (string | null)[]): string {
  const literals = values.map((value) => {
    if (value === null) return 'NULL'
    assert(/^[-0-9a-z,{}]*$/.test(value), `not a list of numbers: ${value}`)
    return `'${value}'`
  })
  return `EXECUTE ${preparedName(name, word)}${literals.length === 0 ? '' : `(${literals.join(',')})`}`
}

/** `before`: what the settings of a session were, as JSON. */
export const restoring = (before: string): string =>
  `SELECT set_config(key, value, false) FROM json_each_text(${literal(before)});\n`

export const unlocking = (locks: readonly Asking[]): string =>
  locks
    .map(({ key, shared }) => `SELECT pg_advisory_unlock${shared ? '_shared' : ''}(${literal(key)}::bigint);\n`)
    .join('')

export const unpublishing = (xid: string): string =>
  `SELECT pg_advisory_unlock_shared((x >> 32)::integer, ((x << 32) >> 32)::integer) FROM (SELECT ${literal(xid)}::bigint) AS last (x);\n`

const preparedName = (name: PreparedName, word: string): string => `holdfast_${name}_${word}`

const literal = (text: string): string => `'${text.replaceAll("'", "''")}'`
