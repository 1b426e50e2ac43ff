import { connectionOf } from '../drivers/redis/client.ts'
import { inTime } from '../drivers/redis/errors.ts'
import { openClient } from '../drivers/redis/open.ts'
import { type RedisTarget, redlockUrl } from '../drivers/redis/url.ts'
import { openRedlock } from '../drivers/redlock.ts'
import type { Finding } from './finding.ts'
import { examineServers, rightsFor } from './redis.ts'
import { examineUse } from './use.ts'

export async function examineRedlock(url: string): Promise<Finding[]> {
  const { targets, prefix, persistent } = redlockUrl(url)
  const servers = (await Promise.all(targets.map(examineServers))).flat()
  const about = servers.filter(({ code }) => isOfInterest(code, persistent))
  about.push(...aboutNodes(await Promise.all(targets.map(runIdOf))))
  return [...about, ...(await examineUse(() => openRedlock(url), rightsFor(targets[0]?.username, prefix)))]
}

/** A node that forgets does not vote until all leases that it may have forgotten are over. */
const isOfInterest = (code: Finding['code'], isPersistent: boolean): boolean =>
  code !== 'REDIS_TOO_FEW_REPLICAS' && (isPersistent || code !== 'REDIS_NO_PERSISTENCE')

function* aboutNodes(runIds: readonly (string | undefined)[]): Generator<Finding> {
  const count = runIds.length
  const few = count < 3
  if (few || count % 2 === 0) {
    yield {
      code: 'REDLOCK_FEW_NODES',
      severity: few ? 'error' : 'warning',
      what: `There are ${count} nodes.`,
      why: few ? 'With fewer than 3, no node may fail.' : 'An even number survives no more failures than one less.',
      fix: 'Use 3 or 5 independent servers.',
    }
  }
  const known = runIds.filter((id) => id !== undefined)
  if (new Set(known).size < known.length) {
    yield {
      code: 'REDLOCK_SAME_SERVER',
      severity: 'error',
      what: 'Two of the addresses lead to the same server.',
      why: 'It has one vote. With fewer servers than addresses, fewer failures stop the lock.',
      fix: 'Name each server once.',
    }
  }
}

async function runIdOf(target: RedisTarget): Promise<string | undefined> {
  const { client, close } = await openClient(target)
  try {
    const [node] = await connectionOf(client).nodes()
    const info = await inTime('read INFO', TIMEOUT_MS, async () => node?.command(['INFO', 'server']))
    return /run_id:(\w+)/.exec(String(info))?.[1]
  } catch {
    return undefined
  } finally {
    await close()
  }
}

const TIMEOUT_MS = 5_000
