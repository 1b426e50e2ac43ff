import { closeSync, openSync, writeSync } from 'node:fs'
import {
  ALIVE,
  type ClaimHistory,
  type LeaseHistory,
  type LossHistory,
  type MemorySample,
  PULSE_BYTES,
  type RateHistory,
  type Stall,
} from './history.ts'

export type ClaimStart = Omit<ClaimHistory, 'id' | 'waitingAt' | 'abortedAt' | 'answeredAt' | 'outcome' | 'code'>

/** `claim` is the number of the claim. */
export type Grant = Omit<LeaseHistory, 'id' | 'claim' | 'end' | 'releasedAt' | 'released' | 'loss'> & {
  claim?: number
}

type Outcome = NonNullable<ClaimHistory['outcome']>

/** A line of the file. Claims and leases are numbered from 1, each on their own. */
export type Line =
  | ['claim', claim: number, start: ClaimStart]
  | ['waiting' | 'abort', claim: number, atMs: number]
  | ['answer', claim: number, atMs: number, outcome: Outcome, code?: string]
  | ['grant', lease: number, grant: Grant]
  | ['renewed', lease: number, atMs: number]
  | ['end', lease: number, how: 'released' | 'lost', heldUntil: number | null]
  | ['released', lease: number, atMs: number, result: boolean | string]
  | ['loss', lease: number, loss: LossHistory]
  | ['rate', step: RateHistory]
  | ['stall', fromMs: number, toMs: number]
  | ['memory', sample: MemorySample]
  | ['error', where: string, code: string, unexpected?: string]
  | ['resurrected', lease: number]

/**
 * Writes a client's history so that it survives a SIGKILL: each line is one synchronous write to a file. The last check
 * of a lease is not a line, because there are a hundred per second: it overwrites its task's place in a second file.
 */
export class HistoryWriter {
  readonly #lines: number
  readonly #pulses: number
  readonly #pulse = new Float64Array(2)
  #claims = 0
  #leases = 0

  constructor(file: string) {
    this.#lines = openSync(file, 'w')
    this.#pulses = openSync(`${file}.pulse`, 'w')
  }

  /** Returns the claim's number. */
  claim(start: ClaimStart): number {
    this.#claims += 1
    this.#write(['claim', this.#claims, start])
    return this.#claims
  }

  /** Records that the store has refused the claim, which waits from now on. */
  waiting(claim: number, atMs: number): void {
    this.#write(['waiting', claim, atMs])
  }

  /** Records that the task aborts its claim. */
  abort(claim: number, atMs: number): void {
    this.#write(['abort', claim, atMs])
  }

  answer(claim: number, atMs: number, outcome: Outcome, code?: string): void {
    this.#write(code === undefined ? ['answer', claim, atMs, outcome] : ['answer', claim, atMs, outcome, code])
  }

  /** Returns the lease's number. */
  grant(lease: Grant): number {
    this.#leases += 1
    this.#write(['grant', this.#leases, lease])
    return this.#leases
  }

  /** Records that the store has confirmed the lease, or that an extension was sent. */
  renewed(lease: number, atMs: number): void {
    this.#write(['renewed', lease, atMs])
  }

  /** Records that the lease was held at this time. */
  held(task: number, lease: number, atMs: number): void {
    this.#beat(task + 1, lease, atMs)
  }

  /** Records that the process ran at this time. */
  alive(atMs: number): void {
    this.#beat(0, ALIVE, atMs)
  }

  end(lease: number, how: 'released' | 'lost', heldUntil: number | undefined): void {
    this.#write(['end', lease, how, heldUntil ?? null])
  }

  /** Records the answer to a release: whether the lease was still held, or the code of an error. */
  released(lease: number, atMs: number, result: boolean | string): void {
    this.#write(['released', lease, atMs, result])
  }

  loss(lease: number, loss: LossHistory): void {
    this.#write(['loss', lease, loss])
  }

  rate(step: RateHistory): void {
    this.#write(['rate', step])
  }

  stall({ fromMs, toMs }: Stall): void {
    this.#write(['stall', fromMs, toMs])
  }

  memory(sample: MemorySample): void {
    this.#write(['memory', sample])
  }

  error(where: string, code: string, unexpected?: string): void {
    this.#write(unexpected === undefined ? ['error', where, code] : ['error', where, code, unexpected])
  }

  resurrected(lease: number): void {
    this.#write(['resurrected', lease])
  }

  close(): void {
    closeSync(this.#lines)
    closeSync(this.#pulses)
  }

  #beat(place: number, number: number, atMs: number): void {
    this.#pulse[0] = number
    this.#pulse[1] = atMs
    writeSync(this.#pulses, this.#pulse, 0, PULSE_BYTES, place * PULSE_BYTES)
  }

  #write(line: Line): void {
    writeSync(this.#lines, `${JSON.stringify(line)}\n`)
  }
}
