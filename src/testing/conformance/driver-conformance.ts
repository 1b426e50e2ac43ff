import type { Capabilities } from '../../core/driver.ts'
import { type BreakableStore, registerBrokenStore } from './driver/broken-store.ts'
import { expiry } from './driver/expiry.ts'
import { force } from './driver/force.ts'
import { groups } from './driver/groups.ts'
import { inspection } from './driver/inspection.ts'
import { leases } from './driver/leases.ts'
import { lists } from './driver/lists.ts'
import { queue } from './driver/queue.ts'
import { rate } from './driver/rate.ts'
import { rateChanges } from './driver/rate-changes.ts'
import { ratePolicies } from './driver/rate-policies.ts'
import { sharing } from './driver/sharing.ts'
import { tokens } from './driver/tokens.ts'
import { values } from './driver/values.ts'
import { wakeUps } from './driver/wake-ups.ts'
import { acquireFaults } from './faults/acquire.ts'
import { messageFaults } from './faults/messages.ts'
import { releaseFaults } from './faults/release.ts'
import { renewalFaults } from './faults/renewal.ts'
import { waitingFaults } from './faults/waiting.ts'
import { deadlocks } from './lock/deadlocks.ts'
import { lockEnding } from './lock/ending.ts'
import { forcedReleases } from './lock/force.ts'
import { answerSignals, handOver } from './lock/hand-over.ts'
import { holdTimes } from './lock/hold-times.ts'
import { inspectAndPing } from './lock/inspect-and-ping.ts'
import { lockInstance } from './lock/instance.ts'
import { reentry } from './lock/reentry.ts'
import { severalLocks } from './lock/several-locks.ts'
import { uses } from './lock/uses.ts'
import { mutexExclusion } from './mutex/exclusion.ts'
import { mutexLoss } from './mutex/loss.ts'
import { mutexWaiting } from './mutex/waiting.ts'
import { lockSubjects, mutexForms, mutexSubjects } from './mutex-subjects.ts'
import { type GroupContext, registerGroup, type TestRunner } from './runner.ts'
import { readersAndWriters } from './sharing/readers-and-writers.ts'
import { semaphores } from './sharing/semaphores.ts'
import type { ConformanceStore } from './store.ts'
import { withTestContext } from './test-context.ts'

export interface ConformanceOptions<Breakable extends ConformanceStore = ConformanceStore> {
  readonly runner: TestRunner
  /** The first words of every test's title, such as `redis through ioredis`. */
  readonly name: string
  /** The driver's own constant. It decides which tests are skipped. */
  readonly capabilities: Capabilities
  /** Called once, before the first test. */
  open(): Promise<ConformanceStore>
  /**
   * Tests `DistributedLock` and no other primitive. Use it for the second client of a driver whose first client runs
   * everything: the other primitives ask the driver for nothing that its own tests do not.
   * @default false
   */
  readonly lockOnly?: boolean
  /** How tests damage the store on purpose: stop it, or make it refuse writes. Only for a store that allows it. */
  readonly breakable?: BreakableStore<Breakable>
}

/**
 * Registers every test that a driver has to pass: what the driver interface promises, what `DistributedLock` makes of
 * it when two instances on one store act as two processes, and what happens when calls fail, hang or lose their
 * replies.
 *
 * The suite runs in real time. Each test uses its own lock names, so a store may be shared and the tests may run
 * concurrently. A test whose title ends with `(skipped: …)` needs something that `capabilities` rules out.
 *
 * How to read a failure: fix the groups `driver interface: …` first, because the other groups are built on them. A
 * number in a title, such as `rule 7` or `failure 12`, refers to the safety documentation of Holdfast. A message
 * `waited … ms for …` means that something that had to happen did not: a wake-up, a grant, the end of a lease.
 *
 * @example
 * ```ts
 * driverConformance({
 *   runner: { describe, it: it.concurrent, beforeAll, afterAll },
 *   name: 'my driver',
 *   capabilities,
 *   async open() {
 *     const store = await startStore()
 *     return { driver: async () => myDriver({ url: store.url }), close: () => store.stop() }
 *   },
 * })
 * ```
 */
