/** A claim that was granted or refused, or the end of its lease. Times are milliseconds on one clock. */
export interface Operation {
  /** Unique in its history. */
  id: string
  /** The lease that the operation begins or ends. It has one acquire, and any number of releases. */
  lease: string
  what: Acquire | Release
  beginMs: number
  /** Absent if there was no answer: the operation takes effect at any time after its begin, or never. */
  endMs?: number
}

export interface Acquire {
  kind: 'acquire'
  /** @default 'exclusive' */
  mode?: 'exclusive' | 'shared'
  /** @default 1 */
  permits?: number
  /** Absent if there was no answer. */
  answer?: 'granted' | 'refused'
  token?: number
}

/** A release, or the expiry of a lease, which is a release without an answer. */
export interface Release {
  kind: 'release'
  /** Whether the lease was still held. Absent if there was no answer. */
  answer?: boolean
}

/** What a correct lock may do, one operation after the other. */
export interface LockModel {
  name: string
  /** Whether a lease fits beside those that are held. */
  fits(held: readonly HeldLease[], claim: HeldLease): boolean
  /** Whether every grant must have a larger token than the one before. */
  isFenced: boolean
}

export interface HeldLease {
  lease: string
  mode: 'exclusive' | 'shared'
  permits: number
}

export interface LockState {
  /** In the order of their ids, so that equal states have equal keys. */
  held: readonly HeldLease[]
  /** The largest token that was granted. */
  mark: number
}

const alone = (held: readonly HeldLease[]): boolean => held.length === 0

export const mutex: LockModel = { name: 'mutex', fits: alone, isFenced: false }

export const fencedMutex: LockModel = { name: 'fenced mutex', fits: alone, isFenced: true }

export const readWriteLock: LockModel = {
  name: 'read-write lock',
  fits: (held, { mode }) => held.length === 0 || (mode === 'shared' && held.every((each) => each.mode === 'shared')),
  isFenced: false,
}

/** A semaphore with `limit` permits. */
export const semaphore = (limit: number): LockModel => ({
  name: `semaphore of ${limit}`,
  fits: (held, { permits }) => held.reduce((out, each) => out + each.permits, permits) <= limit,
  isFenced: false,
})

/** The same model with tokens that rise. */
export const fenced = (model: LockModel): LockModel => ({ ...model, name: `fenced ${model.name}`, isFenced: true })

export const FREE: LockState = { held: [], mark: Number.NEGATIVE_INFINITY }

/** The state after the operation, or undefined if a correct lock cannot give this answer in this state. */
export function step(model: LockModel, state: LockState, { lease, what }: Operation): LockState | undefined {
  const isHeld = state.held.some((each) => each.lease === lease)
  if (what.kind === 'release') {
    if (what.answer === false) return isHeld ? undefined : state
    return isHeld ? { ...state, held: state.held.filter((each) => each.lease !== lease) } : undefined
  }
  const claim: HeldLease = { lease, mode: what.mode ?? 'exclusive', permits: what.permits ?? 1 }
  const fits = !isHeld && model.fits(state.held, claim)
  if (what.answer === 'refused') return fits ? undefined : state
  if (!fits) return undefined
  const held = [...state.held, claim].sort((a, b) => (a.lease < b.lease ? -1 : 1))
  if (!model.isFenced || what.token === undefined) return { ...state, held }
  return what.token > state.mark ? { held, mark: what.token } : undefined
}

export const keyOf = ({ held, mark }: LockState): string => `${mark} ${held.map(({ lease }) => lease).join(' ')}`
