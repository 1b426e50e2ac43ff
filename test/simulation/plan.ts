import { type DriverMode, type Faults, noFaults, type Span } from '../../src/testing/faulty-driver.ts'
import { type ResumeOrder, type SeededRandom, seededRandom } from '../../src/testing/virtual-clock.ts'

/** All that happens in one history, except for the faults of single calls, which come from the seed. Plain JSON. */
export interface Plan {
  readonly seed: number
  readonly kind: Kind
  readonly mode: DriverMode
  readonly callTimeoutMs: number
  readonly waiterTtlMs: number
  /** In force until `faultsEndMs`. Afterwards calls only take their usual time. */
  readonly faults: Faults
  readonly faultsEndMs: number
  readonly resumeOrder: ResumeOrder
  readonly processes: readonly ProcessPlan[]
  readonly disturbances: readonly Disturbance[]
}

/**
 * What may fail. In `calm` nothing fails, and the most is promised. Store faults come one kind at a time: no token can
 * rise if the store loses its data and its clock is set back at the same time.
 */
export type Kind = 'calm' | 'network' | 'clients' | 'store back' | 'store forward' | 'data lost'

export interface ProcessPlan {
  /** How fast its clocks run. The margin of a lease covers 1 %. */
  readonly rate: number
  readonly wallOffsetMs: number
  readonly reacquire: 'refuse' | 'extend'
  /** Each task does its jobs one after the other. */
  readonly tasks: readonly (readonly Job[])[]
}

export interface Job {
  readonly afterMs: number
  readonly lockName: string
  readonly via: 'acquire' | 'hold' | 'withLock'
  readonly ttlMs: number
  readonly waitMs: number
  readonly heartbeat: boolean
  readonly minHoldMs: number
  readonly maxHoldMs?: number
  readonly abortAfterMs?: number
  readonly acts: readonly Act[]
  readonly end: 'release' | 'release by name' | 'dispose' | 'abandon' | 'throw'
}

export type Act =
  | { readonly act: 'sleep'; readonly ms: number }
  | { readonly act: 'extend'; readonly ms: number; readonly awaited: boolean }
  /** Writes to the protected resource. A careless writer does not check first whether it still holds the lock. */
  | { readonly act: 'write'; readonly careless: boolean }
  /** Blocks the event loop. */
  | { readonly act: 'stall'; readonly ms: number }
  /** Acquires and releases another lock without a pause. It must not delay anything that is due. */
  | { readonly act: 'hammer'; readonly times: number }
  /** `withLock` of the same name inside `withLock`. */
  | { readonly act: 'reenter' }

export type Disturbance = { readonly atMs: number } & (
  | { readonly what: 'pause' | 'suspend' | 'step wall' | 'partition'; readonly process: number; readonly ms: number }
  | { readonly what: 'break subscription'; readonly process: number }
  | { readonly what: 'step store'; readonly ms: number }
  | { readonly what: 'lose data'; readonly downMs: number; readonly breaksSubscriptions: boolean }
)

/** If the store loses its data, or its clock jumps forward, it may grant a lock whose lease is still trusted. */
export const excludes = ({ disturbances }: Plan): boolean =>
  !disturbances.some((each) => each.what === 'lose data' || (each.what === 'step store' && each.ms > 0))

export const storeSteps = ({ disturbances }: Plan): number =>
  disturbances.reduce((sum, each) => sum + (each.what === 'step store' ? Math.abs(each.ms) : 0), 0)

/** The longest time that a call and its answer, or a wake-up, take when nothing fails. */
export const usualMs = ({ faults }: Plan): number => Math.max(faults.requestMs[1], faults.replyMs[1], faults.wakeMs[1])

