import { namedStatements } from '../shared/named-statements.ts'
import { readProtocol } from '../shared/read-protocol.ts'

export type StatementName = keyof typeof statements

/** The statements of `protocol/sqlite/statements.sql`, and two pragmas. */
export const statements = {
  ...namedStatements<
    | 'format_table'
    | 'stolen_table'
    | 'format'
    | 'now'
    | 'sweep_leases'
    | 'sweep_waiters'
    | 'sweep_rates'
    | 'lease'
    | 'held'
    | 'holder'
    | 'next_end'
    | 'leases_from'
    | 'newer_lease'
    | 'waiters_from'
    | 'waiters_of'
    | 'front_of'
    | 'ahead_of'
    | 'clamp_leases'
    | 'clamp_waiters'
    | 'next_token'
    | 'restore_counter'
    | 'insert_lease'
    | 'insert_waiter'
    | 'keep_place'
    | 'delete_waiter'
    | 'set_end'
    | 'renew'
    | 'release'
    | 'withdraw'
    | 'note_stolen'
    | 'trim_stolen'
    | 'stolen_since'
    | 'end_leases'
    | 'rate'
    | 'set_rate'
    | 'delete_rate'
    | 'rates_from'
    | 'names'
  >(readProtocol('sqlite/statements.sql')),
  data_version: 'PRAGMA data_version',
  busy_timeout: 'PRAGMA busy_timeout',
}
