import type { RateAnswer, RateChange, RateLimit, RateRequest } from '../../core/driver.ts'

/**
 * The generic cell rate algorithm, under several limits at once: all of them allow it, or none is charged.
 *
 * A store keeps one moment for each limit: when nothing of the limit will be in use any more. Each unit moves it by
 * period ÷ limit, and may not move it further ahead than the burst reaches. The store only counts how many times a step
 * fits. The answer for each request is computed from that count here, once for all stores.
 *
 * The counting exists three times, as deliberate copies: `consumeStep` for memory and SQLite, `consume.lua` for
 * Redis, `holdfast_consume` for PostgreSQL. So each store counts a list in one atomic step, on its own clock and in one
 * round trip. `test/primitives/rate/policies.test.ts` and the groups `driver interface: … rate limits` of the
 * conformance suite keep the copies equal.
 *
 * Every limit has its own moment, under the name and the limit's id. Requests on one name may have different limits, as
 * in a rolling deploy. If they shared one list of moments, each would misread and overwrite the other's, and no limit
 * would hold.
 *
 * A limit may also be blocked until a given moment. Until then no step fits.
 */

/** Equal requests of one list on one name. The store is asked once how many of them fit. */
export interface Take {
  readonly name: string
  readonly policy: Policy
  /** Their indexes in the list, in order. */
  readonly indexes: number[]
  /** Done instead of a step. */
  readonly change?: RateChange
}

/** What a request takes of its limits. */
export interface Policy {
  readonly cost: number
  readonly limits: readonly RateLimit[]
  /** The id under which each limit's moment is stored, beside the name. */
  readonly ids: readonly string[]
  readonly spacingsMs: readonly number[]
  /** How far one request moves each limit's moment. Never 0. */
  readonly stepsMs: readonly number[]
  /** How far ahead that moment may be: burst × spacing, and less than a unit more, as sums of fractions round up. */
  readonly fullsMs: readonly number[]
}

/** Identifies a limit in every store: see `protocol/README.md`. A changed limit starts from the beginning. */
export const limitId = (limit: RateLimit): string => `${limit.limit}/${periodMicros(limit)}/${limit.burst}`

/** Undefined for a text that is no such id. */
export function limitFromId(id: string): RateLimit | undefined {
  const [, limit, micros, burst] = /^(\d+)\/(\d+)\/(\d+)$/.exec(id) ?? []
  if (burst === undefined) return undefined
  return { limit: Number(limit), periodMs: Number(micros) / 1_000, burst: Number(burst) }
}

/** Whole microseconds, so that every language writes the same digits. */
export const periodMicros = ({ periodMs }: RateLimit): number => Math.round(periodMs * 1_000)

/** How many times to take it at most. A request of cost 0 only looks. */
export const countOf = ({ policy, indexes }: Take): number => (policy.cost === 0 ? 0 : indexes.length)

/** The result of a take: how often its step was taken, and how far ahead each limit's moment is now. */
export interface Taken {
  readonly count: number
  readonly usedMs: readonly number[]
  /** How long the limits are blocked for. 0: they are not. */
  readonly blockedMs: number
}

/** Combines equal requests of a list. The takes of one name are in the order of their requests. */
export function takesOf(requests: readonly RateRequest[]): Take[] {
  const takes: Take[] = []
  const lastOf = new Map<string, Take>()
  for (let index = 0; index < requests.length; index += 1) {
    const request = requests[index] as RateRequest
    const policy = policyFor(request)
    const { name, change } = request
    const last = change === undefined ? lastOf.get(name) : undefined
    if (last !== undefined && last.change === undefined && isAlike(last.policy, policy)) {
      last.indexes.push(index)
      continue
    }
    const take: Take = { name, policy, indexes: [index], ...(change !== undefined && { change }) }
    lastOf.set(name, take)
    takes.push(take)
  }
  return takes
}

/**
 * For stores that change a limit by a separate call. Such requests are rare. Each call comes after the requests before
 * it in the list. A failure affects only its own part of the list.
 */
