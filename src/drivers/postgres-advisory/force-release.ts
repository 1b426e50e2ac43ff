import type { ForceOptions, LeaseRecord } from '../../core/driver.ts'
import { StoreError } from '../../core/errors.ts'
import type { Clock } from '../../core/time/clock.ts'
import { pause } from '../../core/time/pause.ts'
import type { DedicatedConnection, PostgresConnections, Row } from '../postgres/connections.ts'
import { quoteIdentifier } from '../postgres/statements.ts'
import { leasesOn } from './inspect.ts'
import { advisoryKey, breakKey } from './key.ts'
import type { Session } from './session.ts'
import { advisoryStatements } from './statements.ts'

export interface ForceParts {
  readonly connections: PostgresConnections
  readonly clock: Clock
  /** A session of this driver, to look at the locks. */
  readonly session: Session
}

/**
 * Ends leases of other clients. Returns for each whether it ended, or why not.
 *
 * The server takes a session lock away only by ending its session, and with it all other locks of the holder. So the
 * holder is asked to let go of the one lease: an advisory lock is the request. The holder finds it, checks with
 * the server that the role that asks could end its session anyway, and lets go. Only if it does not, and the caller
 * wants that, its session is ended.
 */
export async function forceRelease(
  parts: ForceParts,
  leases: readonly LeaseRecord[],
  { by, endSession }: ForceOptions,
): Promise<(boolean | Error)[]> {
  const before = await heldOf(parts, leases)
  if (before.size === 0) return leases.map(() => false)
  const connection = await parts.connections.dedicate({ onEnd: () => {} })
  try {
    const refusal = await refusalFor(connection, [...before.values()])
    if (refusal === undefined) {
      await log(connection, [...before.keys()], by)
      await ask(parts, connection, [...before.keys()], endSession ? POLITE_MS : ASK_MS)
      if (endSession) await endSessions(parts, connection, [...before.keys()])
    }
    const after = await heldOf(parts, [...before.keys()])
    return leases.map((lease) => {
      if (!before.has(lease)) return false
      return after.has(lease) ? (refusal ?? stillHeld(lease, endSession)) : true
    })
  } finally {
    // An error while it closes leaves nothing behind: its locks end with it.
    await connection.end().catch(() => {})
  }
}

/** The leases that still exist, each with the server's row about its lock. */
async function heldOf({ session }: ForceParts, leases: readonly LeaseRecord[]): Promise<ReadonlyMap<LeaseRecord, Row>> {
  const rows = await session.locks([...new Set(leases.map(({ lockName }) => advisoryKey(lockName)))])
  return new Map(
    leases.flatMap((lease) => {
      const row = rows.find((each) => isAbout(each, lease))
      return row === undefined ? [] : [[lease, row] as const]
    }),
  )
}

/** A session that has the lock but does not show for which claims may still have this one. */
function isAbout(row: Row, { lockName, claimId, fencingToken, mode, session }: LeaseRecord): boolean {
  if (!row['granted'] || row['key'] !== advisoryKey(lockName) || row['shared'] !== (mode === 'shared')) return false
  return leasesOn(lockName, row).some((shown) => {
    if (shown.session !== session) return false
    return shown.fencingToken === 0 || (shown.claimId === claimId && shown.fencingToken === fencingToken)
  })
}

/** Why the holders would not let go for this role, and the server would not end their sessions. */
async function refusalFor(connection: DedicatedConnection, held: readonly Row[]): Promise<StoreError | undefined> {
  const pids = `{${held.map((row) => row['pid']).join(',')}}`
  const rows = await connection.query(advisoryStatements.may_end, [pids])
  const refused = rows.find((row) => row['may'] !== true)
  if (refused === undefined) return undefined
  const [own, theirs] = [quoteIdentifier(String(refused['own_role'])), quoteIdentifier(String(refused['role']))]
  const isSuperuser = refused['super'] === true
  const remedy = isSuperuser
    ? 'connect as a superuser, as the holder did'
    : `run GRANT pg_signal_backend TO ${own}; or GRANT ${theirs} TO ${own}`
  return new StoreError(`the role ${own} may not end sessions of the role ${theirs}, which holds the lock: ${remedy}`, {
    retryable: false,
  })
}

