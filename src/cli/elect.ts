import { setTimeout as sleep } from 'node:timers/promises'
import { signalCode } from './exit-codes.ts'
import { type LockedRun, lockedRun, runUnderLock, splitCommand } from './run.ts'
import { argumentsOf, oneName, TEXT } from './store.ts'
import { say } from './text.ts'

/**
 * Runs a command while this process leads. When the term is lost, the command is ended, and started again in the next
 * term. When the command ends by itself, so does the election. It also ends after SIGINT or SIGTERM, even if the term
 * is lost before the command has ended.
 */
export async function main(args: readonly string[]): Promise<number> {
  const run = parse(args)
  for (;;) {
    const { code, isLost, stoppedBy } = await runUnderLock(run)
    if (!isLost) return code
    if (stoppedBy !== undefined) return signalCode(stoppedBy)
    say(`no longer the leader of "${run.request.lockName}"; campaigning again`)
    // A store that keeps losing the lease must not be asked without a pause.
    await sleep(PAUSE_MS)
  }
}

const PAUSE_MS = 500

function parse(args: readonly string[]): LockedRun {
  const { own, command } = splitCommand('elect', args)
  const { values, positionals } = argumentsOf(own, { ttl: TEXT, 'store-timeout': TEXT })
  return lockedRun({ ...values, ttl: values.ttl ?? '15' }, oneName('elect', positionals, 'name'), command)
}