export function planFrom(seed: number): Plan {
  const random = seededRandom(seed)
  const kind = random.pick<Kind>([
    'calm',
    'calm',
    'network',
    'network',
    'network',
    'clients',
    'clients',
    'clients',
    'store back',
    'store forward',
    'data lost',
  ])
  const mode = random.pick<DriverMode>(['queue', 'queue', 'hands over', 'wakes', 'silent'])
  const names = random.chance(0.7) ? ['a'] : ['a', 'b']
  const crowded = random.chance(0.2)
  const processes = Array.from({ length: random.whole(crowded ? 2 : 1, 3) }, () => {
    const process = processPlan(random, kind, names)
    return crowded ? crowding(process, random) : process
  })
  return {
    seed,
    kind,
    mode,
    callTimeoutMs: kind === 'calm' ? 500 : random.pick([60, 60, 120, 250, 500]),
    waiterTtlMs: random.pick([150, 150, 300, 900]),
    faults: kind === 'calm' ? calmFaults(random) : faultsOf(random, mode),
    faultsEndMs: FAULTS_END_MS,
    resumeOrder: random.pick<ResumeOrder>(['due', 'timers', 'messages']),
    processes,
    disturbances: disturbancesOf(random, kind, processes.length),
  }
}

const FAULTS_END_MS = 3_000

function processPlan(random: SeededRandom, kind: Kind, names: readonly string[]): ProcessPlan {
  return {
    rate: random.pick([1, 1, 0.9905, 1.0095]),
    wallOffsetMs: random.pick([0, -5_000, 11_000, 86_400_000]),
    reacquire: random.chance(0.08) ? 'extend' : 'refuse',
    tasks: Array.from({ length: random.whole(1, 3) }, () =>
      Array.from({ length: random.whole(1, 3) }, () => jobOf(random, kind, names)),
    ),
  }
}

/** Every task wants the same lock at once, for a short time, so that it is handed over often. */
function crowding(process: ProcessPlan, random: SeededRandom): ProcessPlan {
  const crowd = (job: Job): Job => ({
    ...job,
    afterMs: random.whole(0, 60),
    lockName: 'a',
    ttlMs: Math.min(job.ttlMs, 150),
    waitMs: random.pick([800, 2_000, 4_000]),
    minHoldMs: 0,
    acts: job.acts.map((act) => (act.act === 'sleep' ? { ...act, ms: Math.min(act.ms, 40) } : act)),
  })
  return { ...process, tasks: process.tasks.map((jobs) => jobs.map(crowd)) }
}

function jobOf(random: SeededRandom, kind: Kind, names: readonly string[]): Job {
  const via = random.pick<Job['via']>(['acquire', 'acquire', 'hold', 'withLock'])
  const ttlMs =
    kind === 'calm' ? random.pick([150, 300, 600, 1_200]) : random.pick([50, 80, 120, 250, 500, 1_000, 1_800, 3_500])
  const tug = random.chance(0.12)
  const heartbeat = via === 'acquire' || tug ? random.chance(0.4) : random.chance(0.9)
  const end = random.pick<Job['end']>(['release', 'release', 'release by name', 'dispose', 'abandon', 'throw'])
  // Endless work under a heartbeat would never release the lock, and no other job could be expected to get it.
  const maxHold = (heartbeat && end === 'abandon') || random.chance(0.15)
  return {
    afterMs: random.chance(0.3) ? 0 : random.whole(0, 500),
    lockName: names[random.whole(0, names.length - 1)] as string,
    via,
    ttlMs: tug ? Math.min(ttlMs, 250) : ttlMs,
    waitMs: random.pick([tug ? 800 : 0, 60, 250, 800, 2_000, 4_000]),
    heartbeat,
    minHoldMs: random.chance(0.15) ? random.pick([40, 200, 700]) : 0,
    ...(maxHold && { maxHoldMs: random.pick([60, 200, 600]) }),
    ...(random.chance(0.2) && { abortAfterMs: random.whole(0, 300) }),
    acts: tug ? tugOfWar(random) : Array.from({ length: random.whole(0, 5) }, () => actOf(random, kind)),
    end,
  }
}

function actOf(random: SeededRandom, kind: Kind): Act {
  const act = random.pick([
    'sleep',
    'sleep',
    'sleep',
    'extend',
    'extend',
    'write',
    'write',
    'reenter',
    'stall',
  ] as const)
  if (random.chance(0.02)) return { act: 'hammer', times: 100 }
  if (act === 'sleep') return { act, ms: random.pick([1, 10, 40, 90, 200, 450]) }
  if (act === 'extend') return { act, ms: random.pick([50, 90, 200, 700, 1_500]), awaited: random.chance(0.6) }
  if (act === 'write') return { act, careless: random.chance(0.5) }
  if (act === 'stall' && kind !== 'calm') return { act, ms: random.pick([5, 60, 300]) }
  return { act: 'reenter' }
}

