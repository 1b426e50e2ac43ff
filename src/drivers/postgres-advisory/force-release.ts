import type { ForceOptions, LeaseRecord } from '../../core/driver.ts'
import { StoreError } from '../../core/errors.ts'
import { pause } from '../../core/time/abort.ts'
import { systemClock } from '../../core/time/clock.ts'
import type { PostgresConnections, Row } from '../postgres/connections.ts'
import { quoteIdentifier } from '../postgres/statements.ts'
import { advisoryKey, releaseRequestKey } from './held-locks.ts'
import { leasesOn } from './inspect.ts'
import type { Session } from './session.ts'
import { advisoryStatements } from './statements.ts'

export interface ForceParts {
  readonly connections: PostgresConnections
  /** A session of this driver, to look at the locks. */
  readonly session: Session
}

/**
 * Ends leases of other clients. Returns for each whether it ended, or why not.
 *
 * The server takes a session lock away only by ending its session, and with it all other locks of the holder. So the
 * holder is asked to let go of the one lease: an advisory lock is the request. The holder finds it with its next
 * renewal, checks with the server that the role that asks could end its session anyway, and lets go. Only if it does
 * not, and the caller wants that, its session is ended.
 */
export async function forceRelease(
  { connections, session }: ForceParts,
  leases: readonly LeaseRecord[],
  { by, endSession }: ForceOptions,
): Promise<(boolean | Error)[]> {
  const before = await heldOf(session, leases)
  if (before.size === 0) return leases.map(() => false)
  const held = [...before.keys()]
  const connection = await connections.dedicate({ onEnd: () => {} })
  const send = (name: keyof typeof advisoryStatements, ...values: string[]): Promise<readonly Row[]> =>
    connection.query(advisoryStatements[name], values)

  /** There is no table that could keep a record. */
  async function log(): Promise<void> {
    for (const { lockName, holderId, session } of held) {
      // As JSON: a line break must not begin another line of the log.
      const [name, holder, who] = [lockName, holderId, by].map((text) => JSON.stringify(text))
      await send('log_force_release', `ends ${name}, held by ${holder} (${session}), for ${who}`)
      await send('write_log')
    }
  }

  /** Asks the holders to let go, and waits until they have, for a bounded time. */
  async function ask(): Promise<void> {
    // A holder that shows no claim is no client of Holdfast, or this role may not see what it shows.
    const named = held.filter(({ fencingToken }) => fencingToken > 0)
    if (named.length === 0) return
    const keys = `{${named.map(releaseRequestKey).join(',')}}`
    await send('request_release', keys)
    // On a connection of the caller, what is not taken back would stay.
    try {
      if (!(await until(FLAG_MS, async () => (await send('raise_flag'))[0]?.['raised'] === true))) {
        throw new StoreError(
          'another client keeps the advisory lock 7813544519228563563, which a forced release needs for a moment',
        )
      }
      try {
        await until(ASK_MS, async () => (await heldOf(session, named)).size === 0)
      } finally {
        await send('lower_flag')
      }
    } finally {
      await send('withdraw_request', keys)
    }
  }

  async function endSessions(): Promise<boolean> {
    const left = await heldOf(session, held)
    for (const [{ lockName }, row] of left) {
      // Does nothing if the session was granted any lock since the look: that may be a newer lease on this name.
      await send('end_session', String(row['pid']), advisoryKey(lockName), String(row['token']), String(session.lead))
    }
    return left.size === 0
  }

  async function until(ms: number, isDone: () => Promise<boolean>): Promise<boolean> {
    const lastMs = systemClock.now().monotonicMs + ms
    for (;;) {
      if (await isDone()) return true
      if (systemClock.now().monotonicMs >= lastMs) return false
      await pause(systemClock, POLL_MS)
    }
  }

  try {
    const refusal = refusalIn(await send('may_end', `{${[...before.values()].map((row) => row['pid']).join(',')}}`))
    if (refusal === undefined) {
      await log()
      await ask()
      if (endSession) await until(END_MS, endSessions)
    }
    const after = await heldOf(session, held)
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
async function heldOf(session: Session, leases: readonly LeaseRecord[]): Promise<ReadonlyMap<LeaseRecord, Row>> {
  const rows = await session.locks([...new Set(leases.map(({ lockName }) => advisoryKey(lockName)))])
  const found = leases.map((lease) => [lease, rows.find((row) => isAbout(row, lease))] as const)
  return new Map(found.filter((entry): entry is [LeaseRecord, Row] => entry[1] !== undefined))
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
function refusalIn(rows: readonly Row[]): StoreError | undefined {
  const refused = rows.find((row) => row['may'] !== true)
  if (refused === undefined) return undefined
  const [own, theirs] = [quoteIdentifier(String(refused['own_role'])), quoteIdentifier(String(refused['role']))]
  const remedy =
    refused['super'] === true
      ? 'connect as a superuser, as the holder did'
      : `run GRANT pg_signal_backend TO ${own}; or GRANT ${theirs} TO ${own}`
  return new StoreError(`the role ${own} may not end sessions of the role ${theirs}, which holds the lock: ${remedy}`, {
    retryable: false,
  })
}

function stillHeld({ lockName, fencingToken, session }: LeaseRecord, endSession: boolean): StoreError {
  const hint = '. To end its whole session, and all other locks of it, use --end-session (endSession)'
  const why = endSession
    ? 'the server did not end it in time'
    : fencingToken > 0
      ? `it did not let go within ${ASK_MS / 1_000} s: it hangs, or has no heartbeat${hint}`
      : 'what it holds the lock for is not visible, so it cannot be asked to let go. Either it is not a client of ' +
        `Holdfast, or this role may not see its statements (GRANT pg_read_all_stats)${hint}`
  return new StoreError(`"${lockName}" is still held by the session ${session}: ${why}`, { retryable: false })
}

/** How long the holder has to let go. It renews at least every 5 s. */
const ASK_MS = 7_000
const FLAG_MS = 2_000
const END_MS = 2_000
const POLL_MS = 50