export function driverConformance<Breakable extends ConformanceStore>(options: ConformanceOptions<Breakable>): void {
  const { runner, name, capabilities, open, breakable, lockOnly = false } = options
  runner.describe(`${name}: conformance`, () => {
    let store: ConformanceStore | undefined
    runner.beforeAll(async () => {
      store = await open()
    })
    runner.afterAll(async () => {
      await store?.close()
    })
    const context: GroupContext = {
      runner,
      capabilities,
      withTestContext(body) {
        if (store === undefined) throw new Error('the store was not opened: the runner did not run `beforeAll`')
        return withTestContext(store, capabilities, body)
      },
    }

    registerGroup(context, 'driver interface: leases', leases)
    registerGroup(context, 'driver interface: lists', lists)
    registerGroup(context, 'driver interface: expiry', expiry, ['ttl'])
    registerGroup(context, 'driver interface: fencing tokens', tokens, ['fencing'])
    registerGroup(context, 'driver interface: shared claims and limits', sharing, ['shared'])
    registerGroup(context, 'driver interface: the queue', queue, ['queue'])
    registerGroup(context, 'driver interface: wake-ups', wakeUps, ['wake'])
    registerGroup(context, 'driver interface: claims with force', force, ['forceUpTo'])
    registerGroup(context, 'driver interface: groups', groups, ['groups'])
    registerGroup(context, 'driver interface: inspect', inspection)
    registerGroup(context, 'driver interface: names and values', values)
    registerGroup(context, 'driver interface: rate limits', rate, ['rate'])
    registerGroup(context, 'driver interface: several rate limits', ratePolicies, ['rate'])
    registerGroup(context, 'driver interface: rate limits that are reset or blocked', rateChanges, ['rate'])
    if (breakable !== undefined) registerBrokenStore(context, breakable)

    for (const subject of lockOnly ? lockSubjects : mutexSubjects) {
      const { needs } = subject
      registerGroup(context, `mutex by ${subject.name}: exclusion`, mutexExclusion(subject), needs)
      registerGroup(context, `mutex by ${subject.name}: waiting`, mutexWaiting(subject), needs)
      registerGroup(context, `mutex by ${subject.name}: loss`, mutexLoss(subject), needs)
    }
    if (!lockOnly) {
      for (const form of mutexForms) {
        registerGroup(context, `mutex by ${form.name}: exclusion`, mutexExclusion(form), form.needs)
      }
      registerGroup(context, 'readers and writers', readersAndWriters, ['shared'])
      registerGroup(context, 'semaphores', semaphores, ['limit'])
      registerGroup(context, 'several locks at once', severalLocks)
      registerGroup(context, 'deadlocks', deadlocks, ['queue'])
    }
    registerGroup(context, 'DistributedLock: an instance and its leases', lockInstance)
    registerGroup(context, 'DistributedLock: inspect, isLocked and ping', inspectAndPing)
    registerGroup(context, 'DistributedLock: a lease that is handed over', handOver, ['ttl'])
    registerGroup(context, 'DistributedLock: an abort while an answer is awaited', answerSignals)
    registerGroup(context, 'DistributedLock: waiting, losing and closing', lockEnding)
    registerGroup(context, 'DistributedLock: how long a lock is held', holdTimes)
    registerGroup(context, 'DistributedLock: re-entry', reentry)
    registerGroup(context, 'DistributedLock: several uses of a lease', uses)
    registerGroup(context, 'DistributedLock: released by force', forcedReleases, ['force'])

    registerGroup(context, 'faults: acquire', acquireFaults)
    registerGroup(context, 'faults: renewal', renewalFaults)
    registerGroup(context, 'faults: release', releaseFaults)
    registerGroup(context, 'faults: waiting', waitingFaults)
    if (!lockOnly) registerGroup(context, 'faults: messages', messageFaults, ['forceUpTo', 'wake', 'ttl'])
  })
}
