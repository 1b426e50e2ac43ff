import type { Driver } from '../../src/core/driver.ts'
import type { Clock } from '../../src/core/time/clock.ts'
import type { Random } from '../../src/core/time/random.ts'
import {
  DistributedLock,
  type Lease,
  LeaseLostError,
  type OnceRun,
  ReadWriteLock,
  Semaphore,
  type Term,
} from '../../src/index.ts'
import { CallInFlight, claimErrors, type Expected, ignoreThrown, lockOptions, NONE, ThrownByProgram } from './call.ts'
import { type Closes, Instance, type Lockable } from './instance.ts'
import { JobsAndLimits } from './jobs-and-limits.ts'
import { Model } from './model.ts'
import { observed } from './observed-driver.ts'
import { leadSeconds, titleOf } from './print.ts'
import { type Call, INSTANCES, ONCE_SECONDS, type Program, SLOTS, type Step, stepsOf } from './program.ts'
import type { Use, Violation } from './rules.ts'

/** Where a program runs: a store, and the time that passes. */
export interface World {
  readonly clock: Clock
  readonly random: Random
  /** The driver of each instance, and one more that only inspects. */
  readonly drivers: readonly Driver[]
  /** In virtual time the model sees each step of the store when it happens. */
  readonly exact: boolean
  /** How long the store may take to answer a call. */
  readonly patienceMs: number
  /** The longest time that it usually takes. */
  readonly latencyMs: number
  /** The lock names of the program begin with this. */
  readonly prefix: string
  trip(): Promise<void>
  send(message: () => void): void
  /** Lets time pass until the work has settled. False: it has not, although `ms` have passed. */
  settles(work: Promise<unknown>, ms: number): Promise<boolean>
}

export interface Report {
  readonly violations: readonly Violation[]
  readonly trace: readonly string[]
  readonly steps: number
  /** How the calls ended: `with: done`, `with: LEASE_LOST`, … */
  readonly ends: ReadonlyMap<string, number>
}

/** Runs the program, closes everything, and returns what broke a rule. */
export async function play(program: Program, world: World): Promise<Report> {
  const player = new Player(program, world)
  if (playing.size === 0) process.on('unhandledRejection', onUnhandled)
  playing.add(player)
  try {
    await player.play()
  } finally {
    playing.delete(player)
    if (playing.size === 0) process.off('unhandledRejection', onUnhandled)
  }
  const { violations, trace } = player.model
  return { violations, trace, steps: player.steps, ends: player.ends }
}

/** Programs that run at the same time cannot tell whose it is. */
const playing = new Set<Player>()
function onUnhandled(error: unknown): void {
  for (const { model } of playing) model.violate('errors are expected', `unhandled: ${error}`)
}

/** The function that a step is in, with those around it: as the code in it could know. */
interface Context {
  readonly task: number
  readonly frame: Frame | undefined
}

interface Frame {
  readonly use: Use
  readonly outer: Frame | undefined
  /** Leases that `acquire` or `hold` entered inside this function. */
  readonly entries: Use[]
  /** Until the call has settled. */
  isLive: boolean
}

interface Kept {
  readonly use: Use
  readonly lease: Lease | Term
}

class Player {
  readonly model: Model
  readonly others: JobsAndLimits
  steps = 0
  readonly ends = new Map<string, number>()
  readonly #program: Program
  readonly #world: World
  readonly #instances: readonly Instance[]
  readonly #slots: (Kept | undefined)[] = []
  readonly #background = new Set<Promise<unknown>>()
  readonly #startedMs: number
  #text: string | undefined
  #calls = 0

