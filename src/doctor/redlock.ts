import { connectionOf } from '../drivers/redis/client.ts'
import { inTime } from '../drivers/redis/errors.ts'
import { openClient } from '../drivers/redis/open.ts'
import { type RedisTarget, redlockUrl } from '../drivers/redis/url.ts'
import { identityOf, WHY_NO_REPLICAS } from '../drivers/redlock/distinct-servers.ts'
import { openRedlock } from '../drivers/redlock.ts'
import type { Finding } from './finding.ts'
import { examineServers, rightsFor } from './redis.ts'
import { examineUse } from './use.ts'

export async function examineRedlock(url: string): Promise<Finding[]> {
  const { targets, prefix, persistent } = redlockUrl(url)
  const servers = (await Promise.all(targets.map(examineServers))).flat()
  const about = servers.filter(({ code }) => isOfInterest(code, persistent))
  about.push(...aboutNodes(await Promise.all(targets.map(identity))))
  return [...about, ...(await examineUse(() => openRedlock(url), rightsFor(targets[0]?.username, prefix)))]
}

/** A node that forgets does not vote until all leases that it may have forgotten are over. */
const isOfInterest = (code: Finding['code'], isPersistent: boolean): boolean =>
  code !== 'REDIS_TOO_FEW_REPLICAS' && (isPersistent || code !== 'REDIS_NO_PERSISTENCE')

function* aboutNodes(nodes: readonly Identity[]): Generator<Finding> {
  const count = nodes.length
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
  for (const [at, { replicas }] of nodes.entries()) {
    if (replicas === undefined) continue
    const [why = '', fix = ''] = WHY_NO_REPLICAS.split('. ')
    yield {
      code: 'REDLOCK_REPLICAS',
      severity: 'warning',
      what: `Node ${at + 1} ${replicas}.`,
      why: `${why}.`,
      fix: `${fix}.`,
    }
  }
  const known = nodes.flatMap(({ runId }) => (runId === undefined ? [] : [runId]))
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

type Identity = Awaited<ReturnType<typeof identityOf>>

async function identity(target: RedisTarget): Promise<Identity> {
  const { client, close } = await openClient(target)
  try {
    return await inTime('read INFO', TIMEOUT_MS, () => identityOf(connectionOf(client)))
  } catch {
    return { runId: undefined, replicas: undefined }
  } finally {
    await close()
  }
}

const TIMEOUT_MS = 5_000
