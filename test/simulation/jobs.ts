import { AbortedError, ClosedError, LeaseLostError, NotAcquiredError, StoreError } from '../../src/core/errors.ts'
import type { Lease } from '../../src/core/lease/lease.ts'
import { MAX_WITHDRAWAL_MS } from '../../src/core/limits.ts'
import type { LockOptions } from '../../src/primitives/lock/claims.ts'
import type { DistributedLock } from '../../src/primitives/lock/distributed-lock.ts'
import type { ClaimRules } from './claim-rules.ts'
import type { ClaimRecord, History, LeaseTrack, SimulatedProcess } from './history.ts'
import type { LeaseRules } from './lease-rules.ts'
import { type Act, excludes, type Job } from './plan.ts'
import type { Resource } from './resource.ts'

export interface Host {
  readonly process: SimulatedProcess
  readonly lock: DistributedLock
  readonly history: History
  readonly claims: ClaimRules
  readonly leases: LeaseRules
  readonly resource: Resource
}

/** Does one job as a caller of the library would, and reports answers that break the contract. */
export async function runJob(job: Job, jobId: string, host: Host): Promise<void> {
  const { process, history, claims } = host
  await process.clock.sleep(job.afterMs)
  history.counts.jobs += 1
  history.note(() => `${process.name}: job ${jobId} begins`)
  const settled = claims.begin(job, process)
  const options = optionsOf(job, jobId, host)
  try {
    if (job.via === 'withLock') await insideLock(job, options, host, settled)
    else await aroundLease(job, options, host, settled)
  } catch (error) {
    if (error instanceof StoreError || error instanceof AbortedError || error instanceof NotAcquiredError) return
    if (error instanceof LeaseLostError && job.via === 'withLock') return
    history.violate('every failure has its class', `job ${jobId}: ${error}`)
  }
}

type Settled = ReturnType<ClaimRules['begin']>

function optionsOf(job: Job, jobId: string, { process, history }: Host): LockOptions {
  const { abortAfterMs, maxHoldMs } = job
  const abort = abortAfterMs === undefined ? undefined : new AbortController()
  if (abortAfterMs !== undefined) {
    process.clock.setTimer(() => {
      abort?.abort()
      // As soon as its place is withdrawn. The process may be stopped meanwhile.
      process.clock.setTimer(() => {
        history.time.in(0, () => {
          // An extension of a lease that the process already has is not aborted.
          if (history.waitingFor(job.lockName).has(job) && !process.reacquires)
            history.violate('an abort ends the wait', `job ${jobId}`)
        })
      }, MAX_WITHDRAWAL_MS + 5)
    }, abortAfterMs)
    if (abortAfterMs === 0) abort?.abort()
  }
  return {
    timeoutSeconds: job.ttlMs / 1_000,
    blockingTimeoutSeconds: job.waitMs / 1_000,
    heartbeat: job.heartbeat,
    minHoldSeconds: job.minHoldMs / 1_000,
    ...(maxHoldMs !== undefined && { maxHoldSeconds: maxHoldMs / 1_000 }),
    ...(abort !== undefined && { signal: abort.signal }),
    // The rules use it to find the job of a claim.
    metadata: { job: jobId },
  }
}

async function aroundLease(job: Job, options: LockOptions, host: Host, settled: Settled): Promise<void> {
  const lease = await acquired(job, options, host, settled)
  if (lease === undefined) return
  const track = await use(lease, job, host)
  if (job.end === 'abandon') return
  await giveBack(lease, track, job, host)
}

async function acquired(job: Job, options: LockOptions, host: Host, settled: Settled): Promise<Lease | undefined> {
  const { lock } = host
  try {
    if (job.via === 'hold') {
      const lease = await lock.hold(job.lockName, options)
      settled('granted')
      return lease
    }
    const result = await lock.acquire(job.lockName, options)
    settled(result.acquired ? 'granted' : 'refused')
    return result.acquired ? result.lock : undefined
  } catch (error) {
    settled(error instanceof NotAcquiredError ? 'refused' : 'failed')
    throw error
  }
}

async function giveBack(lease: Lease, { claim }: LeaseTrack, job: Job, host: Host): Promise<void> {
  const { lock, claims, leases, history, process } = host
  const wasHeld = lease.held
  // After the store lost its data, a process may believe that it holds two leases on one name. The name may then refer
  // to either.
  const byName = job.end === 'release by name' && wasHeld && excludes(history.plan)
  const ends = wasHeld && leases.released(claim, lease, byName)
  // A lease that is kept for minHoldSeconds first waits for the last renewal of the heartbeat.
  const calls = job.minHoldMs > 0 || process.reacquires ? 2 : 1
  const answered = claims.within(process, calls * history.plan.callTimeoutMs + 3, `the release of "${job.lockName}"`)
  try {
    if (job.end === 'dispose') await lease[Symbol.asyncDispose]()
    else {
      const released = byName ? await lock.release(job.lockName) : await lease.release()
      const isOne = ends ? claim.job.minHoldMs > 0 || claim.endedByStore : wasHeld
      if (released && !isOne) {
        history.violate('a release answers true only for a lease that it ended', claim.claimId)
      }
    }
  } finally {
    answered()
    if (lease.held) history.violate('nothing is held after its release', claim.claimId)
  }
}

