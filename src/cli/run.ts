import { constants, hostname } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { checkUrl, chooseUrl, connect } from '../connect.ts'
import { checkWhole, ttlMsFrom, waitMsFrom } from '../core/arguments.ts'
import { type ClaimRequest, Holder } from '../core/claim/holder.ts'
import { Emitter } from '../core/events.ts'
import { messageOf } from '../core/foreign-errors.ts'
import { threadHeartbeat } from '../core/lease/renewer-thread.ts'
import { CALL_TIMEOUT_MS, MAX_WAIT_MS, STALLED_AFTER_MS, WAITER_TTL_MS } from '../core/limits.ts'
import { checkLockName } from '../core/names.ts'
import { systemClock } from '../core/time/clock.ts'
import { systemRandom } from '../core/time/random.ts'
import { holderText } from '../primitives/lock/result.ts'
import { superviseCommand } from './command.ts'
import { exitCodes, UsageError, usageErrorFrom } from './exit-codes.ts'
import { Outage } from './outage.ts'
import { say } from './text.ts'

export async function main(args: readonly string[]): Promise<number> {
  const { url, request, command, conflictCode, storeTimeoutMs } = parse(args)
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
    // A thread of its own where the driver can be opened there, so that nothing stalls the renewals.
    ...(driver.reopen !== undefined && {
      thread: threadHeartbeat({ callTimeoutMs: CALL_TIMEOUT_MS, stalledAfterMs: STALLED_AFTER_MS }),
    }),
  })
  const interrupted = new AbortController()
  const interrupt = (signal: NodeJS.Signals): void => interrupted.abort(signal)
  for (const signal of INTERRUPTS) process.on(signal, interrupt)
  let leftMs = 0
  let code = 0
  let isLostLate = false
  try {
    const signal = AbortSignal.any([interrupted.signal, outage.signal])
    const result = await holder.acquire({ ...request, signal })
    outage.end()
    if (!result.granted) {
      const seen = result.refusal?.holder
      say(`"${request.lockName}" is held by ${seen === undefined ? 'another' : holderText(seen)}`)
      return conflictCode
    }
    const running = superviseCommand(command, result.lease, request.ttlMs)
    // Only now that signals go to the command: without anybody listening, the next one would end us and leave it behind.
    // From here on to the end they do nothing to us: when the command is over, the lock is still to be given back.
    for (const signal of INTERRUPTS) process.on(signal, () => {}).off(signal, interrupt)
    code = await running
    leftMs = result.lease.remainingSeconds * 1_000
    // The release may find that the store had ended the lease before: between two heartbeats, by force or with its data.
    events.on('lost', () => {
      isLostLate = true
    })
  } catch (error) {
    if (outage.signal.aborted) {
      say(outage.message)
      return exitCodes.unavailable
    }
    if (!interrupted.signal.aborted) throw error
    return exitCodes.signal + constants.signals[interrupted.signal.reason as NodeJS.Signals]
  } finally {
    outage.end()
    await closeWithin(Math.max(1_000, leftMs), async () => {
      await holder.close()
      await driver.close()
    })
  }
  if (!isLostLate || code === exitCodes.lost) return code
  say(`the lease on "${request.lockName}" had ended before the command did`)
  return exitCodes.lost
}

/**
 * Waits for a store that does not answer only as long as there is something to give back; then the lease has ended by itself. Whatever becomes
 * of it, it is the command's code that counts.
 */
async function closeWithin(ms: number, close: () => Promise<void>): Promise<void> {
  const closed = new AbortController()
  const said = (error: unknown): void => say(`closing the store: ${messageOf(error)}`)
  await Promise.race([close().catch(said), sleep(ms, undefined, { signal: closed.signal })])
  closed.abort()
}

/** What ends the waiting. From the grant on, signals are the command's. */
const INTERRUPTS: readonly NodeJS.Signals[] = ['SIGINT', 'SIGTERM', 'SIGHUP']

interface Parsed {
  readonly url: string
  readonly request: ClaimRequest
  readonly command: readonly [string, ...string[]]
  readonly conflictCode: number
  readonly storeTimeoutMs: number
}

function parse(args: readonly string[]): Parsed {
  const end = args.indexOf('--')
  const [program, ...programArgs] = end === -1 ? [] : args.slice(end + 1)
  if (program === undefined) throw new UsageError('run needs a command after --')
  const { values, positionals } = parseOwn(end === -1 ? args : args.slice(0, end))
  const [lockName, ...more] = positionals
  if (lockName === undefined || more.length > 0)
    throw new UsageError(`run needs one lock name, not ${positionals.length}`)
  checkLockName(lockName)
  const url = chooseUrl(values.url)
  checkUrl(url)
  if (values['no-wait'] && values.wait !== undefined) throw new UsageError('--wait and --no-wait exclude each other')
  const ttlMs = ttlMsFrom('--ttl', numberFrom('--ttl', values.ttl ?? '30'))
  const waitMs = values.wait === undefined ? MAX_WAIT_MS : waitMsFrom('--wait', numberFrom('--wait', values.wait))
  const { 'min-hold': minHold = '0', 'max-hold': maxHold, 'conflict-exit-code': code } = values
  return {
    url,
    command: [program, ...programArgs],
    storeTimeoutMs: ttlMsFrom('--store-timeout', numberFrom('--store-timeout', values['store-timeout'] ?? '60')),
    conflictCode: code === undefined ? exitCodes.notAcquired : checkWhole('-E', numberFrom('-E', code), 0, 255),
    request: {
      lockName,
      mode: values.shared ? 'shared' : 'exclusive',
      ttlMs,
      waitMs: values['no-wait'] ? 0 : waitMs,
      heartbeat: true,
      metadata: { command: program, pid: process.pid },
      minHoldMs: waitMsFrom('--min-hold', numberFrom('--min-hold', minHold)),
      maxHoldMs:
        maxHold === undefined ? Number.POSITIVE_INFINITY : ttlMsFrom('--max-hold', numberFrom('--max-hold', maxHold)),
    },
  }
}

function parseOwn(args: readonly string[]) {
  try {
    return parseArgs({
      args: [...args],
      allowPositionals: true,
      options: {
        url: { type: 'string' },
        ttl: { type: 'string' },
        wait: { type: 'string' },
        'no-wait': { type: 'boolean' },
        shared: { type: 'boolean' },
        'min-hold': { type: 'string' },
        'max-hold': { type: 'string' },
        'store-timeout': { type: 'string' },
        'conflict-exit-code': { type: 'string', short: 'E' },
      },
    })
  } catch (error) {
    throw usageErrorFrom(error)
  }
}

/** `Number('')` is 0, and a lock of 0 seconds is not what an empty variable in a script meant. */
function numberFrom(option: string, text: string): number {
  const number = text.trim() === '' ? Number.NaN : Number(text)
  if (Number.isNaN(number)) throw new UsageError(`${option} must be a number, but is "${text}"`)
  return number
}
