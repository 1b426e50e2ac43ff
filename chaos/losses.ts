import type { Loss } from './check.ts'
import { nowMs } from './history.ts'

/** The losses of a store, and the rule that there is one at a time. */
export class Losses {
  readonly all: Loss[] = []
  #aloneUntilMs = 0

  /** Work that makes the store lose leases. It does so even if the work fails half-way, but then not for certain. */
  async losing(
    { endsAll = false, ...what }: Omit<Loss, 'fromMs' | 'toMs'>,
    work: () => Promise<boolean>,
  ): Promise<boolean> {
    const fromMs = nowMs()
    let isDone = false
    try {
      isDone = await work()
      return isDone
    } finally {
      this.all.push({ ...what, endsAll: endsAll && isDone, fromMs, toMs: nowMs() })
    }
  }

  /**
   * Returns false if another such work runs, or ended less than its `afterMs` ago: tokens rise over one such fault at a
   * time. The plan keeps them apart; this does so if one took longer than planned.
   */
  async alone(afterMs: number, work: () => Promise<boolean>): Promise<boolean> {
    if (nowMs() < this.#aloneUntilMs) return false
    this.#aloneUntilMs = Number.POSITIVE_INFINITY
    try {
      return await work()
    } finally {
      this.#aloneUntilMs = nowMs() + afterMs
    }
  }

  /** A step forwards ends leases before their time, if they have one. So does the way back from a step backwards. */
  async steppingClock(byMs: number, { shift, meanwhile, endsLeases = true }: ClockStep): Promise<boolean> {
    return this.alone(Math.abs(byMs) + SETTLE_MS, async () => {
      const step = async (toMs: number): Promise<boolean> => {
        await shift(toMs)
        return true
      }
      const losing = (toMs: number) => this.losing({ isOfConfirmed: true }, () => step(toMs))
      await (endsLeases && byMs > 0 ? losing(byMs) : step(byMs))
      await meanwhile()
      return endsLeases && byMs < 0 ? losing(0) : step(0)
    })
  }
}

interface ClockStep {
  shift(toMs: number): Promise<void>
  meanwhile(): Promise<void>
  endsLeases?: boolean
}

/** Time for a store to be as before, after a fault that runs alone. */
export const SETTLE_MS = 1_000
