import { checkWhole } from '../../core/arguments.ts'
import { InvalidArgumentError } from '../../core/errors.ts'
import { checkOptions, optionNames } from '../../core/options.ts'
import { type Clock, type Instant, isPast, later } from '../../core/time/clock.ts'
import { aged, periodMsFrom, type RateLimitResult } from './limits.ts'

export interface LocalShareOptions {
  /** How many units are taken from the store at once. At most the smallest burst. */
  units: number
  /** How long these units may be handed out. The rest is then lost. From 0.001 to one year. */
  keepSeconds: number
}

const OPTIONS = optionNames<LocalShareOptions>({ units: true, keepSeconds: true })

export function checkShare(value: unknown, mostUnits: number): LocalShareOptions {
  if (typeof value !== 'object' || value === null) {
    throw new InvalidArgumentError('localShare', value, 'an object with units and keepSeconds')
  }
  const { units, keepSeconds } = checkOptions(value as LocalShareOptions, OPTIONS, 'localShare')
  checkWhole('localShare.units', units, 1, mostUnits)
  periodMsFrom('localShare.keepSeconds', keepSeconds)
  return { units, keepSeconds }
}

/**
 * Hands out units from blocks that were taken in advance, so that a key in constant use costs one round trip per block.
 * A call for more than what is left fetches a block, and is answered from both. A call that comes meanwhile waits for
 * that block. If it gets none of it, or if the store has no full block left, the call asks for its own units. So a call
 * costs at most two round trips. `ask` remembers refusals, so a store without a full block is not asked for one again.
 */
export class LocalShares {
  readonly #options: LocalShareOptions
  readonly #clock: Clock
  readonly #ask: (key: string, cost: number) => Promise<RateLimitResult>
  readonly #shares = new Map<string, LocalShare>()

  constructor(options: LocalShareOptions, clock: Clock, ask: (key: string, cost: number) => Promise<RateLimitResult>) {
    this.#options = options
    this.#clock = clock
    this.#ask = ask
  }

  async consume(key: string, cost: number): Promise<RateLimitResult> {
    if (cost > this.#options.units) return this.#ask(key, cost)
    const share = this.#shares.get(key) ?? { blocks: [] }
    const now = this.#clock.now()
    dropPast(share, now)
    const taken = this.#take(share, cost)
    if (taken !== undefined) return taken
    // Calls that waited for a block get their units even if the block's time was over when it arrived: they are taken.
    await (share.fetching ?? this.#fetch(key, share, now))
    return this.#take(share, cost) ?? this.#ask(key, cost)
  }

  /** The key was reset or blocked: units that were taken before are no longer handed out. */
  forget(key: string): void {
    this.#shares.delete(key)
  }

  /** From the oldest block first. */
  #take({ blocks, answer }: LocalShare, cost: number): RateLimitResult | undefined {
    const left = blocks.reduce((sum, block) => sum + block.left, -cost)
    if (answer === undefined || left < 0) return undefined
    let missing = cost
    for (const block of blocks) {
      const taken = Math.min(block.left, missing)
      block.left -= taken
      missing -= taken
    }
    const { result, askedAt } = answer
    const now = aged(result, Math.max(0, this.#clock.now().monotonicMs - askedAt.monotonicMs) / 1_000)
    const limits = now.limits.map((limit) => ({ ...limit, remaining: limit.remaining + left }))
    return { ...now, remaining: now.remaining + left, limits }
  }

  #fetch(key: string, share: LocalShare, now: Instant): Promise<void> {
    this.#shares.delete(key)
    if (this.#shares.size >= MAX_SHARES) {
      const [oldest = key] = this.#shares.keys()
      this.#shares.delete(oldest)
    }
    this.#shares.set(key, share)
    const { units, keepSeconds } = this.#options
    const fetch = async (): Promise<void> => {
      const result = await this.#ask(key, units)
      if (!result.allowed) return
      dropPast(share, this.#clock.now())
      share.blocks.push({ left: units, until: later(now, keepSeconds * 1_000) })
      share.answer = { result, askedAt: now }
    }
    share.fetching = fetch().finally(() => {
      share.fetching = undefined
    })
    return share.fetching
  }
}

function dropPast(share: LocalShare, now: Instant): void {
  share.blocks = share.blocks.filter(({ left, until }) => left > 0 && !isPast(until, now))
}

interface LocalShare {
  /** What is left of each block, the oldest first. */
  blocks: { left: number; readonly until: Instant }[]
  /** The store's answer to the last block. */
  answer?: { readonly result: RateLimitResult; readonly askedAt: Instant }
  fetching?: Promise<void> | undefined
}

/** How many keys can have a share. With more, the rest of the oldest is lost. */
const MAX_SHARES = 10_000
