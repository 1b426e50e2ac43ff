import { createInterface } from 'node:readline/promises'
import { chooseUrl } from '../connect.ts'
import { checkLockName, checkText } from '../core/arguments.ts'
import type { Driver, LeaseRecord } from '../core/driver.ts'
import { forceReleaseWithRecord, type RecordedForcedRelease } from '../primitives/lock/force-release.ts'
import { canRecord, KEPT_MS } from '../primitives/lock/forced-release-record.ts'
import { inspectStore } from '../primitives/on-driver.ts'
import { durationText } from './duration.ts'
import { exitCodes, UsageError } from './exit-codes.ts'
import { argumentsOf, FLAG, oneName, type Seen, TEXT, userAtHost, withDriver } from './store.ts'
import { printable, say } from './text.ts'

/** Ends the leases on a lock by force. */
export function main(args: readonly string[]): Promise<number> {
  const options = parse(args)
  const { url, lockName, reason, by } = options
  return withDriver(url, async (driver) => {
    if (options.endSession && driver.capabilities.expiry !== 'session') {
      throw new UsageError('--end-session is for postgres+advisory, where a lease ends with its session')
    }
    const seen = await inspectStore(driver, { lockName })
    if (seen.leases.length === 0) {
      say(`"${lockName}" is free`)
      return 0
    }
    process.stderr.write(affected(lockName, seen))
    if (options.endSession) process.stderr.write(await endsToo(driver, seen.leases))
    if (!options.yes && !(await isConfirmed())) {
      say('nothing was changed')
      return exitCodes.notAcquired
    }
    const record = { by, reason, at: new Date(), ended: seen.leases.map(({ holderId }) => holderId) }
    return end(driver, { lockName, leases: seen.leases, record, endSession: options.endSession })
  })
}

async function end(driver: Driver, forced: RecordedForcedRelease): Promise<number> {
  const { lockName } = forced
  const { longestTtlMs = KEPT_MS } = driver.extensions ?? {}
  if (!canRecord(driver)) say(`the ${driver.name} store keeps no record of this. It is only in the log of the server`)
  else if (longestTtlMs < KEPT_MS) say(`this store keeps the record of it for ${durationText(longestTtlMs)}`)
  const ended = await forceReleaseWithRecord(driver, forced)
  if (ended === 0) {
    say(`"${lockName}" has another holder since. Nothing was ended: look again with holdfast show`)
    return exitCodes.notAcquired
  }
  say(`ended ${ended === 1 ? 'the lease' : `${ended} leases`} on "${lockName}"`)
  return 0
}

/** What else ends with the sessions of these leases. */
async function endsToo(driver: Driver, leases: readonly LeaseRecord[]): Promise<string> {
  const sessions = new Set(leases.flatMap(({ session }) => session ?? []))
  if (sessions.size === 0) return ''
  const own = new Set(leases.map(({ claimId }) => claimId))
  const all = (await inspectStore(driver, {})).leases
  const others = all.filter(({ session, claimId }) => sessions.has(session ?? '') && !own.has(claimId))
  const names = [...sessions].join(', ')
  if (others.length === 0) return `${printable(`the session (${names}) ends, with no other lock that is visible`)}\n`
  const lines = others.map(({ lockName, holderId }) => `  ${printable(`${lockName}, held by ${holderId}`)}`)
  return `${printable(`the session (${names}) ends, and with it`)}\n${lines.join('\n')}\n`
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

/** Asks on the terminal. Without one, there is no answer. Ctrl-C and Ctrl-D mean no. */
async function isConfirmed(): Promise<boolean> {
  if (!process.stdin.isTTY) throw new UsageError('force-release needs --yes where it cannot ask')
  const terminal = createInterface({ input: process.stdin, output: process.stderr })
  try {
    const question = 'A holder that is alive loses the lock in the middle of its work. End it? [y/N] '
    return /^y(?:es)?$/i.test((await terminal.question(question)).trim())
  } catch (error) {
    if (!(error instanceof Error) || error.name !== 'AbortError') throw error
    process.stderr.write('\n')
    return false
  } finally {
    terminal.close()
  }
}

function parse(args: readonly string[]) {
  const { values, positionals } = argumentsOf(args, {
    reason: TEXT,
    by: TEXT,
    yes: { ...FLAG, short: 'y' },
    'end-session': FLAG,
  })
  const lockName = oneName('force-release', positionals)
  const { reason, by = userAtHost(), yes = false, 'end-session': endSession = false } = values
  if (reason === undefined || reason.trim() === '') throw new UsageError('force-release needs --reason TEXT')
  checkText('--reason', reason, MAX_REASON_LENGTH)
  checkLockName(by, '--by')
  return { url: chooseUrl(values.url), lockName, reason, by, yes, endSession }
}

const MAX_REASON_LENGTH = 500
