import { existsSync, readFileSync } from 'node:fs'
import type { Line } from './history-writer.ts'

/** Milliseconds on the machine's monotonic clock, which all processes of a Linux machine share. */
export function nowMs(): number {
  const [seconds, nanoseconds] = process.hrtime()
  return seconds * 1_000 + nanoseconds / 1_000_000
}

/**
 * What a claim is for. A writer of a read-write lock and a candidate make exclusive claims, as a lock does. A keeper is
 * the only one that claims its name.
 */
export type ClaimKind = 'lock' | 'read' | 'write' | 'permits' | 'election' | 'keep'

/** Which part of a lock a claim asks for. Without a mode it is exclusive. */
export interface Share {
  mode?: 'exclusive' | 'shared'
  /** A semaphore: how many permits may be held at once. */
  limit?: number
  /** A semaphore: how many of them are claimed. */
  permits?: number
}

/** One claim, as its task saw it. All times are from `nowMs`. */
export interface ClaimHistory extends Share {
  /** Unique in the run: client process, number. */
  id: string
  name: string
  kind: ClaimKind
  ttlMs: number
  askedAt: number
  /** How long it was to wait for a lock that is held. 0: it did not wait. Absent: it waited without end. */
  waitMs?: number
  /** From when on it is known that the store has refused it once and keeps it in its queue, if it has one. */
  waitingAt?: number
  /** When its task aborted it. */
  abortedAt?: number
  /** When its task knew the answer. Absent: its process was killed before, or it was never answered. */
  answeredAt?: number
  /** `failed`: an error, whose code is `code`. It is then unknown whether the store has granted it for some time. */
  outcome?: 'granted' | 'refused' | 'aborted' | 'failed'
  code?: string
}

/** One lease, as its holder saw it. */
export interface LeaseHistory extends Share {
  /** Unique in the run: client process, number. */
  id: string
  /** The id of its claim. */
  claim?: string
  kind?: ClaimKind
  name: string
  token: number
  ttlMs: number
  /** When the claim was made. */
  askedAt: number
  /** When the holder knew of the grant. */
  knownAt: number
  /**
   * The last time at which the holder relied on the lease: at which it saw `held === true`, or at which `signal` was
   * not aborted and the lease's own deadline had not passed. Undefined if the lease had ended before its first check.
   */
  heldUntil?: number
  /** When the store confirmed it again, or an extension was sent. Absent: its process does not record that. */
  renewals?: number[]
  /** How it ended. `killed` means with its process, which made no further check. */
  end: 'released' | 'lost' | 'killed'
  /** Whether a replica has confirmed the grant (`replicas: { count: 1 }`). */
  confirmed?: boolean
  /** When the answer to the release was known: true if the lease was still held, or the code of an error. */
  releasedAt?: number
  released?: boolean | string
  /** How its loss was signalled. */
  loss?: LossHistory
}

export interface LossHistory {
  /** When the lease’s `signal` aborted. Absent: it never did. */
  signalledAt?: number
  /** Until when the holder could rely on the lease, by its last confirmation. Absent: the lease had no such time. */
  deadlineAt?: number
  /** How often timers had run after the deadline while the signal was not aborted. */
  ticksLate: number
  /** Whether the holder looked at the signal alone. Reading `held` notices a loss at once, and aborts the signal. */
  isBySignal: boolean
}

/** One step of a rate limiter. */
export interface RateHistory {
  name: string
  cost: number
  limit: number
  periodMs: number
  burst: number
  askedAt: number
  answeredAt: number
  /** Whether the units were taken, or the code of an error: it is then unknown. */
  allowed: boolean | string
}

/** A time in which the process did nothing: it was paused, or its event loop was blocked. */
export interface Stall {
  fromMs: number
  toMs: number
}

export interface MemorySample {
  atMs: number
  rssBytes: number
  /** What is reachable: measured after a garbage collection. Absent in Python. */
  heapBytes?: number
}

/** The records of one client process. */
export interface ClientHistory {
  /** Number of the client and of its process: `0-1`. */
  client: string
  leases: LeaseHistory[]
  claims: ClaimHistory[]
  rates: RateHistory[]
  stalls: Stall[]
  memory: MemorySample[]
  /** The last time at which the process was seen running. */
  aliveAt?: number
  /** The number of failed calls, by method and code: `acquire STORE_UNAVAILABLE`. */
  errors: Record<string, number>
  /** Unexpected errors, one for each text. */
  unexpected: string[]
  /** Leases that were held again after their loss had been signalled. */
  resurrected: string[]
}