export async function inOrder(
  requests: readonly RateRequest[],
  steps: (part: readonly RateRequest[]) => Promise<readonly (RateAnswer | Error)[]>,
  change: (take: Take & Required<Pick<Take, 'change'>>) => Promise<Taken | Error>,
): Promise<readonly (RateAnswer | Error)[]> {
  if (requests.every((request) => request.change === undefined)) return steps(requests)
  const answers: (RateAnswer | Error)[] = []
  for (let from = 0; from < requests.length; ) {
    const found = requests.findIndex((request, index) => index >= from && request.change !== undefined)
    const at = found === -1 ? requests.length : found
    const part = requests.slice(from, at)
    if (part.length > 0) answers.push(...(await steps(part).catch((error: Error) => part.map(() => error))))
    const request = requests[at]
    if (request?.change !== undefined) {
      const take = { name: request.name, policy: policyFor(request), indexes: [at], change: request.change }
      const taken = await change(take).catch((error: Error) => error)
      if (taken instanceof Error) answers.push(taken)
      else answerTake(take, taken, answers)
    }
    from = at + 1
  }
  return answers
}

/** The policies of a list, each once, and for every take the index of its policy. */
export function policiesOf(takes: readonly Take[]): { policies: readonly Policy[]; numbers: readonly number[] } {
  const policies: Policy[] = []
  const numbers = takes.map(({ policy }) => {
    const known = policies.findIndex((each) => isAlike(each, policy))
    return known === -1 ? policies.push(policy) - 1 : known
  })
  return { policies, numbers }
}

const isAlike = (a: Policy, b: Policy): boolean =>
  a === b || (a.cost === b.cost && a.ids.length === b.ids.length && a.ids.every((id, at) => id === b.ids[at]))

/** All requests of one limiter have the same `limits` object, and mostly the same cost, so their policy is cached. */
export function policyFor({ cost, limits }: RateRequest): Policy {
  if (latest.limits === limits && latest.cost === cost) return latest
  const known = policies.get(limits)
  latest = known?.cost === cost ? known : policyOf(cost, limits)
  if (latest !== known) policies.set(limits, latest)
  return latest
}

const policies = new WeakMap<readonly RateLimit[], Policy>()

function policyOf(cost: number, limits: readonly RateLimit[]): Policy {
  const spacingsMs = limits.map(({ limit, periodMs }) => periodMs / limit)
  return {
    cost,
    limits,
    ids: limits.map(limitId),
    spacingsMs,
    stepsMs: spacingsMs.map((spacingMs) => spacingMs * (cost || 1)),
    fullsMs: limits.map(({ burst }, at) => {
      const spacingMs = spacingsMs[at] as number
      return spacingMs * burst + Math.min(ROUNDING_MS, spacingMs / 4)
    }),
  }
}

/** A double holds the time to a quarter of a microsecond, and the errors of a burst may add up. */
const ROUNDING_MS = 1

let latest: Policy = policyOf(1, [])

/** What a store keeps for a limit on a name. */
export interface Moment {
  /** When nothing of the limit will be in use any more; 0 if nothing is stored. */
  atMs: number
  /** Until when it is blocked, and the length of that block; 0 if it is not blocked. */
  untilMs: number
  blockMs: number
}

export const noMoment = (): Moment => ({ atMs: 0, untilMs: 0, blockMs: 0 })

/** When there is nothing left to store. */
export const endOf = ({ atMs, untilMs }: Moment): number => Math.max(atMs, untilMs)

/**
 * For stores that count in this process. `moments` are stored for each of the policy's limits.
 *
 * A moment that is further ahead than the burst reaches can only come from a clock that was set back. It counts as a
 * full burst, and is moved back to it even if the step does not fit. Otherwise every call would be refused until the
 * clock reaches its old time. A look moves nothing.
 */
