import { type Clock, systemClock, type Timer } from '../../core/clock.ts'
import type { RateAnswer, RateRequest } from '../../core/driver.ts'
import { consumeStep } from './consume-step.ts'

/** The rates of a store in memory. One that is used no more leaves nothing behind: a sweep goes round as long as there are any. */
export function createRates(clock: Clock): Rates {
  /** For each limit of a name the moment when it will be as if nothing had been taken. */
  const rates = new Map<string, number[]>()
  // The system's own is asked for one of its two clocks only: that is half of what a step costs.
  const nowMs = clock === systemClock ? Date.now : () => clock.now().wallMs
  let round = rates.entries()
  let sweeping: Timer | undefined

  function consume(requests: readonly RateRequest[]): RateAnswer[] {
    const now = nowMs()
    // A single one is what a limiter in the same process asks for, and what it costs is counted in nanoseconds.
    return requests.length === 1 ? [take(requests[0] as RateRequest, now)] : requests.map((each) => take(each, now))
  }

  function take(request: RateRequest, now: number): RateAnswer {
    const known = rates.get(request.name)
    return known === undefined ? consumeFresh(request, now) : consumeStep(request, known, now)
  }

  function consumeFresh(request: RateRequest, now: number): RateAnswer {
    const arrivalsMs: number[] = []
    const answer = consumeStep(request, arrivalsMs, now)
    if (arrivalsMs.length > 0) rates.set(request.name, arrivalsMs)
    if (sweeping === undefined) sweepLater(SWEEP_EVERY_MS)
    return answer
  }

  function sweepLater(ms: number): void {
    sweeping = clock.setTimer(sweep, ms)
  }

  /** A bounded part of the map at a time, so that nobody waits for it. */
  function sweep(): void {
    const now = nowMs()
    let looked = 0
    for (; looked < MOST_LOOKED_AT; looked += 1) {
      const { value, done } = round.next()
      if (done) break
      const [name, arrivalsMs] = value
      if (arrivalsMs.every((atMs) => atMs <= now)) rates.delete(name)
    }
    const isRound = looked < MOST_LOOKED_AT
    if (isRound) round = rates.entries()
    sweeping = undefined
    if (rates.size > 0) sweepLater(isRound ? SWEEP_EVERY_MS : 1)
  }

  return {
    consume,
    get size() {
      return rates.size
    },
  }
}

export interface Rates {
  consume(requests: readonly RateRequest[]): RateAnswer[]
  /** How many names are remembered. */
  readonly size: number
}

const SWEEP_EVERY_MS = 1_000
const MOST_LOOKED_AT = 2_000
