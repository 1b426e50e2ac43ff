import { randomBytes } from 'node:crypto'
import type {
  AcquireAnswer,
  Capabilities,
  Claim,
  Driver,
  InspectPage,
  LeaseRef,
  RenewAnswer,
  Renewal,
} from '../../core/driver.ts'
import { StoreError } from '../../core/errors.ts'
import { type Clock, systemClock } from '../../core/time/clock.ts'
import { lossesOnly } from '../shared/losses-only.ts'
import type { RedisConnection } from './connection.ts'
import { closedError, inTime } from './errors.ts'
import { acquireArgs, readAcquire, releaseArgs, type TokenRefusal, unexpectedReply } from './format.ts'
import { inspect, inspectNames } from './inspect.ts'
import { inspectRates } from './inspect-rates.ts'
import { type ProposedClaim, runBallot } from './proposals.ts'
import { consume } from './rates.ts'
import { MAX_RENEWALS, renewEach, renewMany } from './renewals.ts'
import { confirmGrants, type ReplicaWait, renewOnReplicas } from './replicas.ts'
import {
  type Chunk,
  type LeasesReply,
  type ListParts,
  MAX_ENTRIES,
  type Publication,
  runLeases,
  sendLeases,
  sendList,
} from './send-batch.ts'
import type { SharedCall } from './shared-call.ts'
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
  force: true,
  groups: true,
}

/** Names of different slots go to different servers in different calls. */
const clusterCapabilities: Capabilities = { ...redisCapabilities, groups: false }

/** The driver that `redisDriver` returns: one server, one master behind Sentinel, or one Cluster. */
export interface RedisDriver extends Driver {
  readonly name: 'redis'
}

/** What Redlock needs of a node, beyond what every driver has. Not part of the public types. */
export interface RedlockNode extends RedisDriver {
  readonly connection: RedisConnection
  /** Claims with tokens that the caller proposes. They do not queue. Rejects if the node may have forgotten leases. */
  propose(proposals: SharedCall<ProposedClaim>): Promise<readonly (AcquireAnswer | TokenRefusal | Error)[]>
  /**
   * As `release`. In the same step, after the leases were ended, it publishes a message for each. `unpublished` is
   * called if the server refuses to publish.
   */
  releaseAndPublish(leases: SharedCall<LeaseRef>, unpublished: () => void): Promise<readonly (boolean | Error)[]>
  /** All leases and waiters of these names. */
  inspectNames(lockNames: readonly string[]): Promise<InspectPage>
}

export interface RedisDriverParts extends ListParts {
  readonly connection: RedisConnection
  /** Cluster only: whether the servers publish by slot. */
  sharded(): Promise<boolean>
  readonly replicas?: ReplicaWait
  readonly clock?: Clock
}

