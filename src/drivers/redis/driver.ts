import { randomBytes } from 'node:crypto'
import type {
  AcquireAnswer,
  Capabilities,
  Claim,
  Driver,
  Grant,
  InspectPage,
  LeaseRef,
  RenewAnswer,
  Renewal,
} from '../../core/driver.ts'
import { StoreError } from '../../core/errors.ts'
import { type Clock, systemClock } from '../../core/time/clock.ts'
import { failTogether } from '../shared/groups.ts'
import type { RedisConnection } from './connection.ts'
import { closedError, inTime } from './errors.ts'
import { acquireArgs, type ProposedClaim, readAcquire, releaseArgs, strange, type TokenRefusal } from './format.ts'
import { inspect, show } from './inspect.ts'
import { consume } from './rates.ts'
import { renewEach, renewList } from './renewals.ts'
import { type ReplicaWait, renewOnReplicas } from './replicas.ts'
import { ballotRunner, runScript } from './scripts.ts'
import {
  type Chunk,
  type LeasesReply,
  type ListParts,
  MAX_ENTRIES,
  runLeases,
  sendList,
  type Telling,
} from './send-batch.ts'
import { Subscription } from './subscription.ts'

export const redisCapabilities: Capabilities = {
  expiry: 'ttl',
  scope: 'network',
  fencing: true,
  shared: true,
  limit: true,
  queue: true,
  wake: true,
  metadata: true,
  rate: true,
  steal: true,
  groups: true,
}

/** Names of different slots are in different calls, to different servers. */
const clusterCapabilities: Capabilities = { ...redisCapabilities, groups: false }

export interface RedisDriverParts extends ListParts {
  readonly connection: RedisConnection
  /** Cluster only: whether the servers publish by slot. */
  sharded(): Promise<boolean>
  readonly replicas?: ReplicaWait
  readonly clock?: Clock
  /** Ends what was opened for this driver alone. */
  close?(): Promise<void>
}

/** A driver on one server or one Cluster, and what Redlock needs of a node beyond that. */
export interface RedisDriver extends Driver {
  readonly connection: RedisConnection
  /**
   * Claims with the tokens that are to be given. They do not queue. Rejects if the node may have forgotten a lease of
   * up to `longestTtlMs`; undefined: it forgets nothing.
   */
  propose(
    claims: readonly ProposedClaim[],
    longestTtlMs: number | undefined,
  ): Promise<readonly (AcquireAnswer | TokenRefusal | Error)[]>
  /** As `release`. Publishes what there is to tell of each lease, in the same step, after it was ended. */
  releaseAndTell(leases: readonly LeaseRef[], news: ReleaseTelling): Promise<readonly (boolean | Error)[]>
  /** What lies on these names. */
  show(lockNames: readonly string[]): Promise<InspectPage>
}

export interface ReleaseTelling {
  readonly channel: string
  /** On one line. */
  messageOf(lease: LeaseRef): string
  /** The leases were ended, but the server refused to publish. */
  failed(error: Error): void
}