/** Ends that are moved back and forth while it is unknown which of the requests the store has seen. */
function tugOfWar(random: SeededRandom): Act[] {
  const [shortMs, longMs] = [random.pick([50, 90]), random.pick([700, 1_500])]
  return [
    { act: 'extend', ms: shortMs, awaited: random.chance(0.5) },
    { act: 'sleep', ms: random.pick([1, 10, 40]) },
    { act: 'extend', ms: longMs, awaited: random.chance(0.5) },
    { act: 'sleep', ms: 450 },
    { act: 'sleep', ms: 450 },
  ]
}

function calmFaults(random: SeededRandom): Faults {
  const mostMs = random.pick([0, 1, 4, 4])
  const span: Span = [0, mostMs]
  return { ...noFaults, requestMs: span, replyMs: span, wakeMs: span }
}

function faultsOf(random: SeededRandom, mode: DriverMode): Faults {
  const chance = (): number => random.pick([0, 0, 0.03, 0.1, 0.25])
  const span = (): Span => [0, random.pick([0, 2, 10, 40, 120])]
  return {
    requestMs: span(),
    replyMs: span(),
    // The message of a grant may take longer than the lease lasts.
    wakeMs: mode === 'hands over' ? [0, random.pick([2, 40, 120, 300])] : span(),
    lostRequest: chance(),
    lostReply: chance(),
    lateRequest: chance(),
    lateReply: chance(),
    failing: chance(),
    entryFails: chance() / 2,
    lostWake: chance() * 2,
    lateMs: [50, random.pick([150, 400, 900])],
  }
}

function disturbancesOf(random: SeededRandom, kind: Kind, processes: number): Disturbance[] {
  if (kind === 'calm') return []
  const count = kind === 'clients' ? random.whole(1, 6) : random.whole(0, 2)
  const disturbances = Array.from({ length: count }, () => disturbanceOf(random, random.whole(0, processes - 1)))
  if (kind === 'data lost') {
    // A restart takes longer than the microsecond in which two grants could get the same token.
    disturbances.push({
      atMs: moment(random),
      what: 'lose data',
      downMs: random.pick([1, 30, 200]),
      breaksSubscriptions: random.chance(0.5),
    })
  }
  if (kind === 'store back' || kind === 'store forward') {
    const sign = kind === 'store back' ? -1 : 1
    for (let left = random.whole(1, 2); left > 0; left -= 1) {
      disturbances.push({ atMs: moment(random), what: 'step store', ms: sign * random.pick([3, 100, 700, 2_000]) })
    }
  }
  return disturbances.filter(bearable).sort((a, b) => a.atMs - b.atMs)
}

/** If a machine slept and its wall clock was set back as well, no clock says how much time has passed. */
function bearable(each: Disturbance, _index: number, all: readonly Disturbance[]): boolean {
  if (each.what !== 'step wall' || each.ms > 0) return true
  return !all.some((other) => other.what === 'suspend' && other.process === each.process)
}

function disturbanceOf(random: SeededRandom, process: number): Disturbance {
  const atMs = moment(random)
  const what = random.pick(['pause', 'pause', 'suspend', 'step wall', 'partition', 'break subscription'] as const)
  if (what === 'break subscription') return { atMs, what, process }
  if (what === 'pause' || what === 'partition') return { atMs, what, process, ms: random.pick([10, 60, 150, 400, 900]) }
  // Multiples of what the scheduler takes for a jump. A smaller one need not be noticed before the monotonic deadline.
  if (what === 'suspend') return { atMs, what, process, ms: random.pick([150, 300, 900, 1_500]) }
  return { atMs, what, process, ms: random.pick([-5_000, -600, 150, 300, 900, 4_500]) }
}

const moment = (random: SeededRandom): number => random.whole(0, FAULTS_END_MS - 1_600)
