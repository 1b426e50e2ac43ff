import { checkText } from '../../core/arguments.ts'
import { InvalidArgumentError } from '../../core/errors.ts'
import { MAX_NAME_LENGTH } from '../../core/limits.ts'
import type { OnceOnly, TickOptions, TickResult } from './once-only.ts'

/** The `RunCoordinator` of node-cron 4.6 and later. */
export interface RunCoordinator {
  /**
   * Whether this instance runs the task now. It resolves with false for a tick that does not run here, and rejects with
   * `StoreError` if the store does not answer.
   */
  shouldRun(key: string): Promise<boolean>
  /** The task has ended, well or not. Resolves when the tick is recorded, and rejects if its lease was lost. */
  onComplete(key: string): Promise<void>
}

/**
 * Lets node-cron run each task on one instance: `cron.setRunCoordinator(runCoordinator(jobs))`, and for each task
 * `cron.schedule('0 3 * * *', report, { name: 'report', distributed: true })`. Each task is a schedule of `everyTick`
 * with the name of the task, which has to be the same in every instance.
 *
 * node-cron does not say whether the task failed, so a tick that failed is done: no other instance repeats it.
 *
 * @throws `InvalidArgumentError`
 */
export function runCoordinator(jobs: Pick<OnceOnly, 'everyTick'>, options: TickOptions = {}): RunCoordinator {
  const scheduleOf = (name: string): Ticks => jobs.everyTick(name, (_, tick?: Tick) => tick?.begin(), options)
  // Finds mistakes now, and not at the first tick.
  scheduleOf('checks the options')
  const schedules = new Map<string, Ticks>()
  const runs = new Map<string, { complete(): void; ended: Promise<unknown> }>()
  return {
    async shouldRun(key) {
      const { name, date } = parsed(key)
      const ticks = schedules.get(name) ?? scheduleOf(name)
      schedules.set(name, ticks)
      return new Promise((resolve, reject) => {
        const begin = (): Promise<void> => {
          resolve(true)
          return new Promise((complete) => runs.set(key, { complete, ended }))
        }
        const ended = ticks({ date, begin })
        ended.then(() => resolve(false), reject)
      })
    },
    async onComplete(key) {
      const run = runs.get(key)
      runs.delete(key)
      run?.complete()
      await run?.ended
    },
  }
}

interface Tick {
  readonly date: Date
  begin(): Promise<void>
}

type Ticks = (tick: Tick) => Promise<TickResult<void>>

/** The key is the name of the task, a colon and the scheduled time. */
function parsed(key: string): { name: string; date: Date } {
  checkText('key', key, MAX_NAME_LENGTH)
  const [, name = '', time = ''] = /^(.+):(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)$/s.exec(key) ?? []
  if (name === '') throw new InvalidArgumentError('key', key, 'the name of a task, a colon and the scheduled time')
  return { name, date: new Date(time) }
}
