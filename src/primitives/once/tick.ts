import { checkText } from '../../core/arguments.ts'
import { InvalidArgumentError } from '../../core/errors.ts'
import { MAX_KEY_LENGTH, namesOf } from './results.ts'

/**
 * The tick of a schedule that a call belongs to, as a text that is the same in every instance. It comes from what the
 * scheduler passes, or else from the current time and the period. The types contain only the members that are read, so
 * that no scheduler is a dependency.
 *
 * | scheduler | passes | the tick |
 * | --- | --- | --- |
 * | BullMQ | the job | its id, which contains the scheduled time and stays the same on a retry |
 * | node-cron | a context with `date` | the scheduled time |
 * | croner | the job, with `currentRun` and `nextRun` | the latest scheduled time before or at the start of the run |
 * | node-schedule, or a call of your own | a `Date` | that time |
 */
export function tickOf(context: unknown, nowMs: number, everyMs: number | undefined): string {
  if (typeof context === 'object' && context !== null) {
    const passed = context as SchedulerContext
    if (context instanceof Date) return isoOf(context)
    if (passed.date instanceof Date) return isoOf(passed.date)
    if (typeof passed.id === 'string' && typeof passed.timestamp === 'number') {
      checkText('tick', passed.id, MAX_TICK_LENGTH)
      return passed.id
    }
    if (typeof passed.currentRun === 'function' && typeof passed.nextRun === 'function') {
      return isoOf(scheduledTime(passed as CronerJob, nowMs))
    }
  }
  if (everyMs === undefined) {
    const message = 'everySeconds is required when the scheduler passes no tick time'
    throw new InvalidArgumentError('everySeconds', everyMs, 'a number of seconds', message)
  }
  // Timers fire late, and sometimes slightly early. Schedules use whole seconds: half a second of grace keeps those
  // away from the edge.
  const graceMs = Math.min(GRACE_MS, everyMs / 2)
  return isoOf(new Date(Math.floor((nowMs + graceMs) / everyMs) * everyMs))
}

/**
 * The lock of a run, and the record that the tick is done. The lock has the name of the schedule, so that one tick runs
 * at a time. With `overlap`, each tick has its own. The tick has no colon there: in the templates of metrics, `{id}`
 * ends at one.
 */
export function tickNames(name: string, tick: string, overlap: boolean): { key: string; run: string; done: string } {
  const key = `${name}@${tick}`
  return { key, run: `cron:${name}${overlap ? `@${tick.replaceAll(':', '.')}` : ''}`, done: namesOf(key).done }
}

export const checkTickName = (name: string): void => checkText('name', name, MAX_TICK_NAME_LENGTH)

/** Room for the ids of BullMQ's repeated jobs. It bounds the name, so that a name fits with every tick or with none. */
const MAX_TICK_LENGTH = 64
/** The key is the name, "@" and the tick. */
const MAX_TICK_NAME_LENGTH = MAX_KEY_LENGTH - 1 - MAX_TICK_LENGTH

interface SchedulerContext extends Partial<CronerJob> {
  date?: unknown
  id?: unknown
  timestamp?: unknown
}

interface CronerJob {
  currentRun(): Date | null
  nextRun(after: Date): Date | null
}

/**
 * Croner says when a run began, not its scheduled time. So this looks back to find a scheduled time, and takes the
 * last.
 */
function scheduledTime(job: CronerJob, nowMs: number): Date {
  const startedMs = job.currentRun()?.getTime() ?? nowMs
  for (let backMs = 2_000; backMs < MAX_LOOK_BACK_MS; backMs *= 2) {
    let found = job.nextRun(new Date(startedMs - backMs))
    if (found === null || found.getTime() > startedMs) continue
    for (;;) {
      const later = job.nextRun(found)
      if (later === null || later.getTime() > startedMs || later.getTime() <= found.getTime()) return found
      found = later
    }
  }
  return new Date(Math.floor(startedMs / 1_000) * 1_000)
}

function isoOf(date: Date): string {
  if (Number.isNaN(date.getTime())) throw new InvalidArgumentError('tick', date, 'a valid date')
  return date.toISOString()
}

const GRACE_MS = 500
const MAX_LOOK_BACK_MS = 2 * 366 * 24 * 3_600_000
