import { createInterface } from 'node:readline/promises'
import { parseArgs } from 'node:util'
import type { Driver } from '../core/driver.ts'
import { checkLockName, checkText } from '../core/names.ts'
import { type Break, breakLock } from '../primitives/lock/break-lock.ts'
import { canRecord } from '../primitives/lock/break-record.ts'
import { durationText } from './duration.ts'
import { exitCodes, UsageError } from './exit-codes.ts'
import { look, oneName, parsing, type Seen, urlFrom, withDriver } from './store.ts'
import { printable, say } from './text.ts'
import { userAtHost } from './user.ts'

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
    return end(driver, { lockName, leases: seen.leases, record })
  })
}

async function end(driver: Driver, { lockName, leases, record }: Break): Promise<number> {
  if (driver.capabilities.steal && !canRecord(driver)) say(`the ${driver.name} store cannot keep a record of this`)
  if (!(await breakLock(driver, { lockName, leases, record }))) {
    say(`"${lockName}" has another holder since. Nothing was ended: look again with holdfast show`)
    return exitCodes.notAcquired
  }
  say(`ended ${leases.length === 1 ? 'the lease' : `${leases.length} leases`} on "${lockName}"`)
  return 0
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
  const { reason, by = userAtHost(), yes = false } = values
  if (reason === undefined || reason.trim() === '') throw new UsageError('break needs --reason TEXT')
  checkText('--reason', reason, MAX_REASON_LENGTH)
  checkLockName(by, '--by')
  return { url: urlFrom(values.url), lockName, reason, by, yes }
}

const MAX_REASON_LENGTH = 500
