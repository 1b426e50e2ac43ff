import { MissingClientError } from '../../core/errors.ts'
import type { OpenedClient, OpenOptions } from './open-checks.ts'
import { openIoredis } from './open-ioredis.ts'
import { openNodeRedis } from './open-node-redis.ts'
import type { RedisTarget } from './url.ts'

/**
 * Opens a client with the library that is installed: ioredis, otherwise redis. Only the client of a Cluster is
 * connected when this resolves. Connections do not keep the process alive. A call in flight does, see
 * shared/keep-alive.ts.
 */
export async function openClient(target: RedisTarget, options: OpenOptions = {}): Promise<OpenedClient> {
  const opened = (await openIoredis(target, options)) ?? (await openNodeRedis(target, options))
  if (opened !== undefined) return opened
  throw new MissingClientError('the redis driver', ['ioredis', 'redis'])
}
