import { hostname } from 'node:os'
import { parseArgs } from 'node:util'
import { checkUrl, connect } from '../connect.ts'
import { checkWhole, ttlMsFrom, waitMsFrom } from '../core/arguments.ts'
import { systemClock } from '../core/clock.ts'
import { Emitter } from '../core/events.ts'
import { type ClaimRequest, Holder } from '../core/holder.ts'
import { lockInfoFrom } from '../core/lease.ts'
import { CALL_TIMEOUT_MS, MAX_WAIT_MS, STALLED_AFTER_MS, WAITER_TTL_MS } from '../core/limits.ts'
import { checkLockName } from '../core/names.ts'
import { systemRandom } from '../core/random.ts'
import { superviseCommand } from './command.ts'
import { exitCodes, UsageError } from './exit-codes.ts'
import { urlFrom } from './url.ts'

export async function main(args: readonly string[]): Promise<number> {
  const { url, request, command, conflictCode } = parse(args)
  const driver = await connect(url)
  const holder = new Holder({
    driver,
    holderId: `${hostname()}:${process.pid}`,
    clock: systemClock,
    random: systemRandom,
    callTimeoutMs: CALL_TIMEOUT_MS,
    waiterTtlMs: WAITER_TTL_MS,
    events: new Emitter(),
    // A thread of its own where the driver can be opened there, so that nothing stalls the renewals.
    ...(driver.reopen !== undefined && {
      thread: { callTimeoutMs: CALL_TIMEOUT_MS, stalledAfterMs: STALLED_AFTER_MS },
    }),
  })
  const interrupted = new AbortController()
  const interrupt = (signal: NodeJS.Signals): void => interrupted.abort(signal)
  process.on('SIGINT', interrupt).on('SIGTERM', interrupt)
  try {
    const result = await holder.acquire({ ...request, signal: interrupted.signal })
    if (!result.granted) {
      const seen = result.refusal?.holder && lockInfoFrom(result.refusal.holder)
      const who = seen === undefined ? 'another' : `${seen.holderId} since ${seen.acquiredAt.toISOString()}`
      process.stderr.write(`holdfast: "${request.lockName}" is held by ${who}\n`)
      return conflictCode
    }
    process.off('SIGINT', interrupt).off('SIGTERM', interrupt)
    return await superviseCommand(command, result.lease, request.ttlMs)
  } finally {
    await holder.close()
    await driver.close()
  }
}

interface Parsed {
  readonly url: string
  readonly request: ClaimRequest
  readonly command: readonly [string, ...string[]]
  readonly conflictCode: number
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
  const url = urlFrom(values.url)
  checkUrl(url)
  if (values['no-wait'] && values.wait !== undefined) throw new UsageError('--wait and --no-wait exclude each other')
  const ttlMs = ttlMsFrom('--ttl', numberFrom(values.ttl ?? '30'))
  const waitMs = values.wait === undefined ? MAX_WAIT_MS : waitMsFrom('--wait', numberFrom(values.wait))
  const maxHold = values['max-hold']
  return {
    url,
    command: [program, ...programArgs],
    conflictCode: checkWhole('-E', numberFrom(values['conflict-exit-code'] ?? String(exitCodes.notAcquired)), 0, 255),
    request: {
      lockName,
      mode: values.shared ? 'shared' : 'exclusive',
      ttlMs,
      waitMs: values['no-wait'] ? 0 : waitMs,
      heartbeat: true,
      metadata: { command: program, pid: process.pid },
      minHoldMs: waitMsFrom('--min-hold', numberFrom(values['min-hold'] ?? '0')),
      maxHoldMs: maxHold === undefined ? Number.POSITIVE_INFINITY : ttlMsFrom('--max-hold', numberFrom(maxHold)),
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
        'conflict-exit-code': { type: 'string', short: 'E' },
      },
    })
  } catch (error) {
    throw new UsageError(error instanceof Error ? error.message : String(error))
  }
}

/** `Number('')` is 0, and a lock of 0 seconds is not what an empty variable in a script meant. */
const numberFrom = (text: string): number => (text.trim() === '' ? Number.NaN : Number(text))