async function insideLock(job: Job, options: LockOptions, host: Host, settled: Settled): Promise<void> {
  const { lock, leases, history } = host
  const own = new Error('the job failed by itself')
  let ended: { readonly claim: ClaimRecord; readonly lost: boolean; readonly last: boolean } | undefined
  const run = lock.withLock(
    job.lockName,
    async (lease) => {
      settled('granted')
      const { claim } = await use(lease, job, host)
      const last = lease.held && leases.released(claim, lease)
      ended = { claim, lost: claim.over === 'lost', last }
      if (job.end === 'throw') throw own
    },
    options,
  )
  try {
    await run
    if (ended?.lost !== false || (ended.last && ended.claim.releaseRefused === 'yes'))
      history.violate('withLock tells of a loss', `on "${job.lockName}"`)
    if (job.end === 'throw') history.violate('withLock does not hide an error', `on "${job.lockName}"`)
  } catch (error) {
    if (ended === undefined) settled(error instanceof NotAcquiredError ? 'refused' : 'failed')
    else if (job.end === 'throw' && error !== own)
      history.violate("withLock rejects with the job's own error", `${error}`)
    else if (error instanceof LeaseLostError && isInvented(ended))
      history.violate('withLock invents no loss', `${error}`)
    if (error !== own) throw error
  }
}

const isInvented = ({ claim, lost }: { readonly claim: ClaimRecord; readonly lost: boolean }): boolean =>
  !lost && claim.releaseRefused === 'no' && !isEndedByAnother(claim)

/** A task has released the lock by its name, while another task of its process used the same lease. */
const isEndedByAnother = ({ process, over }: ClaimRecord): boolean => process.reacquires && over === 'released'

async function use(lease: Lease, job: Job, host: Host): Promise<LeaseTrack> {
  const { history, leases } = host
  const claim = history.claimOf(lease)
  if (claim === undefined) throw new Error(`"${lease.lockName}" ${lease.fencingToken} was never granted by the store`)
  const track = leases.begin(lease, claim)
  const signal = track.uses.get(lease) as AbortSignal
  signal.addEventListener('abort', () => {
    const isClosed = signal.reason instanceof LeaseLostError && signal.reason.cause instanceof ClosedError
    if (claim.over !== 'lost' && claim.releaseRefused === 'no' && !isClosed && !isEndedByAnother(claim))
      history.violate('a signal aborts only for a loss', claim.claimId)
  })
  for (const act of job.acts) {
    // A careless writer does not look at the signal either.
    if (!signal.aborted || (act.act === 'write' && act.careless)) await perform(act, track, host, job)
  }
  return track
}

async function perform(act: Act, track: LeaseTrack, host: Host, job: Job): Promise<void> {
  const { process, history, claims, leases, lock, resource } = host
  const { lease } = track
  switch (act.act) {
    case 'sleep':
      return process.clock.sleep(act.ms)
    case 'stall':
      // In a turn of its own, so that earlier decisions have been sent: the rules judge by the time of sending.
      await process.clock.sleep(1)
      history.time.stall(act.ms)
      return leases.afterStall(track)
    case 'write':
      if (act.careless || lease.held) resource.write(track, !act.careless)
      return
    case 'hammer':
      return hammer(act.times, host)
    case 'reenter':
      if (job.via === 'withLock' && lease.held) await lock.withLock(job.lockName, async () => undefined)
      return
    case 'extend': {
      track.extensions += 1
      track.shortestMs = Math.min(track.shortestMs, act.ms)
      // It first waits for the heartbeat's own renewal, which would otherwise undo it.
      const answered = claims.within(process, 2 * history.plan.callTimeoutMs + 6, `an extension of "${job.lockName}"`)
      const extended = lease.extend(act.ms / 1_000).then(answered, (error: unknown) => {
        answered()
        if (!(error instanceof StoreError)) history.violate('every failure has its class', `an extension: ${error}`)
      })
      if (act.awaited) await extended
    }
  }
}

async function hammer(times: number, { lock, process, history }: Host): Promise<void> {
  const untilMs = process.clock.now().monotonicMs + HAMMER_MS
  for (let left = times; left > 0 && process.clock.now().monotonicMs < untilMs; left -= 1) {
    history.counts.hammered += 3
    const result = await lock.acquire(`hammered by ${process.name}`, HAMMER).catch(() => undefined)
    if (!result?.acquired) return
    await result.lock.release().catch(() => undefined)
  }
}

const HAMMER_MS = 50
const HAMMER: LockOptions = { timeoutSeconds: 0.2, blockingTimeoutSeconds: 0.1 }
