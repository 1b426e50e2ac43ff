import type { Clock } from '../../core/time/clock.ts'
import type { RedisConnection, RedisNode } from './connection.ts'
import { inTime } from './errors.ts'

/** What is wrong with a server, as far as locks are concerned, in sentences for an operator. */
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
  readonly uptimeSeconds: number
}

export async function serverFacts(command: (args: readonly string[]) => Promise<unknown>): Promise<ServerFacts> {
  const info = String(await command(['INFO']))
  const field = (name: string): string => new RegExp(`^${name}:(.*)$`, 'm').exec(info)?.[1]?.trim() ?? ''
  // Valkey says 7.2.4 here whatever its own version is, which is what it is compatible with.
  const [major = 0, minor = 0] = field('redis_version').split('.').map(Number)
  return {
    major,
    minor,
    role: field('role'),
    evictionPolicy: field('maxmemory_policy'),
    maxMemory: Number(field('maxmemory')),
    uptimeSeconds: Number(field('uptime_in_seconds')),
  }
}

export function warningsOf(facts: ServerFacts): RedisWarning[] {
  const { major, minor, role, evictionPolicy, maxMemory } = facts
  const warnings: RedisWarning[] = []
  if (role === 'slave') {
    const message =
      'this Redis is a read-only replica: no lock can be taken here. Connect to the master, or through Sentinel'
    warnings.push({ code: 'REPLICA', message })
  }
  if (major < 6 || (major === 6 && minor < 2)) {
    warnings.push({ code: 'TOO_OLD', message: `this Redis is ${major}.${minor}: locks need 6.2 or later` })
  }
  if (evictionPolicy !== '' && evictionPolicy !== 'noeviction') {
    const when = maxMemory > 0 ? 'when its memory is full' : 'as soon as somebody sets maxmemory'
    const message =
      `this Redis may evict locks ${when} (maxmemory-policy ${evictionPolicy}): a lock that is evicted is granted again while it is ` +
      'held. Set maxmemory-policy noeviction, or give locks a server of their own'
    warnings.push({ code: 'EVICTION', message })
  }
  return warnings
}

/** What is known of the servers. */
export interface ServerReport {
  readonly warnings: readonly RedisWarning[]
  /** Of the servers that answered. Empty if the user may not run INFO: then nothing is known, and nothing will be. */
  readonly facts: readonly ServerFacts[]
  /** Why a server did not answer. It is asked again later. */
  readonly failure?: Error
}

/**
 * Looks at the servers once. Without the right to INFO it does not try again: every acquire would bring a refused
 * command with it. A server that did not answer is asked again, but only after `LOOK_AGAIN_MS`.
 */
export class ServerLook {
  readonly #connection: RedisConnection
  readonly #timeoutMs: number
  readonly #clock: Clock
  #report: Promise<ServerReport> | undefined
  #againAtMs = Number.POSITIVE_INFINITY
  #complete = false

  constructor({ connection, timeoutMs, clock }: { connection: RedisConnection; timeoutMs: number; clock: Clock }) {
    this.#connection = connection
    this.#timeoutMs = timeoutMs
    this.#clock = clock
  }

  /** Whether all is known that ever will be. */
  get isComplete(): boolean {
    return this.#complete
  }

  report(): Promise<ServerReport> {
    if (this.#report === undefined || this.#clock.now().monotonicMs >= this.#againAtMs) {
      this.#againAtMs = Number.POSITIVE_INFINITY
      this.#report = this.#look()
    }
    return this.#report
  }

  async #look(): Promise<ServerReport> {
    const report = await this.#askAll().catch((failure: Error) => ({ warnings: [], facts: [], failure }))
    if (report.failure === undefined) this.#complete = true
    else this.#againAtMs = this.#clock.now().monotonicMs + LOOK_AGAIN_MS
    return report
  }

  async #askAll(): Promise<ServerReport> {
    const nodes = await inTime('find the servers', this.#timeoutMs, () => this.#connection.nodes(), this.#connection)
    const answers = await Promise.all(nodes.map((node) => this.#ask(node).catch((error: Error) => error)))
    const facts = answers.flatMap((answer) => (answer === undefined || answer instanceof Error ? [] : [answer]))
    const failure = answers.find((answer) => answer instanceof Error)
    const warnings = facts.flatMap(warningsOf)
    const firsts = warnings.filter(({ message }, at) => warnings.findIndex((each) => each.message === message) === at)
    return { warnings: firsts, facts, ...(failure && { failure }) }
  }

  /** Undefined: it may not be asked. */
  async #ask(node: RedisNode): Promise<ServerFacts | undefined> {
    try {
      return await inTime('look at the server', this.#timeoutMs, () => serverFacts((args) => node.command(args)))
    } catch (error) {
      if (isForbidden(error)) return undefined
      throw error
    }
  }
}

/** By the access control list, or because the command was renamed. */
const isForbidden = (error: unknown): boolean =>
  error instanceof Error && /\bNOPERM\b|unknown command/i.test(error.message)

const LOOK_AGAIN_MS = 1_000
