import { hostname } from 'node:os'
import { chooseUrl, connect } from '../connect.ts'
import { checkWhole, ttlMsFrom, waitMsFrom } from '../core/arguments.ts'
import type { ClaimRequest } from '../core/claim/holder.ts'
import type { Driver } from '../core/driver.ts'
import { threadHeartbeat } from '../core/lease/heartbeat-thread.ts'
import type { Lease } from '../core/lease/lease.ts'
import { LeaseUse } from '../core/lease/lease-use.ts'
import { LEFT_AT } from '../core/lease/renewer.ts'
import { CALL_TIMEOUT_MS, MAX_WAIT_MS, STALLED_AFTER_MS } from '../core/limits.ts'
import { checkedLease } from '../core/store-answers.ts'
import { systemClock } from '../core/time/clock.ts'
import { holderText } from '../primitives/lock/claims.ts'
import { holderOn } from '../primitives/on-driver.ts'
import { type Supervised, superviseCommand } from './command.ts'
import { exitCodes, signalCode, UsageError } from './exit-codes.ts'
import { Outage } from './outage.ts'
import { argumentsOf, closeWithin, FLAG, oneName, TEXT } from './store.ts'
import { say } from './text.ts'
import { reportWaiting } from './waiting.ts'

export const main = async (args: readonly string[]): Promise<number> => (await runUnderLock(parse(args))).code

/** How a command ended that ran under a lock, or why it did not run. */
export interface Outcome extends Supervised {
  /** A signal that asked this process to end after the lock was granted. It does not if the command handles it. */
  readonly stoppedBy?: NodeJS.Signals | undefined
}

/** Runs a command while it holds a lock. */
export async function runUnderLock({
  url,
  request,
  command,
  conflictCode,
  storeTimeoutMs,
}: LockedRun): Promise<Outcome> {
  const outage = new Outage({ boundMs: storeTimeoutMs, waitMs: request.patienceMs })
  const driver = await outage.open(() => connect(url))
  const holder = holderOn(driver, {
    holderId: `${hostname()}:${process.pid}`,
    // Renewals run in a thread if the driver can be opened there, so that nothing in this thread delays them.
    ...(driver.extensions?.reopen !== undefined && {
      thread: threadHeartbeat({ callTimeoutMs: CALL_TIMEOUT_MS, stalledAfterMs: STALLED_AFTER_MS }),
    }),
  })
  let endReport = (): void => {}
  holder.events.on('waiting', () => {
    endReport = reportWaiting(driver, request.lockName)
  })
  const interrupted = new AbortController()
  const interrupt = (signal: NodeJS.Signals): void => interrupted.abort(signal)
  for (const signal of INTERRUPTS) process.on(signal, interrupt)
  let leftMs = 0
  let ended: Supervised = { code: 0, isLost: false }
  let isRunning = false
  let isLostLate = false
  let stoppedBy: NodeJS.Signals | undefined
  // To a command, SIGHUP may mean to read its configuration again.
  const stop = (signal: NodeJS.Signals): void => {
    if (signal !== 'SIGHUP' || !isRunning) stoppedBy ??= signal
  }
  try {
    const signal = AbortSignal.any([interrupted.signal, outage.signal])
    const end = await holder.acquire({ ...request, signal }, (ended) => ended).finally(() => endReport())
    outage.end()
    if (!(end instanceof LeaseUse)) {
      const seen = end.refusal.holder
      say(`"${request.lockName}" is held by ${seen === undefined ? 'another client' : holderText(checkedLease(seen))}`)
      return { code: conflictCode, isLost: false }
    }
    const running = superviseCommand(command, end, request.ttlMs)
    // An outage is not reported here: what matters is whether the renewals are answered.
    warnIfSlow(driver, end, request.ttlMs).catch(() => {})
    isRunning = true
    // Signals now go to the command. The other listener comes first: without any listener, the next signal would end
    // this process and leave the command behind. It stays until the lock has been released after the command.
    for (const signal of INTERRUPTS) process.on(signal, stop).off(signal, interrupt)
    ended = await running
    isRunning = false
    leftMs = end.remainingSeconds * 1_000
    // The release may find that the lease had ended since the last heartbeat, by force or because the store lost it.
    holder.events.on('lost', () => {
      isLostLate = true
    })
  } catch (error) {
    if (outage.signal.aborted) {
      say(outage.message)
      return { code: exitCodes.unavailable, isLost: false }
    }
    if (!interrupted.signal.aborted) throw error
    return { code: signalCode(interrupted.signal.reason as NodeJS.Signals), isLost: false }
  } finally {
    outage.end()
    await closeWithin(Math.max(1_000, leftMs), async () => {
      await holder.close()
      await driver.close()
    })
    // Nothing is held any more. From here on, a signal ends the process as it ends any other.
    for (const signal of INTERRUPTS) process.off(signal, stop).off(signal, interrupt)
  }
  if (!isLostLate || ended.isLost) return { ...ended, stoppedBy }
  say(`the lease on "${request.lockName}" had ended before the command did`)
  return { code: exitCodes.lost, isLost: true, stoppedBy }
}

