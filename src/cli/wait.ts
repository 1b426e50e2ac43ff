import { setTimeout as sleep } from 'node:timers/promises'
import { chooseUrl } from '../connect.ts'
import { holderText } from '../primitives/lock/claims.ts'
import { inspectStore } from '../primitives/on-driver.ts'
import { durationMsFrom } from './duration.ts'
import { exitCodes } from './exit-codes.ts'
import { argumentsOf, oneName, TEXT, withDriver } from './store.ts'
import { say } from './text.ts'

/** Waits until the lock is free. It takes no place in the queue, and does not keep the lock free. */
export function main(args: readonly string[]): Promise<number> {
  const { values, positionals } = argumentsOf(args, { timeout: TEXT })
  const lockName = oneName('wait', positionals)
  const { timeout } = values
  const timeoutMs = timeout === undefined ? Number.POSITIVE_INFINITY : durationMsFrom('--timeout', timeout)
  const untilMs = performance.now() + timeoutMs
  return withDriver(chooseUrl(values.url), async (driver) => {
    let reported: string | undefined
    for (let pauseMs = FIRST_PAUSE_MS; ; pauseMs = Math.min(pauseMs * 2, MAX_PAUSE_MS)) {
      const [holder] = (await inspectStore(driver, { lockName })).leases
      if (holder === undefined) return 0
      // Once for each holder: a script's log must not fill up.
      if (holder.claimId !== reported) say(`"${lockName}" is held by ${holderText(holder)}`)
      reported = holder.claimId
      const leftMs = untilMs - performance.now()
      if (leftMs <= 0) return exitCodes.notAcquired
      await sleep(Math.min(pauseMs, leftMs))
    }
  })
}

const FIRST_PAUSE_MS = 50
const MAX_PAUSE_MS = 1_000