export function consumeStep(
  policy: Policy,
  moments: readonly Moment[],
  nowMs: number,
  change?: RateChange,
): RateAnswer {
  if (change !== undefined) {
    const blockMs = change === 'reset' ? 0 : change.blockMs
    const block = { untilMs: blockMs > 0 ? nowMs + blockMs : 0, blockMs }
    for (const moment of moments) Object.assign(moment, block, change === 'reset' && { atMs: 0 })
  }
  const { cost, stepsMs, fullsMs } = policy
  // With its final length: a growing array allocates too much, and every call makes one.
  const usedMs = new Array<number>(stepsMs.length)
  let fits = true
  let blockedMs = 0
  for (let at = 0; at < stepsMs.length; at += 1) {
    const fullMs = fullsMs[at] as number
    const moment = moments[at] as Moment
    let aheadMs = Math.max(moment.atMs - nowMs, 0)
    if (aheadMs > fullMs) {
      aheadMs = fullMs
      if (cost > 0) moment.atMs = nowMs + fullMs
    }
    usedMs[at] = aheadMs
    blockedMs = Math.max(blockedMs, blockedOf(moment, nowMs, cost > 0))
    fits &&= (stepsMs[at] as number) <= fullMs - aheadMs
  }
  const isTaken = cost > 0 && fits && blockedMs === 0
  for (let at = 0; isTaken && at < stepsMs.length; at += 1) {
    const aheadMs = (usedMs[at] as number) + (stepsMs[at] as number)
    usedMs[at] = aheadMs
    const moment = moments[at] as Moment
    moment.atMs = nowMs + aheadMs
  }
  return answerOf(policy, isTaken || cost === 0, usedMs, blockedMs, 0)
}

/** As for a moment: a block with more time left than its length comes from a clock that was set back. */
function blockedOf(moment: Moment, nowMs: number, writes: boolean): number {
  const leftMs = moment.untilMs - nowMs
  if (leftMs <= moment.blockMs) return Math.max(0, leftMs)
  if (writes) moment.untilMs = nowMs + moment.blockMs
  return moment.blockMs
}

/** Writes the answer to each request of the take to its index. */
export function answerTake(
  { policy, indexes }: Take,
  { count, usedMs, blockedMs }: Taken,
  answers: (RateAnswer | Error | undefined)[],
): void {
  for (let at = 0; at < indexes.length; at += 1) {
    const allowed = at < count || policy.cost === 0
    const laterSteps = policy.cost === 0 ? 0 : Math.max(0, count - 1 - at)
    answers[indexes[at] as number] = answerOf(policy, allowed, usedMs, blockedMs, laterSteps)
  }
}

/** The answer as of before the last `laterSteps` steps. */
function answerOf(
  policy: Policy,
  allowed: boolean,
  afterMs: readonly number[],
  blockedMs: number,
  laterSteps: number,
): RateAnswer {
  const { stepsMs, fullsMs, spacingsMs } = policy
  const usedMs =
    laterSteps === 0 ? afterMs : afterMs.map((ms, at) => Math.max(0, ms - laterSteps * (stepsMs[at] as number)))
  let remaining = Number.POSITIVE_INFINITY
  let retryAfterMs = 0
  let resetAfterMs = 0
  for (let at = 0; at < stepsMs.length; at += 1) {
    const stepMs = stepsMs[at] as number
    const fullMs = fullsMs[at] as number
    const ms = usedMs[at] as number
    remaining = Math.min(remaining, Math.max(0, Math.floor((fullMs - ms) / (spacingsMs[at] as number))))
    if (!allowed) retryAfterMs = Math.max(retryAfterMs, ms + stepMs - fullMs)
    resetAfterMs = Math.max(resetAfterMs, ms)
  }
  if (blockedMs === 0) return { allowed, remaining, retryAfterMs, resetAfterMs, usedMs }
  retryAfterMs = allowed ? 0 : Math.max(retryAfterMs, blockedMs)
  resetAfterMs = Math.max(resetAfterMs, blockedMs)
  return { allowed, remaining: 0, retryAfterMs, resetAfterMs, usedMs, blockedMs }
}