/** Signals that end the wait. After the grant, they go to the command. */
const INTERRUPTS: readonly NodeJS.Signals[] = ['SIGINT', 'SIGTERM', 'SIGHUP']

export interface LockedRun {
  readonly url: string
  readonly request: ClaimRequest
  readonly command: readonly [string, ...string[]]
  readonly conflictCode: number
  readonly storeTimeoutMs: number
}

const RUN_OPTIONS = {
  ttl: TEXT,
  wait: TEXT,
  'no-wait': FLAG,
  shared: FLAG,
  'min-hold': TEXT,
  'max-hold': TEXT,
  'store-timeout': TEXT,
  'conflict-exit-code': { ...TEXT, short: 'E' },
} as const

function parse(args: readonly string[]): LockedRun {
  const { own, command } = splitCommand('run', args)
  const { values, positionals } = argumentsOf(own, RUN_OPTIONS)
  return lockedRun(values, oneName('run', positionals), command)
}

type RunValues = Partial<Readonly<ReturnType<typeof argumentsOf<typeof RUN_OPTIONS>>['values']>>

/** Checks the options of `run` and of `elect`, which has some of them. */
export function lockedRun(values: RunValues, lockName: string, command: LockedRun['command']): LockedRun {
  const url = chooseUrl(values.url)
  if (values['no-wait'] && values.wait !== undefined) throw new UsageError('--wait and --no-wait exclude each other')
  const ttlMs = commandTtlMsFrom(values.ttl ?? '30')
  const waitMs = values.wait === undefined ? MAX_WAIT_MS : waitMsFrom('--wait', numberFrom('--wait', values.wait))
  const { 'min-hold': minHold = '0', 'max-hold': maxHold, 'conflict-exit-code': code } = values
  return {
    url,
    command,
    storeTimeoutMs: ttlMsFrom('--store-timeout', numberFrom('--store-timeout', values['store-timeout'] ?? '60')),
    conflictCode: code === undefined ? exitCodes.notAcquired : checkWhole('-E', numberFrom('-E', code), 0, 255),
    request: {
      lockName,
      mode: values.shared ? 'shared' : 'exclusive',
      ttlMs,
      patienceMs: values['no-wait'] ? 0 : waitMs,
      heartbeat: true,
      metadata: { command: command[0], pid: process.pid },
      minHoldMs: waitMsFrom('--min-hold', numberFrom('--min-hold', minHold)),
      maxHoldMs:
        maxHold === undefined ? Number.POSITIVE_INFINITY : ttlMsFrom('--max-hold', numberFrom('--max-hold', maxHold)),
    },
  }
}

/** The TTL of a lease under which a command runs. Throws if it is too short for that. */
function commandTtlMsFrom(text: string): number {
  const seconds = numberFrom('--ttl', text)
  if (seconds * 1_000 >= MIN_COMMAND_TTL_MS) return ttlMsFrom('--ttl', seconds)
  throw new UsageError(
    `--ttl must be at least ${MIN_COMMAND_TTL_MS / 1_000}, but is ${text}: the command is ended if a renewal takes ` +
      'more than a sixth of it, and a busy machine may need as long to send one',
  )
}

const MIN_COMMAND_TTL_MS = 500

/** Warns if a renewal may take so long that the command is ended, although the store can be reached. */
async function warnIfSlow(driver: Driver, { lockName, remainingSeconds }: Lease, ttlMs: number): Promise<void> {
  const mostMs = ttlMs * (LEFT_AT.takeOver - LEFT_AT.terminate)
  // Most grants are fast, and prove it without another request. A slow one may have had to connect, or to wait.
  if (ttlMs - remainingSeconds * 1_000 <= mostMs) return
  const startedMs = systemClock.now().monotonicMs
  await driver.inspect({ lockName, pageSize: 1 })
  const tookMs = systemClock.now().monotonicMs - startedMs
  if (tookMs <= mostMs) return
  say(
    `the store took ${Math.round(tookMs)} ms to answer. The command is ended if a renewal takes more than a sixth of ` +
      `--ttl, which is ${Math.round(mostMs)} ms. Use a longer --ttl`,
  )
}

/** Splits the arguments at `--`. Throws a `UsageError` unless a command follows. */
export function splitCommand(
  name: string,
  args: readonly string[],
): { own: readonly string[]; command: readonly [string, ...string[]] } {
  const end = args.indexOf('--')
  const [program, ...programArgs] = end === -1 ? [] : args.slice(end + 1)
  // An empty text is what a variable of the shell leaves that is not set. It must not cost a grant.
  if (program === undefined || program === '') throw new UsageError(`${name} needs a command after --`)
  return { own: args.slice(0, end), command: [program, ...programArgs] }
}

/** `Number('')` is 0. An empty variable in a script must not mean 0 seconds. */
export function numberFrom(option: string, text: string): number {
  const number = text.trim() === '' ? Number.NaN : Number(text)
  if (Number.isNaN(number)) throw new UsageError(`${option} must be a number, but is "${text}"`)
  return number
}
