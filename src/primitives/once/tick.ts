import { InvalidArgumentError } from '../../core/errors.ts'

/**
 * Which tick of a schedule a call belongs to, as text that every instance comes to alike: from what the scheduler passes where it tells, else
 * from the present time and the period. Typed by the few members that are read: nobody's scheduler is a dependency.
 *
 * | scheduler | passes | the tick |
 * | --- | --- | --- |
 * | BullMQ | the job | its id, which has the scheduled time in it, and stays the same when it is tried again |
 * | node-cron | a context with `date` | the time it was scheduled for |
 * | croner | the job, with `currentRun` and `nextRun` | the latest scheduled time that is not after the run's beginning |
 * | node-schedule, and whoever does it by hand | a `Date` | that time |
 */
export function tickOf(context: unknown, nowMs: number, everyMs: number | undefined): string {
  if (typeof context === 'object' && context !== null) {
    const told = context as SchedulerContext
    if (context instanceof Date) return isoOf(context)
    if (told.date instanceof Date) return isoOf(told.date)
    if (typeof told.id === 'string' && typeof told.timestamp === 'number') return told.id
    if (typeof told.currentRun === 'function' && typeof told.nextRun === 'function') {
      return isoOf(scheduledTime(told as CronerJob, nowMs))
    }
  }
  if (everyMs === undefined) {
    throw new InvalidArgumentError('everySeconds', everyMs, 'said where the scheduler does not tell which tick it is')
  }
  // Timers fire late, and sometimes a hair early. Half a second of grace keeps whole seconds, which is what schedules have, away from the edge.
  const graceMs = Math.min(GRACE_MS, everyMs / 2)
  return isoOf(new Date(Math.floor((nowMs + graceMs) / everyMs) * everyMs))
}

interface SchedulerContext extends Partial<CronerJob> {
  date?: unknown
  id?: unknown
  timestamp?: unknown
}

interface CronerJob {
  currentRun(): Date | null
  nextRun(after: Date): Date | null
}

/** Croner tells when a run began, not what it was scheduled for: looks back far enough to find a scheduled time, and takes the last one. */
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
