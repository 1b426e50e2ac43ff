import { hostname } from 'node:os'
import { connect } from '../connect.ts'
import { checkWhole, ttlMsFrom, waitMsFrom } from '../core/arguments.ts'
import { type ClaimRequest, Holder } from '../core/claim/holder.ts'
import { Emitter } from '../core/events.ts'
import { threadHeartbeat } from '../core/lease/renewer-thread.ts'
import { CALL_TIMEOUT_MS, MAX_WAIT_MS, STALLED_AFTER_MS, WAITER_TTL_MS } from '../core/limits.ts'
import { checkedLease } from '../core/store-answers.ts'
import { systemClock } from '../core/time/clock.ts'
import { systemRandom } from '../core/time/random.ts'
import { holderText } from '../primitives/lock/result.ts'
import { type Supervised, superviseCommand } from './command.ts'
import { exitCodes, signalCode, UsageError } from './exit-codes.ts'
import { Outage } from './outage.ts'
import { argumentsOf, closeWithin, FLAG, oneName, TEXT, urlFrom } from './store.ts'
import { say } from './text.ts'
import { WaitingReport } from './waiting.ts'

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
  const outage = new Outage({ boundMs: storeTimeoutMs, waitMs: request.waitMs })
  const driver = await outage.open(() => connect(url))
  const events = new Emitter()
  const holder = new Holder({
    driver,
    holderId: `${hostname()}:${process.pid}`,
    clock: systemClock,
    random: systemRandom,
    callTimeoutMs: CALL_TIMEOUT_MS,
    waiterTtlMs: WAITER_TTL_MS,
    events,
    // Renewals run in a thread if the driver can be opened there, so that nothing in this thread delays them.
    ...(driver.reopen !== undefined && {
      thread: threadHeartbeat({ callTimeoutMs: CALL_TIMEOUT_MS, stalledAfterMs: STALLED_AFTER_MS }),
    }),
  })
  const waiting = new WaitingReport(driver, request.lockName)
  events.on('waiting', () => waiting.begin())
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
    const result = await holder.acquire({ ...request, signal }).finally(() => waiting.end())
    outage.end()
    if (!result.granted) {
      const seen = result.refusal?.holder
      say(`"${request.lockName}" is held by ${seen === undefined ? 'another client' : holderText(checkedLease(seen))}`)
      return { code: conflictCode, isLost: false }
    }
    const running = superviseCommand(command, result.lease, request.ttlMs)
    isRunning = true
    // Signals now go to the command. The other listener comes first: without any listener, the next signal would end
    // this process and leave the command behind. It stays until the lock has been released after the command.
    for (const signal of INTERRUPTS) process.on(signal, stop).off(signal, interrupt)
    ended = await running
    isRunning = false
    leftMs = result.lease.remainingSeconds * 1_000
    // The release may find that the lease had ended since the last heartbeat, by force or because the store lost it.
    events.on('lost', () => {
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

function parse(args: readonly string[]): LockedRun {
  const { own, command } = splitCommand('run', args)
  const { values, positionals } = argumentsOf(own, {
    ttl: TEXT,
    wait: TEXT,
    'no-wait': FLAG,
    shared: FLAG,
    'min-hold': TEXT,
    'max-hold': TEXT,
    'store-timeout': TEXT,
    'conflict-exit-code': { ...TEXT, short: 'E' },
  })
  const lockName = oneName('run', positionals)
  const url = urlFrom(values.url)
  if (values['no-wait'] && values.wait !== undefined) throw new UsageError('--wait and --no-wait exclude each other')
  const ttlMs = ttlMsFrom('--ttl', numberFrom('--ttl', values.ttl ?? '30'))
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
      waitMs: values['no-wait'] ? 0 : waitMs,
      heartbeat: true,
      metadata: { command: command[0], pid: process.pid },
      minHoldMs: waitMsFrom('--min-hold', numberFrom('--min-hold', minHold)),
      maxHoldMs:
        maxHold === undefined ? Number.POSITIVE_INFINITY : ttlMsFrom('--max-hold', numberFrom('--max-hold', maxHold)),
    },
  }
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
