import { checkWhole } from '../../core/arguments.ts'
import { InvalidArgumentError } from '../../core/errors.ts'
import { MAX_TTL_MS } from '../../core/limits.ts'
import { checkOptions, optionNames } from '../../core/options.ts'
import { type Clock, type Instant, isPast, later } from '../../core/time/clock.ts'
import type { RateLimitResult } from './limits.ts'

export interface LocalShareOptions {
  /** How many units are taken from the store at once. At most the smallest burst. */
  units: number
  /** How long these units may be handed out. The rest is then lost. From 0.001 to one year. */
  forSeconds: number
}

const OPTIONS = optionNames<LocalShareOptions>({ units: true, forSeconds: true })

export function checkShare(value: unknown, mostUnits: number): LocalShareOptions {
  if (typeof value !== 'object' || value === null) {
    throw new InvalidArgumentError('localShare', value, 'an object with units and forSeconds')
  }
  const { units, forSeconds } = checkOptions(value as Partial<LocalShareOptions>, OPTIONS, 'localShare')
  checkWhole('localShare.units', units, 1, mostUnits)
  if (!(typeof forSeconds === 'number' && forSeconds >= 0.001 && forSeconds <= MAX_TTL_MS / 1_000)) {
    const rule = `a number of seconds from 0.001 to ${MAX_TTL_MS / 1_000}`
    throw new InvalidArgumentError('localShare.forSeconds', forSeconds, rule)
  }
  return { units: units as number, forSeconds }
}

/**
 * Hands out units from blocks that were taken in advance, so that a key in constant use costs one round trip per block.
 * A call that comes while a block is being fetched waits for that block. If it gets none of it, or if the store has no
 * full block left, the call asks for its own units. So a call costs at most two round trips.
 */
export class LocalShares {
  readonly #options: LocalShareOptions
  readonly #clock: Clock
  readonly #ask: (key: string, cost: number) => Promise<RateLimitResult>
  readonly #shares = new Map<string, LocalBudget>()

  constructor(options: LocalShareOptions, clock: Clock, ask: (key: string, cost: number) => Promise<RateLimitResult>) {
    this.#options = options
    this.#clock = clock
    this.#ask = ask
  }

  async consume(key: string, cost: number): Promise<RateLimitResult> {
    if (cost > this.#options.units) return this.#ask(key, cost)
    const known = this.#shares.get(key)
    const now = this.#clock.now()
    if (known !== undefined && isPast(known.until, now)) known.left = 0
    const taken = known && this.#take(known, cost)
    if (taken !== undefined) return taken
    const isEmpty = known !== undefined && known.fetching === undefined && !isPast(known.emptyUntil, now)
    if (isEmpty) return this.#ask(key, cost)
    // Calls that waited for a block get their units even if the block's time was over when it arrived: they are taken.
    const fetched = await (known?.fetching ?? this.#fetch(key))
    return this.#take(fetched, cost) ?? this.#ask(key, cost)
  }

  /** The key was reset or blocked: units that were taken before are no longer handed out. */
  forget(key: string): void {
    this.#shares.delete(key)
  }

  #take(share: LocalBudget, cost: number): RateLimitResult | undefined {
    if (share.left < cost || share.block === undefined) return undefined
    const now = this.#clock.now()
    share.left -= cost
    const agedSeconds = Math.max(0, now.monotonicMs - share.takenAt.monotonicMs) / 1_000
    const { block, left } = share
    return {
      ...block,
      remaining: block.remaining + left,
      resetAfterSeconds: Math.max(0, block.resetAfterSeconds - agedSeconds),
      limits: block.limits.map((limit) => ({
        remaining: limit.remaining + left,
        nextAfterSeconds: Math.max(0, limit.nextAfterSeconds - agedSeconds),
        resetAfterSeconds: Math.max(0, limit.resetAfterSeconds - agedSeconds),
      })),
    }
  }

  #fetch(key: string): Promise<LocalBudget> {
    const takenAt = this.#clock.now()
    const share: LocalBudget = {
      left: 0,
      block: undefined,
      takenAt,
      until: takenAt,
      emptyUntil: takenAt,
      fetching: undefined,
    }
    if (this.#shares.size >= MAX_SHARES) {
      const [oldest = key] = this.#shares.keys()
      this.#shares.delete(oldest)
    }
    this.#shares.delete(key)
    this.#shares.set(key, share)
    share.fetching = this.#fill(share, key).finally(() => {
      share.fetching = undefined
    })
    return share.fetching
  }

  async #fill(share: LocalBudget, key: string): Promise<LocalBudget> {
    const { units, forSeconds } = this.#options
    try {
      const result = await this.#ask(key, units)
      if (result.allowed) {
        Object.assign(share, { left: units, block: result, until: later(share.takenAt, forSeconds * 1_000) })
      } else {
        share.emptyUntil = later(share.takenAt, result.retryAfterSeconds * 1_000)
      }
      return share
    } catch (error) {
      this.#shares.delete(key)
      throw error
    }
  }
}

interface LocalBudget {
  left: number
  block: RateLimitResult | undefined
  readonly takenAt: Instant
  until: Instant
  /** The store has no full block before this time. */
  emptyUntil: Instant
  fetching: Promise<LocalBudget> | undefined
}

/** How many keys can have a share. With more, the rest of the oldest is lost. */
const MAX_SHARES = 10_000