export function redisDriverOn(parts: RedisDriverParts): RedisDriver {
  const { connection, prefix, timeoutMs, sharded, replicas, clock = systemClock } = parts
  const clientId = randomBytes(9).toString('base64url')
  const confirmsGrants = replicas !== undefined
  const subscription = new Subscription({ connection, clientId, timeoutMs, sharded, confirmsGrants, clock })
  // The subscription may still be at the server that was demoted, where it is not counted among those that hear a
  // grant.
  const stopWatching = connection.master?.onChange(() =>
    subscription.restart(new StoreError('the master was replaced')),
  )
  let closed = false
  const assertOpen = (): void => {
    if (closed) throw closedError()
  }

  async function acquireChunk(chunk: Chunk<Claim>): Promise<readonly (AcquireAnswer | Error)[]> {
    const { requests, slot } = chunk
    const asks = requests.some(({ waitMs }) => waitMs > 0) ? subscription.asks(requests, slot) : undefined
    const request = asks instanceof Promise ? await asks : asks
    const told = request && { channel: request.channel, text: request.secret }
    const reply = await runAcquire(parts, chunk, told).catch((error: unknown) => {
      if (request !== undefined) for (const claim of requests) subscription.asked(claim, request)
      throw error
    })
    const nowMs = reply[0]
    const answers = requests.map((claim, index) => {
      const answer = readAcquire(claim, nowMs, reply[1 + index])
      if ('tokenRefused' in answer) return strange('acquire', reply[1 + index])
      if (request === undefined || claim.waitMs === 0) return answer
      const heard = subscription.asked(claim, request)
      const isRefused = 'granted' in answer && !answer.granted
      if (isRefused && heard === undefined) subscription.waits(claim, request)
      else subscription.waitsNoMore(claim)
      return isRefused && heard !== undefined ? heard : answer
    })
    return replicas === undefined ? answers : confirmed(parts, replicas, chunk, answers)
  }

  /** On Cluster, who listens but does not hear this slot yet: hears it from now on, and looks again. */
  async function acquireAndHear(chunk: Chunk<Claim>): Promise<readonly (AcquireAnswer | Error)[]> {
    const answers = await acquireChunk(chunk)
    if (!subscription.misses(chunk.slot)) return answers
    const waits = (claim: Claim, index: number): boolean => {
      const answer = answers[index]
      return claim.waitMs > 0 && answer !== undefined && 'granted' in answer && !answer.granted
    }
    if (!chunk.requests.some(waits)) return answers
    await subscription.hear([chunk.slot])
    const again = [...(await acquireChunk(chunkWhere(chunk, waits)))]
    return answers.map((answer, index) =>
      waits(chunk.requests[index] as Claim, index) ? (again.shift() ?? answer) : answer,
    )
  }

  async function releaseChunk(chunk: Chunk<LeaseRef>, telling?: ReleaseTelling): Promise<(boolean | Error)[]> {
    const { requests } = chunk
    for (const lease of requests) subscription.waitsNoMore(lease)
    const wasResent = connection.watchResends?.()
    const messages = new Set(telling && requests.map((lease) => telling.messageOf(lease)))
    const news = telling && { channel: telling.channel, text: [...messages].join('\n') }
    const reply = await runLeases(parts, 'release', chunk, releaseArgs(requests), news)
    if (reply[0] === 1) telling?.failed(new StoreError(`the server refused to publish on ${telling.channel}`))
    const answers = requests.map((_, index) => Number(reply[1 + index]) === 1)
    if (!answers.includes(false) || (await wasResent?.()) !== true) return answers
    return answers.map((answer) => answer || sentTwice())
  }

  return {
    name: 'redis',
    place: connection.place,
    capabilities: connection.cluster ? clusterCapabilities : redisCapabilities,
    ...(!connection.cluster && { listSplit: MAX_ENTRIES / 2 }),
    connection,

    async acquire(claims) {
      assertOpen()
      return sendList<Claim, AcquireAnswer>(parts, claims, connection.cluster ? acquireAndHear : acquireChunk)
    },

    async propose(claims, longestTtlMs) {
      assertOpen()
      const run = longestTtlMs === undefined ? runScript : ballotRunner(longestTtlMs)
      const byBallot = { ...parts, bySlot: true }
      const ballots = claims.map((claim) => ({ ...claim, waitMs: 0 }))
      return sendList<ProposedClaim, AcquireAnswer | TokenRefusal>(byBallot, ballots, async (chunk) => {
        const args = acquireArgs(chunk.requests)
        const [nowMs, ...replies] = await runLeases(byBallot, 'acquire', chunk, args, undefined, run)
        return chunk.requests.map((claim, index) => readAcquire(claim, nowMs, replies[index]))
      })
    },

    async show(lockNames) {
      assertOpen()
      return inTime('inspect', timeoutMs, () => show(connection, prefix, lockNames), connection)
    },

    async renew(renewals) {
      assertOpen()
      return sendList<Renewal, RenewAnswer>(parts, renewals, (chunk) => {
        if (replicas !== undefined) return renewOnReplicas(parts, replicas, chunk)
        return connection.cluster ? renewEach(parts, chunk) : renewList(parts, chunk)
      })
    },

    async release(leases) {
      assertOpen()
      return sendList<LeaseRef, boolean>(parts, leases, (chunk) => releaseChunk(chunk))
    },

    async releaseAndTell(leases, telling) {
      assertOpen()
      return sendList<LeaseRef, boolean>(parts, leases, (chunk) => releaseChunk(chunk, telling))
    },

    async consume(requests) {
      assertOpen()
      return consume(parts, requests)
    },

    async inspect(query) {
      assertOpen()
      return inTime('inspect', timeoutMs, () => inspect(connection, prefix, query), connection)
    },

    async listen(listener) {
      assertOpen()
      await subscription.listen(listener)
      return async () => subscription.stop(listener)
    },

    async close() {
      if (closed) return
      closed = true
      stopWatching?.()
      subscription.end()
      await parts.close?.()
    },
  }
}

