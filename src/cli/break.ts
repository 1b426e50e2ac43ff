import { hostname, userInfo } from 'node:os'
import { createInterface } from 'node:readline/promises'
import { parseArgs } from 'node:util'
import { Holder } from '../core/claim/holder.ts'
import type { Driver, LeaseRecord } from '../core/driver.ts'
import { Emitter } from '../core/events.ts'
import { CALL_TIMEOUT_MS, WAITER_TTL_MS } from '../core/limits.ts'
import { checkLockName, checkText } from '../core/names.ts'
import { systemClock } from '../core/time/clock.ts'
import { systemRandom } from '../core/time/random.ts'
import { endLeases } from '../primitives/lock/force-release.ts'
import { type BreakRecord, canRecord, KEPT_MS, metadataOf, recordName } from './break-record.ts'
import { durationText } from './duration.ts'
import { exitCodes, UsageError } from './exit-codes.ts'
import { look, oneName, parsing, type Seen, urlFrom, withDriver } from './store.ts'
import { printable, say } from './text.ts'

/** Ends the leases on a lock by force. */
export function main(args: readonly string[]): Promise<number> {
  const options = parsing(() => parse(args))
  const { url, lockName, reason, by } = options
  return withDriver(url, async (driver) => {
    const seen = await look(driver, { lockName })
    if (seen.leases.length === 0) {
      say(`"${lockName}" is free`)
      return 0
    }
    process.stderr.write(affected(lockName, seen))
    if (!options.yes && !(await isConfirmed())) {
      say('nothing was changed')
      return exitCodes.notAcquired
    }
    const record = { by, reason, at: new Date(), ended: seen.leases.map(({ holderId }) => holderId) }
    return breakLock(driver, { lockName, leases: seen.leases, record })
  })
}

interface Break {
  readonly lockName: string
  readonly leases: readonly LeaseRecord[]
  readonly record: BreakRecord
}

async function breakLock(driver: Driver, { lockName, leases, record }: Break): Promise<number> {
  const holder = new Holder({
    driver,
    holderId: record.by,
    clock: systemClock,
    random: systemRandom,
    callTimeoutMs: CALL_TIMEOUT_MS,
    waiterTtlMs: WAITER_TTL_MS,
    events: new Emitter(),
  })
  try {
    holder.assertSupports('steal')
    // First: a break without a record is worse than a record of a break that did not happen.
    if (canRecord(driver)) await keepRecord(holder, lockName, leases, record)
    else say(`the ${driver.name} store cannot keep a record of this`)
    const metadata = { forcedBy: record.by, reason: record.reason }
    if (!(await endLeases(holder, { lockName, leases, metadata }))) {
      say(`"${lockName}" has another holder since. Nothing was ended: look again with holdfast show`)
      return exitCodes.notAcquired
    }
    say(`ended ${leases.length === 1 ? 'the lease' : `${leases.length} leases`} on "${lockName}"`)
    return 0
  } finally {
    await holder.close()
  }
}

async function keepRecord(
  holder: Holder,
  lockName: string,
  leases: readonly LeaseRecord[],
  record: BreakRecord,
): Promise<void> {
  const token = leases.reduce((most, { fencingToken }) => Math.max(most, fencingToken), 0)
  const ttlMs = Math.min(KEPT_MS, holder.longestTtlMs)
  const unheld = { waitMs: 0, heartbeat: false, minHoldMs: 0, maxHoldMs: ttlMs }
  const name = recordName(lockName, token)
  const claim = holder.createClaim({
    lockName: name,
    mode: 'exclusive',
    ttlMs,
    metadata: metadataOf(record),
    ...unheld,
  })
  // A refusal means that there is a record of the same break already: it was tried before.
  await holder.ask(claim)
}

function affected(lockName: string, { leases, waiters }: Seen): string {
  const nowMs = Date.now()
  const lines = leases.map(({ holderId, acquiredAtMs, metadata }) => {
    const since = acquiredAtMs > 0 ? `, for ${durationText(nowMs - acquiredAtMs)}` : ''
    const more = metadata === undefined ? '' : `, ${JSON.stringify(metadata)}`
    return `  ${printable(`${holderId}${since}${more}`)}`
  })
  const next = waiters[0] === undefined ? 'no claim waits for it' : `${waiters.length} wait for it`
  const head = printable(`"${lockName}" is held by ${leases.length === 1 ? '' : `${leases.length} holders`}`).trimEnd()
  return `${head}\n${lines.join('\n')}\n${next}\n`
}

/** Asks on the terminal. Without one, there is no answer. */
async function isConfirmed(): Promise<boolean> {
  if (!process.stdin.isTTY) throw new UsageError('break needs --yes where it cannot ask')
  const terminal = createInterface({ input: process.stdin, output: process.stderr })
  try {
    const question = 'A holder that is alive loses the lock in the middle of its work. End it? [y/N] '
    return /^y(?:es)?$/i.test((await terminal.question(question)).trim())
  } finally {
    terminal.close()
  }
}

interface Options {
  readonly url: string
  readonly lockName: string
  readonly reason: string
  readonly by: string
  readonly yes: boolean
}

function parse(args: readonly string[]): Options {
  const { values, positionals } = parseArgs({
    args: [...args],
    allowPositionals: true,
    options: {
      url: { type: 'string' },
      reason: { type: 'string' },
      by: { type: 'string' },
      yes: { type: 'boolean', short: 'y' },
    },
  })
  const lockName = oneName('break', positionals)
  const { reason, by = `${userName()}@${hostname()}`, yes = false } = values
  if (reason === undefined || reason.trim() === '') throw new UsageError('break needs --reason TEXT')
  checkText('--reason', reason, MAX_REASON_LENGTH)
  checkLockName(by, '--by')
  return { url: urlFrom(values.url), lockName, reason, by, yes }
}

/** A container may run as a user that has no name. */
function userName(): string {
  try {
    return userInfo().username
  } catch {
    return `uid ${process.getuid?.() ?? 'unknown'}`
  }
}

const MAX_REASON_LENGTH = 500
