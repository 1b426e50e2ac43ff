import { noFaults } from '../../src/testing/faulty-driver.ts'
import type { Disturbance, Job, Plan, ProcessPlan } from './plan.ts'

/** Plans with one part removed, the largest part first. The smallest plan that still fails is the easiest to read. */
export function* simplerPlans(plan: Plan): Generator<Plan> {
  for (const processes of without(plan.processes)) {
    // Otherwise the disturbances of a removed process would hit the process after it.
    const gone = plan.processes.findIndex((each, index) => each !== processes[index])
    const disturbances = plan.disturbances.flatMap((each): Disturbance[] => {
      if (!('process' in each)) return [each]
      if (each.process === gone) return []
      return [each.process > gone ? { ...each, process: each.process - 1 } : each]
    })
    yield { ...plan, processes, disturbances }
  }
  const { requestMs, replyMs, wakeMs, lateMs } = plan.faults
  const reliable = { ...noFaults, requestMs, replyMs, wakeMs, lateMs }
  if (JSON.stringify(plan.faults) !== JSON.stringify(reliable)) yield { ...plan, faults: reliable }
  for (const chance of CHANCES) {
    if (plan.faults[chance] > 0) yield { ...plan, faults: { ...plan.faults, [chance]: 0 } }
  }
  for (const span of ['requestMs', 'replyMs', 'wakeMs'] as const) {
    if (plan.faults[span][1] > 0) yield { ...plan, faults: { ...plan.faults, [span]: [0, 0] } }
  }
  for (const disturbances of without(plan.disturbances)) yield { ...plan, disturbances }
  for (const [index, process] of plan.processes.entries()) {
    for (const simpler of simplerProcesses(process)) yield { ...plan, processes: plan.processes.with(index, simpler) }
  }
}

const CHANCES = [
  'lostRequest',
  'lostReply',
  'lateRequest',
  'lateReply',
  'failing',
  'entryFails',
  'lostWake',
] as const satisfies readonly (keyof Plan['faults'])[]

function* simplerProcesses(process: ProcessPlan): Generator<ProcessPlan> {
  for (const tasks of without(process.tasks)) yield { ...process, tasks }
  if (process.rate !== 1 || process.wallOffsetMs !== 0) yield { ...process, rate: 1, wallOffsetMs: 0 }
  for (const [index, jobs] of process.tasks.entries()) {
    for (const fewer of without(jobs)) yield { ...process, tasks: process.tasks.with(index, fewer) }
    for (const [place, job] of jobs.entries()) {
      for (const simpler of simplerJobs(job)) {
        yield { ...process, tasks: process.tasks.with(index, jobs.with(place, simpler)) }
      }
    }
  }
}

function* simplerJobs(job: Job): Generator<Job> {
  for (const acts of without(job.acts)) yield { ...job, acts }
  if (job.minHoldMs > 0) yield { ...job, minHoldMs: 0 }
  const { abortAfterMs, ...patient } = job
  if (abortAfterMs !== undefined) yield patient
  if (job.via !== 'acquire') yield { ...job, via: 'acquire' }
  if (job.end !== 'release' && job.end !== 'abandon') yield { ...job, end: 'release' }
}

function* without<T>(list: readonly T[]): Generator<readonly T[]> {
  for (const index of list.keys()) yield list.toSpliced(index, 1)
}
