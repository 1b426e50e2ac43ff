import { DistributedLock } from '../../src/primitives/lock/distributed-lock.ts'
import { type Faults, faultyDriver, noFaults } from '../../src/testing/faulty-driver.ts'
import { seededRandom, VirtualTime } from '../../src/testing/virtual-clock.ts'
import { claimRules } from './claim-rules.ts'
import { type Counts, History } from './history.ts'
import { type Host, runJob } from './jobs.ts'
import { leaseRules } from './lease-rules.ts'
import { observedDriver } from './observe.ts'
import { type Job, type Plan, planFrom, storeSteps } from './plan.ts'
import { protectedResource } from './resource.ts'
import { type OpenStore, simulatedStore } from './store.ts'
import { storeRules } from './store-rules.ts'

export interface SimulationOptions {
  readonly openStore: OpenStore
  /** Keeps a line for every event, to be read when a rule was broken. */
  readonly trace?: boolean
}

export interface SimulationReport {
  readonly plan: Plan
  /** Empty: every rule held. */
  readonly violations: readonly string[]
  readonly counts: Counts
  readonly trace: readonly string[]
}

/**
 * Runs core and primitives through one history, in virtual time, on a store and a network that fail as planned, and
 * checks the safety rules at every step. The same plan, or the same seed, gives the same history.
 */
export async function simulate(planOrSeed: Plan | number, options: SimulationOptions): Promise<SimulationReport> {
  const plan = typeof planOrSeed === 'number' ? planFrom(planOrSeed) : planOrSeed
  const time = new VirtualTime()
  const history = new History(plan, time, options.trace ?? false)
  const onRejection = (reason: unknown): void => history.violate('no rejection is left unhandled', String(reason))
  process.on('unhandledRejection', onRejection)
  try {
    await run(history, options.openStore)
  } finally {
    process.off('unhandledRejection', onRejection)
  }
  return { plan, violations: history.violations, counts: history.counts, trace: history.trace }
}

