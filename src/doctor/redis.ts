import { isOutage } from '../core/errors.ts'
import { connectionOf } from '../drivers/redis/client.ts'
import type { RedisNode } from '../drivers/redis/connection.ts'
import { inTime } from '../drivers/redis/errors.ts'
import { openClient } from '../drivers/redis/open.ts'
import { type RedisTarget, redisUrl } from '../drivers/redis/url.ts'
import { openRedis } from '../drivers/redis.ts'
import { type Finding, unreachable } from './finding.ts'
import { examineUse } from './use.ts'

export async function examineRedis(url: string): Promise<Finding[]> {
  const { target, prefix } = redisUrl(url)
  const servers = await examineServers(target)
  if (servers.some(({ code }) => code === 'UNREACHABLE' || code === 'REDIS_REPLICA')) return servers
  return [...servers, ...(await examineUse(() => openRedis(url), rightsFor(target.username, prefix)))]
}

/** The settings of each server. */
export async function examineServers(target: RedisTarget): Promise<Finding[]> {
  const { client, close } = await openClient(target)
  try {
    const connection = connectionOf(client)
    const nodes = await inTime('find the servers', TIMEOUT_MS, () => connection.nodes(), connection)
    return (await Promise.all(nodes.map((node) => examineNode(node)))).flat()
  } catch (error) {
    return [unreachable(error)]
  } finally {
    await close()
  }
}

async function examineNode(node: RedisNode): Promise<Finding[]> {
  const ask = (...args: string[]): Promise<unknown> => inTime(args[0] ?? '', TIMEOUT_MS, () => node.command(args))
  const info = await ask('INFO').then(String, unlessOutage)
  const field = (name: string): string => new RegExp(`^${name}:(.*)$`, 'm').exec(info)?.[1]?.trim() ?? ''
  const before = Date.now()
  const time = (await ask('TIME').catch(() => undefined)) as [string, string] | undefined
  const after = Date.now()
  const settings = await settingsOf(ask)
  const offsetMs = time === undefined ? 0 : Number(time[0]) * 1_000 + Number(time[1]) / 1_000 - (before + after) / 2
  const found = [...aboutServer(field), ...aboutWrites(field, settings), ...aboutClock(offsetMs)]
  return found.map((finding) => ({ ...finding, where: node.id }))
}

/** A server that forbids INFO is still examined. One that does not answer would take as long with each question. */
function unlessOutage(error: unknown): string {
  if (isOutage(error)) throw error
  return ''
}

async function settingsOf(ask: (...args: string[]) => Promise<unknown>): Promise<Map<string, string>> {
  const settings = new Map<string, string>()
  for (const name of ['save', 'min-replicas-to-write']) {
    // Hosted servers forbid CONFIG.
    const reply = await ask('CONFIG', 'GET', name).catch(() => undefined)
    const pairs = Array.isArray(reply) ? reply : Object.entries((reply ?? {}) as object).flat()
    if (pairs[1] !== undefined) settings.set(name, String(pairs[1]))
  }
  return settings
}

/** A field of INFO, or an empty text. */
type Field = (name: string) => string

function* aboutServer(field: Field): Generator<Finding> {
  const version = field('redis_version')
  const [major = 0, minor = 0] = version.split('.').map(Number)
  if (version !== '' && !(major > 6 || (major === 6 && minor >= 2))) {
    yield {
      code: 'REDIS_TOO_OLD',
      severity: 'error',
      what: `The server is Redis ${version}.`,
      why: 'The scripts need commands of 6.2.',
      fix: 'Upgrade to Redis 6.2 or later, or to Valkey.',
    }
  }
  if (field('role') === 'slave') {
    yield {
      code: 'REDIS_REPLICA',
      severity: 'error',
      what: `The server is a read-only replica of ${field('master_host')}.`,
      why: 'It cannot grant locks.',
      fix: 'Connect to the master, or through Sentinel.',
    }
  }
  const policy = field('maxmemory_policy')
  if (policy !== '' && policy !== 'noeviction') {
    yield {
      code: 'REDIS_EVICTION',
      severity: 'error',
      what: `maxmemory-policy is ${policy}.`,
      why: 'A lock that is evicted is granted again while it is held.',
      fix: 'CONFIG SET maxmemory-policy noeviction, or a separate server for locks.',
    }
  }
  const [used, most] = [Number(field('used_memory')), Number(field('maxmemory'))]
  if (most > 0 && used >= most * 0.9) {
    yield {
      code: 'REDIS_MEMORY',
      severity: 'warning',
      what: `The server uses ${Math.round((used / most) * 100)} % of maxmemory.`,
      why: 'When its memory is full, it refuses claims (OOM).',
      fix: 'Raise maxmemory, or use a separate server for locks.',
    }
  }
}

/** Where the server keeps what it has granted. A setting that is not known is not "off". */
function* aboutWrites(field: Field, settings: ReadonlyMap<string, string>): Generator<Finding> {
  if (field('aof_enabled') === '0' && settings.get('save') === '') {
    yield {
      code: 'REDIS_NO_PERSISTENCE',
      severity: 'warning',
      what: 'The server keeps nothing on disk.',
      why: 'After a restart it has forgotten all locks: each can be granted again while it is held. Tokens still rise.',
      fix: 'CONFIG SET appendonly yes, and let the protected resource check fencing tokens.',
    }
  }
  const [connected, good] = [Number(field('connected_slaves')), field('min_slaves_good_slaves')]
  const needed = Number(settings.get('min-replicas-to-write') ?? 0)
  if (needed > 0 && good !== '' && Number(good) < needed) {
    yield {
      code: 'REDIS_TOO_FEW_REPLICAS',
      severity: 'error',
      what: `min-replicas-to-write is ${needed}, but ${good} replicas are up to date.`,
      why: 'The server refuses all writes (NOREPLICAS), and so all claims, renewals and releases.',
      fix: 'Repair the replicas, or lower min-replicas-to-write.',
    }
  } else if (connected !== 0 && !(needed > 0) && settings.has('min-replicas-to-write')) {
    yield {
      code: 'REDIS_TOO_FEW_REPLICAS',
      severity: 'warning',
      what: `The server has ${connected} replicas, and grants locks without any of them.`,
      why: 'After a failover, a replica that had not got a lease grants the lock again. An old master does, too.',
      fix: 'CONFIG SET min-replicas-to-write 1, or the option replicas of the driver.',
    }
  }
}

export function* aboutClock(offsetMs: number): Generator<Finding> {
  if (Math.abs(offsetMs) < MOST_OFFSET_MS) return
  const side = offsetMs > 0 ? 'ahead of' : 'behind'
  yield {
    code: 'CLOCK_OFFSET',
    severity: 'warning',
    what: `The clock of the server is ${(Math.abs(offsetMs) / 1_000).toFixed(1)} s ${side} the one of this machine.`,
    why: 'Leases are not affected. Times that are shown are wrong, and fencing tokens may be compared with others.',
    fix: 'Synchronize the clocks (NTP).',
  }
}

/** The statement that gives a user all rights that it needs. */
export function rightsFor(username: string | undefined, prefix: string): string {
  const commands = '+@read +@write +@scripting +@pubsub +@connection +info +time +wait'
  return `ACL SETUSER ${username ?? 'NAME'} ~${prefix}* ~holdfast:* &holdfast:* ${commands}`
}

const TIMEOUT_MS = 5_000
const MOST_OFFSET_MS = 2_000
