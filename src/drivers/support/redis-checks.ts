import type { RedisConnection } from './redis-connection.ts'

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

export async function checkServers(
  connection: RedisConnection,
): Promise<{ warnings: RedisWarning[]; facts: ServerFacts[] }> {
  const nodes = await connection.nodes()
  const facts = await Promise.all(nodes.map((node) => serverFacts((args) => node.command(args))))
  const warnings = facts.flatMap(warningsOf)
  const firsts = warnings.filter(({ message }, at) => warnings.findIndex((each) => each.message === message) === at)
  return { warnings: firsts, facts }
}
