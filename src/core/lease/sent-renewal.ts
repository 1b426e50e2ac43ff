import type { RenewAnswer } from '../driver.ts'
import type { Receiver, SentCall } from '../store/calls.ts'
import type { Instant } from '../time/clock.ts'
import type { RenewalInFlight } from './deadline.ts'

interface RenewalTerms {
  readonly sent: Instant
  readonly ttlMs: number
  /** Whether it shortens no extension. Extensions wait for it. */
  readonly lengthens: boolean
  /** Whether it only asks whether the store has the lease. */
  readonly confirms: boolean
}

/** What a renewal has led to. */
export interface RenewalResult {
  /** `isHeld`: false if the lease is lost. `answer`: what the store said. Undefined: it was not asked. */
  done(isHeld: boolean, answer?: RenewAnswer): void
  /** It is unknown whether the store has renewed the lease. */
  failed(error: unknown): void
}

/** The renewer of the lease. */
export interface RenewalSender {
  /** @returns whether the lease is held */
  answered(renewal: SentRenewal, answer: RenewAnswer, now: Instant): boolean
  unanswered(renewal: SentRenewal): void
}

/** A renewal from its request to its answer. */
export class SentRenewal implements RenewalInFlight, Receiver<RenewAnswer> {
  readonly sent: Instant
  readonly ttlMs: number
  readonly lengthens: boolean
  readonly confirms: boolean
  provenMs: number
  readonly #sender: RenewalSender
  readonly #result: RenewalResult
  #settled: Promise<void> | undefined
  #settle: (() => void) | undefined

  constructor(sender: RenewalSender, result: RenewalResult, { sent, ttlMs, lengthens, confirms }: RenewalTerms) {
    this.#sender = sender
    this.#result = result
    this.sent = sent
    this.ttlMs = ttlMs
    this.lengthens = lengthens
    this.confirms = confirms
    this.provenMs = ttlMs
  }

  /** Resolves when the renewal was answered or has failed. */
  get settled(): Promise<void> {
    this.#settled ??= new Promise((resolve) => {
      this.#settle = resolve
    })
    return this.#settled
  }

  answered(answer: RenewAnswer, _call: SentCall, now: Instant): void {
    const isHeld = this.#sender.answered(this, answer, now)
    this.#settle?.()
    this.#result.done(isHeld, answer)
  }

  failed(error: unknown): void {
    this.#sender.unanswered(this)
    this.#settle?.()
    this.#result.failed(error)
  }
}