  constructor(program: Program, world: World) {
    this.#program = program
    this.#world = world
    const { clock, drivers, exact } = world
    this.#startedMs = clock.now().monotonicMs
    const nowMs = (): number => this.#nowMs
    const expires = drivers[0]?.capabilities.expiry === 'ttl'
    const namesWith = (option: 'minHoldSeconds' | 'maxHoldSeconds'): ReadonlySet<string> =>
      new Set(stepsOf(program).flatMap((step) => (step.options[option] > 0 ? this.#names(step) : [])))
    const keptLonger = namesWith('minHoldSeconds')
    const keptShorter = namesWith('maxHoldSeconds')
    const { latencyMs } = world
    const slackMs = 4 * latencyMs + 20
    this.model = new Model({ nowMs, exact, expires, keptLonger, keptShorter, slackMs, latencyMs })
    this.others = new JobsAndLimits({ nowMs, violate: (rule, text) => this.model.violate(rule, text) })
    const { trip, send } = world
    this.#instances = program.reacquire.map((reacquire, on) => {
      const driver = observed(drivers[on] as Driver, { model: this.model, nowMs, trip, send })
      return new Instance({ driver, reacquire, clock, random: world.random, holderId: `holder ${on + 1}` })
    })
  }

  async play(): Promise<void> {
    const { settles } = this.#world
    const tasks = this.#program.tasks.map((steps, task) =>
      this.#run(steps, { task, frame: undefined }).catch(ignoreThrown),
    )
    let isSettled = await settles(Promise.all(tasks), MAX_MS)
    while (isSettled && this.#background.size > 0) {
      isSettled = await settles(Promise.all([...this.#background]), MAX_MS)
    }
    if (!isSettled) this.model.violate('everything settles', 'the program did not end')
    this.model.sweep()
    if (isSettled && this.#world.exact) {
      // The last releases are on their way.
      await settles(new Promise(() => {}), 10 * this.#world.latencyMs + 10)
      this.model.unused()
    }
    this.model.excuse(() => true)
    const closing = Promise.all(this.#instances.map((instance) => instance.close()))
    if (!(await settles(closing, CLOSE_MS))) this.model.violate('everything settles', 'an instance was not closed')
    this.model.sweep()
    await this.#nothingLeft(false)
    // Longer than every TTL.
    if (!this.#world.exact) return
    await settles(new Promise(() => {}), PAST_EVERY_TTL_MS)
    await this.#nothingLeft(true)
  }

  async #nothingLeft(isLast: boolean): Promise<void> {
    let left = await this.#left(isLast)
    // Another process may still be withdrawing what it no longer waits for.
    for (let tries = 0; left.length > 0 && !this.#world.exact && tries < 50; tries += 1) {
      await this.#sleep(0.1)
      left = await this.#left(isLast)
    }
    const when = isLast ? 'after every TTL' : 'after closing'
    for (const { lockName } of left) this.model.violate('nothing is left', `a lease or waiter on "${lockName}" ${when}`)
  }

  async #left(isLast: boolean): Promise<{ lockName: string; fencingToken?: number }[]> {
    const inspector = this.#world.drivers[INSTANCES] as Driver
    const pages = [
      await inspector.inspect({ prefix: this.#world.prefix }),
      await inspector.inspect({ prefix: `once:${this.#world.prefix}` }),
    ]
    const leases = pages.flatMap((page) => page.leases).filter((lease) => isLast || !this.model.mayStay(lease))
    return [...leases, ...pages.flatMap((page) => page.waiters)]
  }

  async #run(steps: readonly Step[], context: Context): Promise<void> {
    for (const step of steps) {
      this.steps += 1
      this.model.sweep()
      const work = this.#step(step, context)
      if (step.awaited) {
        await work
        continue
      }
      const ignored = work.catch(ignoreThrown).finally(() => this.#background.delete(ignored))
      this.#background.add(ignored)
    }
  }

  #step(step: Step, context: Context): Promise<void> {
    switch (step.call) {
      case 'sleep':
        return this.#sleep(step.seconds)
      case 'throw':
        return Promise.reject(new ThrownByProgram())
      case 'acquire':
      case 'hold':
        return this.#take(step, context)
      case 'using':
        return this.#using(step, context)
      case 'with':
      case 'withLocks':
        return this.#with(step, context)
      case 'release':
      case 'dispose':
        return this.#release(step, context)
      case 'releaseName':
        return this.#releaseName(step, context)
      case 'extend':
      case 'extendName':
        return this.#extend(step, context)
      case 'serialize':
        return this.#serialize(step, context)
      case 'restore':
        return this.#restore(step, context)
      case 'forceRelease':
        return this.#forceRelease(step, context)
      case 'releaseAll':
        return this.#releaseAll(step, context)
      case 'close':
        return this.#close(step, context)
      case 'once':
        return this.#once(step, context)
      case 'campaign':
        return this.#campaign(step, context)
      case 'lead':
        return this.#lead(step, context)
      case 'consume':
        return this.#consume(step, context)
    }
  }

  // Leases without a function.

  async #take(step: Step, context: Context): Promise<void> {
    const call = this.#call(step, context)
    const object = this.#objectFor(step, context)
    const joined = this.#joining(step, object)
    const lease = await call.result(this.#claim(step, object, call), this.#claimErrors(step, object))
    joined()
    if (lease !== undefined) this.#keep(step, this.#begin(call, step, context, object, lease), lease)
  }

  async #using(step: Step, context: Context): Promise<void> {
    const call = this.#call(step, context)
    const object = this.#objectFor(step, context)
    const joined = this.#joining(step, object)
    const lease = await call.result(this.#claim(step, object, call), this.#claimErrors(step, object))
    joined()
    if (lease === undefined) return
    const use = this.#begin(call, step, context, object, lease)
    this.#keep(step, use, lease)
    try {
      await this.#run(step.body, context)
    } finally {
      this.model.ended(use)
      await call.result(Promise.resolve(lease[Symbol.asyncDispose]()), NONE)
    }
  }

  async #claim(step: Step, object: Lockable, call: CallInFlight): Promise<Lease | undefined> {
    const options = lockOptions(step, call.signal)
    const name = this.#name(step)
    const isAcquire = step.call === 'acquire'
    if (!isAcquire) {
      if (object instanceof ReadWriteLock) {
        return step.share === 'read' ? object.holdRead(name, options) : object.holdWrite(name, options)
      }
      return object.hold(name, options)
    }
    const asked =
      object instanceof ReadWriteLock
        ? step.share === 'read'
          ? object.acquireRead(name, options)
          : object.acquireWrite(name, options)
        : object.acquire(name, options)
    const result = await asked
    return result.acquired ? result.lock : undefined
  }

  #claimErrors(step: Step, object: Closes): Expected {
    const asksAgain = step.call === 'withLocks' || this.#program.reacquire[step.on] === 'extend'
    return claimErrors(step, object, { latencyMs: this.#world.latencyMs, asksAgain })
  }

  /** With `reacquire: 'extend'` the claim may extend a lease of its instance, and must not shorten it. */
  #joining(step: Step, object: Closes): () => void {
    const extendsOwn = this.#program.reacquire[step.on] === 'extend' && step.share === 'lock'
    if (!extendsOwn || step.call === 'withLocks') return () => undefined
    const name = this.#name(step)
    const { timeoutSeconds } = step.options
    return this.model.joining((use) => use.object === object && use.lockName === name, timeoutSeconds || 30)
  }

  async #restore(step: Step, context: Context): Promise<void> {
    const text = this.#text
    if (text === undefined) return
    this.#text = undefined
    const call = this.#call(step, context)
    const object = this.#objectFor({ ...step, share: 'lock' }, context) as DistributedLock
    const { timeoutSeconds, heartbeat } = step.options
    const restored = object.restore(text, {
      ...(timeoutSeconds > 0 && { timeoutSeconds }),
      ...(heartbeat !== undefined && { heartbeat }),
    })
    const lease = await call.result(restored, { codes: ['LEASE_LOST'], object })
    if (lease === undefined) return
    this.#keep(step, this.#begin(call, { ...step, share: 'lock' }, context, object, lease), lease)
  }

  async #campaign(step: Step, context: Context): Promise<void> {
    const call = this.#call(step, context)
    const election = this.#instance(step).election(this.#name(step))
    const { blockingTimeoutSeconds, maxHoldSeconds } = step.options
    const options = {
      blockingTimeoutSeconds,
      ...(call.signal && { signal: call.signal }),
      ...(maxHoldSeconds > 0 && { maxTermSeconds: maxHoldSeconds }),
    }
    const term = await call.result(election.campaign(options), this.#claimErrors(step, election))
    if (term === undefined) return
    this.#keep(step, this.#begin(call, { ...step, share: 'write' }, context, election, term), term)
  }

  async #release(step: Step, context: Context): Promise<void> {
    const kept = this.#slots[step.slot]
    if (kept === undefined) return
    const { use, lease } = kept
    const call = this.#call(step, context)
    const isOver = this.model.isOver(use)
    this.model.endedEarly(use)
    if (step.call === 'dispose') return await call.result(Promise.resolve(lease[Symbol.asyncDispose]()), NONE)
    const answer = await call.result('resign' in lease ? lease.resign() : lease.release(), NONE)
    if (answer === true && isOver) {
      this.model.violate('a release confirms', `${call.what} resolved with true, but ${use.what} was over before`)
    }
  }

  async #extend(step: Step, context: Context): Promise<void> {
    const { seconds } = step
    if (step.call === 'extendName') {
      const call = this.#call(step, context)
      const object = this.#objectFor({ ...step, share: 'lock' }, context) as DistributedLock
      const name = this.#name(step)
      const uses = this.model.usesOn((use) => use.object === object && use.lockName === name && use.believes())
      const ends = uses.map((use) => this.model.extending(use, seconds))
      await call.result(object.extend(name, seconds), { codes: [], object })
      for (const end of ends) end()
      return
    }
    const kept = this.#slots[step.slot]
    if (kept === undefined || !('extend' in kept.lease)) return
    const { use, lease } = kept
    const call = this.#call(step, context)
    const isOver = this.model.hasEnded(use)
    const end = use.ended ? () => undefined : this.model.extending(use, seconds)
    const answer = await call.result(lease.extend(seconds), NONE)
    end()
    if (answer === true && isOver) this.model.violate('a release confirms', `${call.what}, but ${use.what} was over`)
  }

  async #serialize(step: Step, context: Context): Promise<void> {
    const kept = this.#slots[step.slot]
    if (kept === undefined || !('serialize' in kept.lease)) return
    const { use, lease } = kept
    const call = this.#call(step, context)
    const others = this.model.othersOf(use)
    use.leaving = true
    const text = await call.result(lease.serialize(), { codes: ['UNSUPPORTED', 'LEASE_LOST', 'NOT_HELD'] })
    use.leaving = false
    if (text === undefined) return
    const under = [...others, ...(use.runs ? [use] : [])].find((other) => !other.ended)
    if (under !== undefined) this.model.violate('it keeps its lease', `${call.what} handed over under ${under.what}`)
    this.model.handedOver(use)
    this.#text = text
  }

