import { chooseUrl } from '../connect.ts'
import { checkWhole } from '../core/arguments.ts'
import { RateLimitedError } from '../core/errors.ts'
import { MAX_WAIT_MS } from '../core/limits.ts'
import { RateLimiter } from '../primitives/rate/rate-limiter.ts'
import { runCommand } from './command.ts'
import { durationMsFrom } from './duration.ts'
import { exitCodes, UsageError } from './exit-codes.ts'
import { numberFrom, splitCommand } from './run.ts'
import { argumentsOf, FLAG, oneName, TEXT, withDriver } from './store.ts'
import { say } from './text.ts'

/** Runs a command as often as a limit allows, over all machines. */
export async function main(args: readonly string[]): Promise<number> {
  const { url, key, limit, periodSeconds, burst, waitSeconds, command } = parse(args)
  const isAllowed = await withDriver(url, async (driver) => {
    const limits = { limit, periodSeconds, ...(burst !== undefined && { burst }) }
    await using limiter = new RateLimiter({ driver, limits })
    try {
      await limiter.wait(key, { blockingTimeoutSeconds: waitSeconds })
      return true
    } catch (error) {
      if (!(error instanceof RateLimitedError)) throw error
      say(error.message)
      return false
    }
  })
  return isAllowed ? runCommand(command) : exitCodes.notAcquired
}

function parse(args: readonly string[]) {
  const { own, command } = splitCommand('limit', args)
  const { values, positionals } = argumentsOf(own, { rate: TEXT, burst: TEXT, wait: TEXT, 'no-wait': FLAG })
  const key = oneName('limit', positionals, 'key')
  const { rate, burst, wait, 'no-wait': noWait } = values
  if (rate === undefined) throw new UsageError('limit needs --rate, such as 10/s, 100/m or 1000/h')
  if (noWait && wait !== undefined) throw new UsageError('--wait and --no-wait exclude each other')
  const waitMs = wait === undefined ? MAX_WAIT_MS : durationMsFrom('--wait', wait)
  return {
    url: chooseUrl(values.url),
    key,
    ...rateFrom(rate),
    ...(burst !== undefined && { burst: checkWhole('--burst', numberFrom('--burst', burst), 1, MAX_LIMIT) }),
    waitSeconds: noWait ? 0 : waitMs / 1_000,
    command,
  }
}

/** `10/s`, `100/m`, `1000/h` or `5/d`. A number before the unit: `10/30s`. */
function rateFrom(text: string): { limit: number; periodSeconds: number } {
  const [, limit, period] = /^(\d+)\/(\d*[dhms])$/.exec(text.trim()) ?? []
  if (limit === undefined || period === undefined) {
    throw new UsageError(`--rate must be such as 10/s, 100/m, 1000/h or 10/30s, but is "${text}"`)
  }
  const periodMs = durationMsFrom('--rate', /^\d/.test(period) ? period : `1${period}`)
  return { limit: checkWhole('--rate', Number(limit), 1, MAX_LIMIT), periodSeconds: periodMs / 1_000 }
}

const MAX_LIMIT = 1_000_000_000