export function redisDriverOn(parts: RedisDriverParts): RedlockNode {
  const { connection, prefix, timeoutMs, sharded, replicas, clock = systemClock } = parts
  const clientId = randomBytes(9).toString('base64url')
  const confirmsGrants = replicas !== undefined
  const subscription = new Subscription({ connection, clientId, timeoutMs, sharded, confirmsGrants, clock })
  // The subscription may still be at the demoted server. The new master does not count it as a subscriber, so a waiter
  // would look dead to it.
  const stopWatching = connection.master?.onChange(() =>
    subscription.restart(new StoreError('the master was replaced')),
  )
  let closed = false
  const assertOpen = (): void => {
    if (closed) throw closedError()
  }
  /** For the frequent calls. An async function around the promise would take three more steps to settle. */
  const whileOpen = <Answer>(call: () => Promise<Answer>): Promise<Answer> =>
    closed ? Promise.reject(closedError()) : call()

  function acquireChunk(chunk: Chunk<Claim>): Promise<readonly (AcquireAnswer | Error)[]> {
    if (replicas !== undefined || chunk.requests.some(({ waitMs, steal }) => waitMs > 0 || steal)) {
      return acquireInSteps(chunk)
    }
    // By far the most frequent claims. Every promise on their way counts.
    const args = acquireArgs(chunk.requests)
    return runLeases(parts, 'acquire', chunk, args).then((reply) =>
      chunk.requests.map((claim, index) => readAnswer(claim, reply, index)),
    )
  }

  async function acquireInSteps(chunk: Chunk<Claim>): Promise<readonly (AcquireAnswer | Error)[]> {
    const { requests, slot } = chunk
    const sends = requests.some(({ waitMs }) => waitMs > 0) ? subscription.sends(requests, slot) : undefined
    // Without an await where none is needed: the parts of one list must leave in their order.
    const call = sends instanceof Promise ? await sends : sends
    const reply = await runAcquire(parts, chunk, call && { channel: call.channel, text: call.secret })
    const waiting: Claim[] = []
    const answers = requests.map((claim, index) => {
      const answer = readAnswer(claim, reply, index)
      if (call === undefined || claim.waitMs === 0) return answer
      if ('granted' in answer && !answer.granted) waiting.push(claim)
      else subscription.forget(claim, call)
      return answer
    })
    if (call?.isUnheard && waiting.length > 0) await subscription.hearSlot(slot, waiting)
    return replicas === undefined ? answers : confirmGrants(parts, replicas, chunk, answers)
  }

  function renewChunk(chunk: Chunk<Renewal>): Promise<readonly (RenewAnswer | Error)[]> {
    if (replicas !== undefined) return renewOnReplicas(parts, replicas, chunk)
    return connection.cluster ? renewEach(parts, chunk) : renewMany(parts, chunk)
  }

  function releaseChunk(chunk: Chunk<LeaseRef>): Promise<readonly (boolean | Error)[]> {
    const { requests } = chunk
    for (const lease of requests) subscription.forget(lease)
    const wasResent = connection.watchResends?.()
    return runLeases(parts, 'release', chunk, releaseArgs(requests)).then((reply) => ended(requests, reply, wasResent))
  }

  function releaseShared(
    leases: readonly LeaseRef[],
    shared: SharedCall<LeaseRef>,
    unpublished: () => void,
  ): Promise<readonly (boolean | Error)[]> {
    const wasResent = connection.watchResends?.()
    const call = shared.callFor(prefix, leases)
    return sendLeases(connection, 'release', leases.length, call).then((reply) => {
      if (reply[0] === 1) unpublished()
      return ended(leases, reply, wasResent)
    })
  }

  return {
    name: 'redis',
    place: connection.place,
    capabilities: connection.cluster ? clusterCapabilities : redisCapabilities,
    // Not on a Cluster, where a list is split by slot anyway.
    ...(!connection.cluster && { listSplit: MAX_ENTRIES / 2 }),
    connection,

    acquire: (claims) => whileOpen(() => sendList<Claim, AcquireAnswer>(parts, claims, acquireChunk)),

    propose: (proposals) =>
      whileOpen(() => sendList(parts, proposals.requests, ({ requests }) => runBallot(parts, proposals, requests))),

    async inspectNames(lockNames) {
      assertOpen()
      return inTime('inspect', timeoutMs, () => inspectNames(connection, prefix, lockNames), connection)
    },

    renew: (renewals) =>
      whileOpen(() => {
        const most = replicas === undefined && !connection.cluster ? MAX_RENEWALS : MAX_ENTRIES
        return sendList<Renewal, RenewAnswer>(parts, renewals, renewChunk, most)
      }),

    release: (leases) => whileOpen(() => sendList<LeaseRef, boolean>(parts, leases, releaseChunk)),

    releaseAndPublish: (leases, unpublished) =>
      whileOpen(() =>
        sendList<LeaseRef, boolean>(parts, leases.requests, ({ requests }) =>
          releaseShared(requests, leases, unpublished),
        ),
      ),

    async consume(requests) {
      assertOpen()
      return consume(parts, requests)
    },

    async inspectRates(query) {
      assertOpen()
      return inTime('inspect', timeoutMs, () => inspectRates(connection, prefix, query), connection)
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

    async watch(losses) {
      assertOpen()
      const listener = lossesOnly(losses)
      await subscription.watch(listener)
      return async () => subscription.stop(listener)
    },

    async close() {
      if (closed) return
      closed = true
      stopWatching?.()
      subscription.end()
    },
  }
}

/**
 * Taking a lock with many shared leases by force needs several calls, each of which ends a bounded number of them. The
 * lock belongs to the thief from the first call on. It is granted when all leases are ended.
 */
async function runAcquire(
  parts: ListParts,
  chunk: Chunk<Claim>,
  publication: Publication | undefined,
): Promise<LeasesReply> {
  const { requests } = chunk
  const argsOf = (claims: readonly Claim[]): string[] => acquireArgs(claims, parts.prefix === '')
  const reply = await runLeases(parts, 'acquire', chunk, argsOf(requests), publication)
  let open = requests.flatMap(({ steal }, index) => (steal && isUnfinished(reply[1 + index]) ? [index] : []))
  while (open.length > 0) {
    const thieves = open.map((index) => requests[index] as Claim)
    const more = await runLeases(parts, 'acquire', { ...chunk, requests: thieves }, argsOf(thieves), publication)
    open.forEach((index, at) => {
      reply[1 + index] = more[1 + at]
    })
    open = open.filter((index) => isUnfinished(reply[1 + index]))
  }
  return reply
}

function readAnswer(claim: Claim, reply: LeasesReply, index: number): AcquireAnswer | Error {
  const answer = readAcquire(claim, reply[0], reply[1 + index])
  return 'tokenRefused' in answer ? unexpectedReply('acquire', reply[1 + index]) : answer
}

const isUnfinished = (answer: unknown): boolean => Array.isArray(answer) && answer[0] === 'm'

/** What the script's answers to a release say. */
function ended(
  leases: readonly LeaseRef[],
  reply: LeasesReply,
  wasResent: (() => boolean | Promise<boolean>) | undefined,
): readonly boolean[] | Promise<readonly (boolean | Error)[]> {
  const answers = leases.map((_, index) => Number(reply[1 + index]) === 1)
  return wasResent === undefined || !answers.includes(false) ? answers : unlessResent(answers, wasResent)
}

async function unlessResent(
  answers: readonly boolean[],
  wasResent: () => boolean | Promise<boolean>,
): Promise<readonly (boolean | Error)[]> {
  return (await wasResent()) ? answers.map((answer) => answer || sentTwice()) : answers
}

/** "No" may be the answer to the second copy of a release whose first copy ended the lease. It is not a loss. */
const sentTwice = (): StoreError =>
  new StoreError('the connection was lost during a release: it is unknown whether the lease had ended before')