/**
 * A theft of a lock with many shared leases takes several calls, each of which ends a bounded number of them. The lock
 * is the thief's from the first call on; it is granted when all leases are ended.
 */
async function runAcquire(parts: ListParts, chunk: Chunk<Claim>, told: Telling | undefined): Promise<LeasesReply> {
  const { requests } = chunk
  const argsOf = (claims: readonly Claim[]): string[] => acquireArgs(claims, parts.prefix === '')
  const reply = await runLeases(parts, 'acquire', chunk, argsOf(requests), told)
  let open = requests.flatMap(({ steal }, index) => (steal && isUnfinished(reply[1 + index]) ? [index] : []))
  while (open.length > 0) {
    const thieves = open.map((index) => requests[index] as Claim)
    const more = await runLeases(parts, 'acquire', { ...chunk, requests: thieves }, argsOf(thieves), told)
    open.forEach((index, at) => {
      reply[1 + index] = more[1 + at]
    })
    open = open.filter((index) => isUnfinished(reply[1 + index]))
  }
  return reply
}

const isUnfinished = (answer: unknown): boolean => Array.isArray(answer) && answer[0] === 'm'

/**
 * A grant counts when enough replicas have confirmed it: otherwise a failover now would forget it. For that it is
 * renewed, over the connection that WAIT then asks about. A renewal never re-creates a lease that was lost meanwhile.
 *
 * What is not confirmed stays in the store, and its claim fails: the caller asks again or withdraws the claim. A
 * release from here could arrive after the same claim has asked again, and end what it has got by then.
 */
async function confirmed(
  parts: ListParts,
  replicas: ReplicaWait,
  { requests, slot }: Chunk<Claim>,
  answers: readonly (AcquireAnswer | Error)[],
): Promise<readonly (AcquireAnswer | Error)[]> {
  const renewals: Renewal[] = []
  requests.forEach(({ lockName, claimId, ttlMs }, index) => {
    const answer = answers[index]
    if (!isGrant(answer)) return
    renewals.push({ lockName, claimId, ttlMs, fencingToken: answer.fencingToken })
  })
  if (renewals.length === 0) return [...answers]
  const asError = (error: Error): Error[] => renewals.map(() => error)
  const results = await renewOnReplicas(parts, replicas, { requests: renewals, slot }).catch(asError)
  let at = 0
  const counted = answers.map((answer, index) => {
    if (!isGrant(answer)) return answer
    const result = results[at++]
    if (result === 'renewed') return { ...answer, ttlMs: (requests[index] as Claim).ttlMs }
    return result instanceof Error ? result : new StoreError('the lease was lost before replicas had confirmed it')
  })
  return failTogether(requests, counted)
}

/** "No" may be the answer to a release that ended the lease the first time. It must not count as a loss. */
const sentTwice = (): StoreError =>
  new StoreError('the connection was lost during a release: it is not known whether the lease had ended before')

const isGrant = (answer: AcquireAnswer | Error | undefined): answer is Grant =>
  answer !== undefined && 'granted' in answer && answer.granted

const chunkWhere = (chunk: Chunk<Claim>, keep: (claim: Claim, index: number) => boolean): Chunk<Claim> => ({
  ...chunk,
  requests: chunk.requests.filter(keep),
})
