import { closeSync, existsSync, openSync, readFileSync, writeSync } from 'node:fs'

/** Milliseconds on the machine's monotonic clock, which all processes of a Linux machine share. */
export function nowMs(): number {
  const [seconds, nanoseconds] = process.hrtime()
  return seconds * 1_000 + nanoseconds / 1_000_000
}

/** One lease, as its holder saw it. All times are from `nowMs`. */
export interface LeaseHistory {
  /** Unique in the run: client process, task, number. */
  id: string
  name: string
  token: number
  ttlMs: number
  /** When the claim was made. */
  askedAt: number
  /** When the holder knew of the grant. */
  knownAt: number
  /**
   * The last time at which the holder saw `held === true`. Undefined if it never did, because the lease had ended
   * before its first check.
   */
  heldUntil?: number
  /** How it ended. `killed` means with its process, which made no further check. */
  end: 'released' | 'lost' | 'killed'
  /** Whether a replica has confirmed the grant (`replicas: { count: 1 }`). */
  confirmed?: boolean
}

/** The records of one client process. */
export interface ClientHistory {
  leases: LeaseHistory[]
  claims: number
  refused: number
  /** The number of failed calls, by method and code: `acquire STORE_UNAVAILABLE`. */
  errors: Record<string, number>
  /** Unexpected errors, one for each text. */
  unexpected: string[]
  /** Leases that were held again after their loss had been signalled. */
  resurrected: string[]
}

export type Grant = Omit<LeaseHistory, 'id' | 'end'>

type Line =
  | ['claim' | 'refused']
  | ['grant', id: number, lease: Grant]
  | ['end', id: number, how: 'released' | 'lost', heldUntil: number | null]
  | ['error', where: string, code: string, unexpected?: string]
  | ['resurrected', id: number]

/**
 * Writes a client's history so that it survives a SIGKILL: each line is one synchronous write to a file. The last check
 * of a lease is not a line, because there are a hundred per second: it overwrites its task's place in a second file.
 */
export class HistoryWriter {
  readonly #lines: number
  readonly #pulses: number
  readonly #pulse = new Float64Array(2)
  #leases = 0

  constructor(file: string) {
    this.#lines = openSync(file, 'w')
    this.#pulses = openSync(`${file}.pulse`, 'w')
  }

  claim(): void {
    this.#write(['claim'])
  }

  refused(): void {
    this.#write(['refused'])
  }

  /** Returns the lease's number. */
  grant(lease: Grant): number {
    this.#leases += 1
    this.#write(['grant', this.#leases, lease])
    return this.#leases
  }

  /** Records that the lease was held at this time. */
  held(task: number, lease: number, atMs: number): void {
    this.#pulse[0] = lease
    this.#pulse[1] = atMs
    writeSync(this.#pulses, this.#pulse, 0, PULSE_BYTES, task * PULSE_BYTES)
  }

  end(lease: number, how: 'released' | 'lost', heldUntil: number | undefined): void {
    this.#write(['end', lease, how, heldUntil ?? null])
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

  #write(line: Line): void {
    writeSync(this.#lines, `${JSON.stringify(line)}\n`)
  }
}

/** Reads the history of a client process, also of one that was killed. */
export function readHistory(file: string, client: string): ClientHistory {
  const history: ClientHistory = { leases: [], claims: 0, refused: 0, errors: {}, unexpected: [], resurrected: [] }
  if (!existsSync(file)) return history
  const pulses = readPulses(`${file}.pulse`)
  const open = new Map<number, LeaseHistory>()
  for (const line of readLines(file)) {
    if (line[0] === 'claim') history.claims += 1
    else if (line[0] === 'refused') history.refused += 1
    else if (line[0] === 'grant') {
      const [, id, lease] = line
      const lastLook = pulses.get(id)
      const seen = lastLook !== undefined && { heldUntil: lastLook }
      const granted: LeaseHistory = { id: `${client}.${id}`, ...lease, ...seen, end: 'killed' }
      history.leases.push(granted)
      open.set(id, granted)
    } else if (line[0] === 'end') {
      const [, id, how, heldUntil] = line
      const lease = open.get(id)
      if (lease === undefined) throw new Error(`${file}: lease ${id} ends before it begins`)
      lease.end = how
      if (heldUntil !== null) lease.heldUntil = heldUntil
      open.delete(id)
    } else if (line[0] === 'error') {
      const [, where, code, unexpected] = line
      const key = `${where} ${code}`
      history.errors[key] = (history.errors[key] ?? 0) + 1
      if (unexpected !== undefined && !history.unexpected.includes(unexpected)) history.unexpected.push(unexpected)
    } else {
      history.resurrected.push(`${client}.${line[1]}`)
    }
  }
  return history
}

const PULSE_BYTES = 16

function readLines(file: string): Line[] {
  const lines = readFileSync(file, 'utf8').split('\n')
  // After the last line break there is nothing, or half a line of a process that was killed while it wrote.
  return lines.slice(0, -1).map((line) => JSON.parse(line) as Line)
}

function readPulses(file: string): Map<number, number> {
  const bytes = existsSync(file) ? readFileSync(file) : Buffer.alloc(0)
  const pulses = new Map<number, number>()
  for (let at = 0; at + PULSE_BYTES <= bytes.length; at += PULSE_BYTES) {
    pulses.set(bytes.readDoubleLE(at), bytes.readDoubleLE(at + 8))
  }
  return pulses
}