  // Functions under leases.

  async #with(step: Step, context: Context): Promise<void> {
    const call = this.#call(step, context)
    const object = this.#objectFor(step.call === 'withLocks' ? { ...step, share: 'lock' } : step, context)
    const options = lockOptions(step, call.signal)
    const name = this.#name(step)
    await this.#under(step, context, call, object, (fn) => {
      if (step.call === 'withLocks') {
        return (object as DistributedLock).withLocks(this.#names(step), fn, options)
      }
      const one = (lease: Lease): Promise<void> => fn([lease])
      if (object instanceof DistributedLock) return object.withLock(name, one, options)
      if (object instanceof Semaphore) return object.withPermits(name, one, options)
      return step.share === 'read' ? object.withRead(name, one, options) : object.withWrite(name, one, options)
    })
  }

  /** Runs the body of a step in the call, and checks how the call ends. */
  async #under(
    step: Step,
    context: Context,
    call: CallInFlight,
    object: Closes,
    invoke: (fn: (leases: readonly Lease[]) => Promise<void>) => Promise<void>,
  ): Promise<void> {
    let uses: readonly Use[] = []
    let frame = context.frame
    let lost: string | undefined
    let thrown: unknown
    const expected = this.#claimErrors(step, object)
    const joined = this.#joining(step, object)
    const work = invoke(async (leases) => {
      call.answered()
      joined()
      const share = step.call === 'withLocks' ? { ...step, share: 'lock' as const } : step
      uses = leases.map((lease) => this.#begin(call, share, context, object, lease))
      for (const [at, lease] of leases.entries()) {
        if (step.call !== 'once') this.#keep({ ...step, slot: (step.slot + at) % SLOTS }, uses[at] as Use, lease)
        frame = { use: uses[at] as Use, outer: frame, entries: [], isLive: true }
      }
      try {
        await this.#run(step.body, { ...context, frame })
      } catch (error) {
        thrown = error
        throw error
      } finally {
        lost = this.model.functionEnded(uses)
        // What was entered inside may end with it.
        for (let each = frame; each !== context.frame; each = each?.outer)
          for (const use of each?.entries ?? []) use.excused = true
      }
    })
    work.catch(() => joined())
    const error = await call.error(work, { codes: [...expected.codes, 'LEASE_LOST'], object })
    for (let each = frame; each !== undefined && each !== context.frame; each = each.outer) each.isLive = false
    this.model.settled(uses, thrown === undefined && lost === undefined && error instanceof LeaseLostError)
    if (thrown !== undefined) {
      if (error !== thrown) this.model.violate('errors are expected', `${call.what} hid the error of its function`)
    } else if (lost !== undefined && !(error instanceof LeaseLostError)) {
      const how = error === undefined ? 'resolved' : `rejected with ${error}`
      this.model.violate('a call under a lost lease rejects', `${call.what} ${how}, but ${lost}`)
    }
  }

  async #once(step: Step, context: Context): Promise<void> {
    const call = this.#call(step, context)
    const { once } = this.#instance(step)
    const key = this.#name(step)
    const { timeoutSeconds, blockingTimeoutSeconds } = step.options
    const options = {
      forSeconds: ONCE_SECONDS,
      blockingTimeoutSeconds,
      ...(timeoutSeconds > 0 && { timeoutSeconds }),
      ...(call.signal && { signal: call.signal }),
    }
    let result: unknown
    let endedMs: number | undefined
    await this.#under({ ...step, share: 'write' }, context, call, once, async (fn) => {
      result = await once.once(
        key,
        async (run) => {
          this.others.jobBegan(key)
          await fn([run as unknown as Lease])
          endedMs = this.#nowMs
          return call.what
        },
        options,
      )
      this.others.jobDone(key, result, endedMs)
    })
  }

  async #lead(step: Step, context: Context): Promise<void> {
    const call = this.#call({ ...step, options: { ...step.options, abortAfterSeconds: leadSeconds(step) } }, context)
    call.answered()
    const election = this.#instance(step).election(this.#name(step))
    const lead = async (term: Term): Promise<void> => {
      const use = this.#begin(call, { ...step, share: 'write' }, context, election, term)
      // Its signal also aborts when `run` is asked to end.
      use.excused = true
      try {
        // A leader that ends its own term by force is elected again at once: time would not advance.
        await this.#sleep(0.001)
        await this.#run(step.body, context)
      } finally {
        this.model.ended(use)
      }
    }
    const { signal = new AbortController().signal } = call
    await call.result(election.run(lead, { signal, restSeconds: 0.1, onError: ignoreThrown }), {
      codes: ['ABORTED'],
      object: election,
    })
  }

  // Calls that end the leases of others.

  async #releaseName(step: Step, context: Context): Promise<void> {
    const call = this.#call(step, context)
    const object = this.#objectFor({ ...step, share: 'lock' }, context) as DistributedLock
    const name = this.#name(step)
    const inner = innermost(context.frame, object, name)
    const isInner = inner !== undefined && !inner.ended
    if (isInner) this.model.endedEarly(inner)
    // If the lease of the function has been lost, the name may mean the next one that this instance has on it.
    const isMeant = (use: Use): boolean => !isInner || !this.model.share(use, inner)
    const end = this.model.excuse((use) => use.object === object && use.lockName === name && isMeant(use))
    await call.result(object.release(name), { codes: [], object })
    end()
  }

  async #forceRelease(step: Step, context: Context): Promise<void> {
    const call = this.#call(step, context)
    const object = this.#objectFor({ ...step, share: 'lock' }, context) as DistributedLock
    const name = this.#name(step)
    const forced = this.model.forcing(name)
    const ended = await call.result(object.forceRelease(name, { by: 'an operator' }), { codes: [], object })
    forced((ended ?? []).map(({ fencingToken }) => fencingToken))
  }

  async #releaseAll(step: Step, context: Context): Promise<void> {
    const call = this.#call(step, context)
    const object = this.#objectFor({ ...step, share: 'lock' }, context) as DistributedLock
    this.#endsItself(object, context)
    const end = this.model.excuse((use) => use.object === object)
    await call.result(object.releaseAll(), { codes: [], object })
    end()
  }

  async #close(step: Step, context: Context): Promise<void> {
    const call = this.#call(step, context)
    const object = this.#objectFor(step, context)
    this.model.closing(object, step.seconds * 1_000, SETTLING_MS)
    const closed = object.close({ drainSeconds: step.seconds, deadlineSeconds: 1 })
    this.#instance(step).forget(object)
    await call.result(closed, NONE)
  }

  /** The functions that the call is in know what they do. */
  #endsItself(object: object, context: Context): void {
    for (let frame = context.frame; frame !== undefined; frame = frame.outer) {
      if (frame.use.object !== object) continue
      this.model.endedEarly(frame.use)
    }
  }

  async #consume(step: Step, context: Context): Promise<void> {
    const call = this.#call(step, context)
    const key = this.#name(step)
    const sentMs = this.#nowMs
    const result = await call.result(this.#instance(step).limiter.consume(key), NONE)
    if (result?.allowed) this.others.consumed(key, sentMs)
  }

  // Parts.

  #begin(call: CallInFlight, step: Step, context: Context, object: object, lease: Lease | Term | OnceRun): Use {
    const lockName =
      step.call === 'once' ? `once:${this.#name(step)}:run` : ((lease as Lease).lockName ?? this.#name(step))
    // A timer may be late in real time, and `held` never is.
    const signal = step.watches === 'signal' && this.#world.exact ? lease.signal : undefined
    const { fencingToken } = lease
    const frames = framesOf(context.frame, lockName, fencingToken)
    const [frame] = frames
    const extendsOwn = step.share === 'lock' && this.#program.reacquire[step.on] === 'extend'
    const runs = step.call === 'with' || step.call === 'withLocks' || step.call === 'once'
    const use: Use = {
      what: call.what,
      on: step.on,
      object,
      lockName,
      kind: step.share === 'read' ? 'reader' : step.share === 'permits' ? 'permits' : 'exclusive',
      permits: step.options.permits,
      fencingToken,
      mayShare: frame !== undefined || extendsOwn,
      runs,
      // A re-entry goes on with the heartbeat of the function around it, if that has one.
      renews: runs && frames.length === 0 && step.call !== 'once' && step.options.heartbeat !== false,
      minHoldMs: extendsOwn || !HOLDS.has(step.call) ? 0 : step.options.minHoldSeconds * 1_000,
      keptUntilMs: 0,
      inside: frames.map(({ use }) => use),
      // Who releases by name what another call got need not abort its signal: no function runs under it.
      believes: () => (signal && (runs || !use.excused) ? !signal.aborted : lease.held),
      excused: false,
      leaving: false,
      ended: false,
    }
    this.model.began(use)
    if (frame !== undefined && !use.runs) {
      frame.entries.push(use)
      // The function that it entered has ended already.
      if (frame.use.ended) use.excused = true
    }
    return use
  }

  #keep(step: Step, use: Use, lease: Lease | Term): void {
    this.#slots[step.slot] = { use, lease }
  }

  #call(step: Step, { task }: Context): CallInFlight {
    this.#calls += 1
    const what = `${titleOf(step)} (task ${task + 1}, call ${this.#calls})`
    const { clock, patienceMs, exact } = this.#world
    const ended = (how: string): void => {
      const end = `${step.call}: ${how}`
      this.ends.set(end, (this.ends.get(end) ?? 0) + 1)
    }
    return new CallInFlight({ clock, model: this.model, step, what, patienceMs, unsupported: !exact, ended })
  }

  /** In a function, the object whose lock it holds, even if that has been closed since. */
  #objectFor(step: Step, { frame }: Context): Lockable {
    const current = this.#instance(step).object(step.share)
    for (let each = frame; each !== undefined; each = each.outer) {
      const { use } = each
      if (each.isLive && use.on === step.on && use.object.constructor === current.constructor)
        return use.object as Lockable
    }
    return current
  }

  #instance({ on }: Step): Instance {
    return this.#instances[on] as Instance
  }

  #names({ names }: Step): readonly string[] {
    return names.map((name) => `${this.#world.prefix}${name}`)
  }

  #name(step: Step): string {
    return this.#names(step)[0] as string
  }

  get #nowMs(): number {
    return this.#world.clock.now().monotonicMs - this.#startedMs
  }

  #sleep(seconds: number): Promise<void> {
    return new Promise((resolve) => {
      this.#world.clock.setTimer(resolve, seconds * 1_000, true)
    })
  }
}

/** The functions around a call that hold this lease, the innermost first. */
function framesOf(context: Frame | undefined, lockName: string, fencingToken: number): Frame[] {
  const frames: Frame[] = []
  for (let frame = context; frame !== undefined; frame = frame.outer) {
    const { use, isLive } = frame
    if (isLive && use.lockName === lockName && use.fencingToken === fencingToken) frames.push(frame)
  }
  return frames
}

/** What a release by name means inside functions: their innermost entry. */
function innermost(context: Frame | undefined, object: object, lockName: string): Use | undefined {
  for (let frame = context; frame !== undefined; frame = frame.outer) {
    const { use, isLive, entries } = frame
    if (isLive && use.object === object && use.lockName === lockName) {
      return entries.findLast((entry) => !entry.ended) ?? use
    }
  }
  return undefined
}

/** Calls with `minHoldSeconds`. */
const HOLDS: ReadonlySet<Call> = new Set<Call>(['acquire', 'hold', 'using', 'with', 'withLocks'])
/** The longest program takes far less. */
const MAX_MS = 600_000
/** Three fifths of the time that `close` may take. */
const SETTLING_MS = 600
const CLOSE_MS = 6_000
const PAST_EVERY_TTL_MS = 60_000