/** There is no table that could keep a record. */
async function log(connection: DedicatedConnection, leases: readonly LeaseRecord[], by: string): Promise<void> {
  for (const { lockName, holderId, session } of leases) {
    // As JSON: a line break must not begin another line of the log.
    const [name, holder, who] = [lockName, holderId, by].map((text) => JSON.stringify(text))
    await connection.query(advisoryStatements.log_break, [`ends ${name}, held by ${holder} (${session}), for ${who}`])
    await connection.query(advisoryStatements.write_log)
  }
}

/** Asks the holders to let go, and waits until they have, for at most `ms`. */
async function ask(
  parts: ForceParts,
  connection: DedicatedConnection,
  leases: readonly LeaseRecord[],
  ms: number,
): Promise<void> {
  // A holder that shows no claim is no client of Holdfast, or this role may not see what it shows.
  const named = leases.filter(({ fencingToken }) => fencingToken > 0)
  if (named.length === 0) return
  const keys = `{${named.map(breakKey).join(',')}}`
  await connection.query(advisoryStatements.request_break, [keys])
  // On a connection of the caller, what is not taken back would stay.
  try {
    await raiseFlag(parts, connection)
    try {
      await until(parts.clock, ms, async () => (await heldOf(parts, named)).size === 0)
    } finally {
      await connection.query(advisoryStatements.lower_flag)
    }
  } finally {
    await connection.query(advisoryStatements.withdraw_break, [keys])
  }
}

async function raiseFlag({ clock }: ForceParts, connection: DedicatedConnection): Promise<void> {
  const raise = async (): Promise<boolean> => {
    const [row] = await connection.query(advisoryStatements.raise_flag)
    return row?.['raised'] === true
  }
  if (await until(clock, FLAG_MS, raise)) return
  throw new StoreError('another client keeps the advisory lock 7813544519228563563, which a break needs for a moment')
}

async function endSessions(
  parts: ForceParts,
  connection: DedicatedConnection,
  leases: readonly LeaseRecord[],
): Promise<void> {
  const lead = String(parts.session.lead)
  const isOver = async (): Promise<boolean> => {
    const held = await heldOf(parts, leases)
    for (const [{ lockName }, row] of held) {
      const values = [row['pid'], advisoryKey(lockName), row['token']].map(String)
      // Does nothing if the session was granted any lock since the look: that may be a newer lease on this name.
      await connection.query(advisoryStatements.end_session, [...values, lead])
    }
    return held.size === 0
  }
  await until(parts.clock, END_MS, isOver)
}

async function until(clock: Clock, ms: number, isDone: () => Promise<boolean>): Promise<boolean> {
  const lastMs = clock.now().monotonicMs + ms
  for (;;) {
    if (await isDone()) return true
    if (clock.now().monotonicMs >= lastMs) return false
    await pause(clock, POLL_MS)
  }
}

function stillHeld({ lockName, fencingToken, session }: LeaseRecord, endSession: boolean): StoreError {
  const why = endSession
    ? 'the server did not end it in time'
    : fencingToken > 0
      ? `it did not let go within ${ASK_MS / 1_000} s: it hangs, or does not listen`
      : 'what it holds the lock for is not visible, so it cannot be asked to let go. Either it is not a client of ' +
        'Holdfast, or this role may not see its statements (GRANT pg_read_all_stats)'
  const remedy = endSession
    ? ''
    : '. To end its whole session, and all other locks of it, use --end-session (endSession)'
  return new StoreError(`"${lockName}" is still held by the session ${session}: ${why}${remedy}`, { retryable: false })
}

/** How long the holder has to let go. One that has held the lock for less than a second does not listen yet. */
const ASK_MS = 4_000
/** The same, if its session is ended after that. */
const POLITE_MS = 2_000
const FLAG_MS = 2_000
const END_MS = 2_000
const POLL_MS = 50
