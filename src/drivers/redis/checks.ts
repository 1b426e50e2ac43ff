import { callListener } from '../../core/call-listener.ts'
import { pause } from '../../core/time/abort.ts'
import type { Clock } from '../../core/time/clock.ts'
import type { RedisConnection, RedisNode } from './connection.ts'
import { inTime, isRefusedCommand } from './errors.ts'

/** A setting or a state of a server that endangers locks. `message` says what it is and what to do. */
export interface RedisWarning {
  readonly code: 'REPLICA' | 'TOO_OLD' | 'EVICTION'
  readonly message: string
}

export interface ServerFacts {
  readonly major: number
  readonly minor: number
  readonly role: string
  readonly evictionPolicy: string
  readonly maxMemory: number
}

export async function serverFacts(command: (args: readonly string[]) => Promise<unknown>): Promise<ServerFacts> {
  const info = String(await command(['INFO']))
  const field = (name: string): string => new RegExp(`^${name}:(.*)$`, 'm').exec(info)?.[1]?.trim() ?? ''
  // Valkey reports 7.2.4 here, the version that it is compatible with, and not its own.
  const [major = 0, minor = 0] = field('redis_version').split('.').map(Number)
  return {
    major,
    minor,
    role: field('role'),
    evictionPolicy: field('maxmemory_policy'),
    maxMemory: Number(field('maxmemory')),
  }
}

export function warningsOf(facts: ServerFacts): RedisWarning[] {
  const { major, minor, role, evictionPolicy, maxMemory } = facts
  const warnings: RedisWarning[] = []
  if (role === 'slave') {
    const message =
      'this Redis is a read-only replica and cannot grant locks. Connect to the master, or through Sentinel'
    warnings.push({ code: 'REPLICA', message })
  }
  if (major < 6 || (major === 6 && minor < 2)) {
    warnings.push({ code: 'TOO_OLD', message: `this Redis is ${major}.${minor}: locks need 6.2 or later` })
  }
  if (evictionPolicy !== '' && evictionPolicy !== 'noeviction') {
    const when = maxMemory > 0 ? 'when its memory is full' : 'as soon as maxmemory is set'
    const message =
      `this Redis may evict locks ${when} (maxmemory-policy ${evictionPolicy}). An evicted lock is granted again ` +
      'while it is held. Set maxmemory-policy noeviction, or use a separate server for locks'
    warnings.push({ code: 'EVICTION', message })
  }
  return warnings
}

interface ServerReport {
  /** Of the servers that answered. Empty if the user may not run INFO. Then they stay unknown. */
  readonly facts: readonly ServerFacts[]
  /** Why a server did not answer. It will be asked again. */
  readonly failure?: Error | undefined
}

export interface ServerChecksParts {
  readonly connection: RedisConnection
  readonly timeoutMs: number
  readonly clock: Clock
  onWarning(warning: RedisWarning): void
}

/**
 * Reads INFO of the servers once. Without the right to INFO it does not try again, because every acquire would then
 * send a command that is refused. A server that did not answer is asked again, but only after `ASK_AGAIN_MS`.
 */
export class ServerChecks {
  /** Whether there is nothing more to learn. */
  isComplete = false
  readonly #parts: ServerChecksParts
  readonly #warned = new Set<string>()
  #report: Promise<ServerReport> | undefined
  #early: Promise<ServerReport> | undefined
  #bySlot: boolean | undefined
  #againAtMs = Number.POSITIVE_INFINITY

  constructor(parts: ServerChecksParts) {
    this.#parts = parts
  }

  /**
   * Whether the servers publish by slot. Those of unknown version do not, because other messages work on any. A server
   * that hangs is not waited for: claims on the others must not wait for it, and a Cluster has one version, or two
   * while it is upgraded.
   */
  async publishBySlot(): Promise<boolean> {
    const complete = this.read()
    if (this.#bySlot !== undefined) return this.#bySlot
    const { facts, failure } = await Promise.race([complete, this.#early ?? complete])
    if (facts.length === 0 && failure !== undefined) throw failure
    return this.#decide(facts)
  }

  #decide(facts: readonly ServerFacts[]): boolean {
    const bySlot = facts.length > 0 && facts.every(({ major }) => major >= 7)
    if (facts.length > 0) this.#bySlot = bySlot
    return bySlot
  }

  /** Warns of what it finds, once. Never rejects. */
  read(): Promise<ServerReport> {
    if (this.#report === undefined || this.#parts.clock.now().monotonicMs >= this.#againAtMs) {
      this.#againAtMs = Number.POSITIVE_INFINITY
      this.#early = new Promise((early) => {
        this.#report = this.#ask(early)
      })
    }
    return this.#report as Promise<ServerReport>
  }

  /** `early`: gets what is known soon after the first server has answered. */
  async #ask(early: (report: ServerReport) => void): Promise<ServerReport> {
    const report = await this.#askAll(early).catch((failure: Error) => ({ facts: [], failure }))
    if (report.failure === undefined) this.isComplete = true
    else this.#againAtMs = this.#parts.clock.now().monotonicMs + ASK_AGAIN_MS
    this.#decide(report.facts)
    for (const warning of report.facts.flatMap(warningsOf)) {
      if (this.#warned.has(warning.message)) continue
      this.#warned.add(warning.message)
      callListener('onWarning', this.#parts.onWarning, warning)
    }
    return report
  }

  async #askAll(early: (report: ServerReport) => void): Promise<ServerReport> {
    const { connection, timeoutMs, clock } = this.#parts
    const nodes = await inTime('find the servers', timeoutMs, () => connection.nodes(), connection)
    const facts: ServerFacts[] = []
    let failure: Error | undefined
    const answered = nodes.map(async (node) => {
      const known = await this.#askNode(node)
      if (known !== undefined) facts.push(known)
    })
    const soon = Promise.any(answered).then(() => pause(clock, OTHERS_MS))
    soon.then(
      () => early({ facts: [...facts], failure }),
      () => undefined, // All have failed, which is the result.
    )
    const failed = (error: Error): void => {
      failure ??= error
    }
    await Promise.all(answered.map((each) => each.catch(failed)))
    return { facts, failure }
  }

  /** Undefined if the user may not run INFO. */
  async #askNode(node: RedisNode): Promise<ServerFacts | undefined> {
    try {
      return await inTime('read INFO', this.#parts.timeoutMs, () => serverFacts((args) => node.command(args)))
    } catch (error) {
      if (isRefusedCommand(error)) return undefined
      throw error
    }
  }
}

const ASK_AGAIN_MS = 1_000
/** How much longer than the first server the others may take. */
const OTHERS_MS = 250