/** The client's number in `0-1.7`, which is the id of a claim or lease of that client. */
export const clientOf = (id: string): number => Number.parseInt(id, 10)

/** Reads the history of a client process, also of one that was killed. */
export function readHistory(file: string, client: string): ClientHistory {
  const history: ClientHistory = {
    client,
    leases: [],
    claims: [],
    rates: [],
    stalls: [],
    memory: [],
    errors: {},
    unexpected: [],
    resurrected: [],
  }
  if (!existsSync(file)) return history
  const pulses = readPulses(`${file}.pulse`)
  const alive = pulses.get(ALIVE)
  if (alive !== undefined) history.aliveAt = alive
  const claims = new Map<number, ClaimHistory>()
  const leases = new Map<number, LeaseHistory>()
  const idOf = (number: number): string => `${client}.${number}`
  const known = <T>(all: Map<number, T>, number: number): T => {
    const found = all.get(number)
    if (found === undefined) throw new Error(`${file}: ${idOf(number)} ends before it begins`)
    return found
  }
  for (const line of readLines(file)) {
    switch (line[0]) {
      case 'claim': {
        const claim = { id: idOf(line[1]), ...line[2] }
        claims.set(line[1], claim)
        history.claims.push(claim)
        break
      }
      case 'waiting':
        known(claims, line[1]).waitingAt ??= line[2]
        break
      case 'abort':
        known(claims, line[1]).abortedAt = line[2]
        break
      case 'answer': {
        const [, number, answeredAt, outcome, code] = line
        Object.assign(known(claims, number), { answeredAt, outcome, ...(code !== undefined && { code }) })
        break
      }
      case 'grant': {
        const [, number, { claim, ...grant }] = line
        const lastLook = pulses.get(number)
        const seen = lastLook !== undefined && { heldUntil: lastLook }
        const of = claim !== undefined && { claim: idOf(claim) }
        const lease: LeaseHistory = { id: idOf(number), ...of, ...grant, ...seen, end: 'killed' }
        leases.set(number, lease)
        history.leases.push(lease)
        break
      }
      case 'renewed':
        known(leases, line[1]).renewals?.push(line[2])
        break
      case 'end': {
        const [, number, end, heldUntil] = line
        Object.assign(known(leases, number), { end, ...(heldUntil !== null && { heldUntil }) })
        break
      }
      case 'released': {
        const [, number, releasedAt, released] = line
        Object.assign(known(leases, number), { releasedAt, released })
        break
      }
      case 'loss':
        known(leases, line[1]).loss = line[2]
        break
      case 'rate':
        history.rates.push(line[1])
        break
      case 'stall':
        history.stalls.push({ fromMs: line[1], toMs: line[2] })
        break
      case 'memory':
        history.memory.push(line[1])
        break
      case 'error': {
        const [, where, code, unexpected] = line
        const key = `${where} ${code}`
        history.errors[key] = (history.errors[key] ?? 0) + 1
        if (unexpected !== undefined && !history.unexpected.includes(unexpected)) history.unexpected.push(unexpected)
        break
      }
      case 'resurrected':
        history.resurrected.push(idOf(line[1]))
        break
    }
  }
  return history
}

/** The bytes of a place in the pulse file: the number of a lease, and the time of its last check. */
export const PULSE_BYTES = 16
/** The number in the first place of the pulse file, whose time is the last one at which the process ran. */
export const ALIVE = 0

function readLines(file: string): Line[] {
  const lines = readFileSync(file, 'utf8').split('\n')
  // After the last line break there is nothing, or half a line of a process that was killed while it wrote.
  return lines.slice(0, -1).map((line) => JSON.parse(line) as Line)
}

function readPulses(file: string): Map<number, number> {
  const bytes = existsSync(file) ? readFileSync(file) : Buffer.alloc(0)
  const pulses = new Map<number, number>()
  for (let at = 0; at + PULSE_BYTES <= bytes.length; at += PULSE_BYTES) {
    const time = bytes.readDoubleLE(at + 8)
    if (time > 0) pulses.set(bytes.readDoubleLE(at), time)
  }
  return pulses
}
