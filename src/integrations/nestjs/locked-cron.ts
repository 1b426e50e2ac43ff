import { ttlMsFrom } from '../../core/arguments.ts'
import { OnceOnly, type TickOptions, type TickResult } from '../../primitives/once/once-only.ts'
import { decorate } from './decorate.ts'
import type { LockedDecorator } from './locked.ts'

/** `@nestjs/schedule` passes no tick time, so the period of the schedule is required. */
export interface LockedCronOptions extends Omit<TickOptions, 'signal'> {
  everySeconds: number
}

/**
 * A method decorator for a schedule of `@nestjs/schedule`, beside its `@Cron` or `@Interval`: each tick runs on one
 * instance of the application, as with `OnceOnly.everyTick`. The method resolves with a `TickResult`, which the
 * scheduler ignores; it rejects, and Nest logs the error, if the job fails or the store does not answer.
 *
 * The tick is the current time rounded down to `everySeconds`, counted from midnight UTC on days, so pass the period:
 * 60 for every minute, 86_400 for once a day. `name` is the name of the schedule, the same in every instance.
 *
 * @throws `InvalidArgumentError`
 *
 * @example
 * ```ts
 * class ReportService {
 *   @Cron('0 3 * * *')
 *   @LockedCron('daily-report', { everySeconds: 86_400 })
 *   async report(): Promise<void> {}
 * }
 * ```
 */
export function LockedCron(name: string, options: LockedCronOptions): LockedDecorator<[]> {
  ttlMsFrom('everySeconds', options?.everySeconds)
  return (target: object, key: string | symbol, descriptor: PropertyDescriptor | undefined) => {
    // One schedule for each instance of the class: its ticks wait for each other.
    const schedules = new WeakMap<object, (method: () => unknown) => Promise<TickResult<unknown>>>()
    decorate(
      '@LockedCron',
      { target, key, descriptor, provider: OnceOnly, property: JOBS },
      (jobs, _args, method, instance) => {
        const schedule = schedules.get(instance) ?? scheduleOf(jobs, name, options)
        schedules.set(instance, schedule)
        return schedule(method)
      },
    )
  }
}

function scheduleOf(jobs: OnceOnly, name: string, options: LockedCronOptions) {
  const ticks = jobs.everyTick(name, (_, job: Job | undefined) => job?.(), options)
  return (method: Job) => ticks(method)
}

const JOBS = Symbol('holdfast.jobs')

type Job = () => unknown