async function run(history: History, openStore: OpenStore): Promise<void> {
  const { plan, time } = history
  const random = seededRandom(plan.seed)
  const storeClock = time.clock()
  const broadcasts = plan.mode === 'wakes'
  const store = simulatedStore({ open: openStore, clock: storeClock, time, broadcasts })
  const ofStore = storeRules(history, storeClock)
  const ofLeases = leaseRules(history, ofStore)
  const ofClaims = claimRules(history, ofStore, ofLeases)
  const resource = protectedResource(history)
  const watchedStore = observedDriver(store.driver, ofStore)
  const jobs = new Map<string, Job>()

  const hosts = plan.processes.map(({ rate, wallOffsetMs, reacquire }, index) => {
    const clock = time.clock({ rate, wallOffsetMs, resumeOrder: plan.resumeOrder })
    const process = { name: `process ${index}`, clock, reacquires: reacquire === 'extend', asking: new Set<Job>() }
    const partition = { untilMs: 0 }
    const faults = (): Faults => (time.nowMs < partition.untilMs ? CUT_OFF : faultsNow(history))
    const faulty = faultyDriver(watchedStore, { time, clock, random: random.fork(), faults, mode: plan.mode })
    const observer = ofClaims.observer(process, (claim) => jobs.get(String(claim.metadata?.['job'])))
    const lock = new DistributedLock({
      driver: observedDriver(faulty, observer),
      holderId: process.name,
      reacquire,
      callTimeoutSeconds: plan.callTimeoutMs / 1_000,
      waiterTtlSeconds: plan.waiterTtlMs / 1_000,
      clock,
      random: random.fork(),
    })
    lock.on('lost', ({ claimId }) => {
      const claim = history.claims.get(claimId)
      if (claim !== undefined) ofLeases.lost(claim)
    })
    clock.onResume.add(() => {
      history.note(() => `${process.name}: runs again`)
      ofLeases.resumed([...history.claims.values()].filter((claim) => claim.process === process))
    })
    const host: Host = { process, lock, history, claims: ofClaims, leases: ofLeases, resource }
    return { ...host, faulty, partition }
  })

  for (const disturbance of plan.disturbances) {
    time.in(disturbance.atMs, () => {
      history.note(() => JSON.stringify(disturbance))
      if (disturbance.what === 'step store') {
        ofStore.stepping()
        storeClock.stepWall(disturbance.ms)
      } else if (disturbance.what === 'lose data') {
        store.loseData(disturbance.downMs, disturbance.breaksSubscriptions)
        ofStore.dataLost()
      } else {
        const host = hosts[disturbance.process]
        if (host === undefined) return
        const { clock } = host.process
        if (disturbance.what === 'pause') clock.pause(disturbance.ms)
        else if (disturbance.what === 'suspend') clock.suspend(disturbance.ms)
        else if (disturbance.what === 'step wall') clock.stepWall(disturbance.ms)
        else if (disturbance.what === 'partition') host.partition.untilMs = time.nowMs + disturbance.ms
        else host.faulty.breakSubscription()
      }
    })
  }

  const tasks = hosts.flatMap((host, process) =>
    (plan.processes[process]?.tasks ?? []).map(async (list, task) => {
      for (const [place, job] of list.entries()) {
        const jobId = `${process}.${task}.${place}`
        jobs.set(jobId, job)
        await runJob(job, jobId, host)
      }
    }),
  )
  await settle(history, Promise.all(tasks), 'every job ends')
  // Abandoned work goes on while faults are in force.
  if (plan.kind !== 'calm') await runOn(history, plan.faultsEndMs + 1_000 - time.nowMs)

  for (const claim of history.claims.values()) {
    const used = [...(claim.lease?.uses.keys() ?? [])].find((lease) => lease.held)
    if (used !== undefined) ofLeases.released(claim, used, true)
  }
  await settle(history, Promise.all(hosts.map(({ lock }) => lock.close())), 'every instance closes')
  if (plan.kind === 'calm') await nothingLeft(history, store.driver, 'after closing')
  await runOn(history, MAX_LEASE_MS + storeSteps(plan) + plan.faults.lateMs[1])
  await nothingLeft(history, store.driver, 'after the longest lease')
  ofClaims.end()
  for (const { process } of hosts) {
    if (process.clock.timers > 0)
      history.violate('no timer is left running', `${process.clock.timers} in ${process.name}`)
  }
  const { calls, jobs: begun } = history.counts
  if (calls - history.counts.hammered > CALLS + CALLS_PER_JOB * begun)
    history.violate('calls are bounded', `${calls} for ${begun} jobs`)
}

function faultsNow({ plan, time }: History): Faults {
  if (time.nowMs < plan.faultsEndMs) return plan.faults
  const { requestMs, replyMs, wakeMs, lateMs } = plan.faults
  return { ...noFaults, requestMs, replyMs, wakeMs, lateMs }
}

async function settle(history: History, work: Promise<unknown>, rule: string): Promise<void> {
  const { time, counts } = history
  const untilMs = time.nowMs + MAX_MS
  let settled = false
  work.then(
    () => {
      settled = true
    },
    (error: unknown) => {
      settled = true
      history.violate(rule, String(error))
    },
  )
  const budget = MAX_EVENTS - counts.events
  let left = budget
  const ran = await time.runUntil(() => settled || time.nowMs > untilMs || left-- < 0)
  counts.events += ran
  if (!settled) history.violate(rule, ran >= budget ? `not within ${MAX_EVENTS} events` : 'not in time')
}

async function runOn(history: History, ms: number): Promise<void> {
  if (ms > 0) await history.time.run(ms)
}

async function nothingLeft(
  history: History,
  store: ReturnType<typeof simulatedStore>['driver'],
  when: string,
): Promise<void> {
  const { leases, waiters } = await store.inspect({})
  const left = [...leases, ...waiters].filter(({ claimId }) => {
    const claim = history.claims.get(claimId)
    return when !== 'after closing' || claim?.over !== 'released' || claim.job.minHoldMs === 0
  })
  for (const { claimId, lockName } of left)
    history.violate('nothing is left in the store', `${claimId} on "${lockName}" ${when}`)
}

const CUT_OFF: Faults = { ...noFaults, lostRequest: 0.5, lostReply: 0.5 }

const MAX_MS = 60_000
const MAX_EVENTS = 20_000
/** No lease and no place in the queue lasts longer. */
const MAX_LEASE_MS = 4_000
const CALLS = 400
const CALLS_PER_JOB = 60
