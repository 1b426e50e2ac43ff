import { randomBytes } from 'node:crypto'
import type {
  AcquireAnswer,
  AcquireCall,
  Capabilities,
  Claim,
  Driver,
  InspectPage,
  LeaseRef,
  RenewAnswer,
  Renewal,
} from '../../core/driver.ts'
import { StoreError } from '../../core/errors.ts'
import type { ServerChecks } from './checks.ts'
import type { RedisConnection } from './connection.ts'
import { closedError, inTime } from './errors.ts'
import { acquireArgs, entryError, readAcquire, releaseArgs, type TokenRefusal, unexpectedReply } from './format.ts'
import { inspect, inspectNames, inspectRates } from './inspect.ts'
import { slotOf } from './keys.ts'
import { MAX_ENTRIES, type Send, type SharedList, sendList } from './lists.ts'
import type { ProposedClaim } from './proposals.ts'
import { consume } from './rates.ts'
import { confirmGrants, MAX_RENEWALS, type ReplicaWait, renewEach, renewMany, renewOnReplicas } from './renewals.ts'
import {
  type LeasesReply,
  type ListParts,
  leasesRun,
  type Publication,
  runLeases,
  runScript,
  type ScriptRun,
} from './scripts.ts'
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
  force: 'claim',
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
  propose(
    proposals: SharedList<ProposedClaim, AcquireAnswer | TokenRefusal>,
  ): Promise<readonly (AcquireAnswer | TokenRefusal | Error)[]>
  /** As `release`. In the same step, after the leases were ended, it publishes a message for each. */
  releaseAndPublish(leases: SharedList<LeaseRef, boolean>): Promise<readonly (boolean | Error)[]>
  /** All leases and waiters of these names. */
  inspectNames(lockNames: readonly string[]): Promise<InspectPage>
}

export interface RedisDriverParts extends ListParts {
  readonly connection: RedisConnection
  /** Absent for a node of a Redlock. */
  readonly checks?: ServerChecks
  readonly replicas?: ReplicaWait
}

export function redisDriverOn(parts: RedisDriverParts): RedlockNode {
  const { connection, prefix, timeoutMs, checks, replicas } = parts
  const clientId = randomBytes(9).toString('base64url')
  const confirmsGrants = replicas !== undefined
  const sharded = async (): Promise<boolean> => checks?.publishBySlot() ?? false
  const subscription = new Subscription({ connection, clientId, timeoutMs, sharded, confirmsGrants })
  // The subscription may still be at the demoted server. The new master does not count it as a subscriber, so a waiter
  // would look dead to it.
  const stopWatching = connection.master?.onChange(() =>
    subscription.restart(new StoreError('the master was replaced')),
  )
  let closed = false
  const assertOpen = (): void => {
    if (closed) throw closedError()
  }
  /** Without an async function around the promise, which would take three more steps to settle. */
  const send = <Request extends LeaseRef | ProposedClaim, Answer>(
    requests: readonly Request[],
    sendPart: Send<Request, Answer>,
    mostEntries?: number,
  ): Promise<readonly (Answer | Error)[]> =>
    closed ? Promise.reject(closedError()) : sendList(parts, requests, sendPart, mostEntries)

  function acquirePart(
    claims: readonly Claim[],
    slot: number,
    call: AcquireCall,
  ): Promise<readonly (AcquireAnswer | Error)[]> {
    if (replicas !== undefined || claims.some((claim) => claim.waiterTtlMs > 0 || forces(claim))) {
      return acquireInSteps(claims, slot, call)
    }
    // By far the most frequent claims. Every promise on their way counts.
    const list = { operation: 'acquire', requests: claims, args: acquireArgs(claims) } as const
    return runLeases(parts, slot, list, (reply) => claims.map((claim, index) => readAnswer(claim, reply, index)))
  }

  async function acquireInSteps(
    claims: readonly Claim[],
    slot: number,
    call: AcquireCall,
  ): Promise<readonly (AcquireAnswer | Error)[]> {
    const place = claims.some(({ waiterTtlMs }) => waiterTtlMs > 0) ? subscription.placeIn(slot) : undefined
    // Without an await where none is needed: the parts of one list must leave in their order.
    const { channel, isUnheard } = (place instanceof Promise ? await place : place) ?? {}
    const publication = channel === undefined ? undefined : { channel, text: call.secret }
    const reply = await acquireUntilFinished(parts, slot, claims, publication)
    const answers = claims.map((claim, index) => readAnswer(claim, reply, index))
    if (isUnheard === true) {
      const refused = claims.filter(({ waiterTtlMs }, index) => waiterTtlMs > 0 && isRefusal(answers[index]))
      if (refused.length > 0) await subscription.hearSlot(slot, refused)
    }
    return replicas === undefined ? answers : confirmGrants(parts, replicas, claims, answers)
  }

  const renewsEach = replicas !== undefined || connection.cluster
  const renewPart: Send<Renewal, RenewAnswer> =
    replicas === undefined
      ? connection.cluster
        ? renewEach
        : renewMany
      : (_, renewals) => renewOnReplicas(parts, replicas, renewals)

  return {
    name: 'redis',
    place: connection.place,
    capabilities: connection.cluster ? clusterCapabilities : redisCapabilities,
    connection,

    acquire(claims, call) {
      // In the background, because it only finds warnings. No call waits for it.
      if (checks?.isComplete === false) void checks.read()
      return send(claims, (_, some, slot) => acquirePart(some, slot, call))
    },

    propose: (proposals) => send(proposals.requests, proposals.send),
    renew: (renewals) => send(renewals, renewPart, renewsEach ? MAX_ENTRIES : MAX_RENEWALS),
    release: (leases) => send(leases, releasePart),
    releaseAndPublish: (leases) => send(leases.requests, leases.send),

    async inspectNames(lockNames) {
      assertOpen()
      return inTime('inspect', timeoutMs, () => inspectNames(connection, prefix, lockNames), connection)
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
    },

    extensions: {
      async inspectRates(query) {
        assertOpen()
        return inTime('inspect', timeoutMs, () => inspectRates(connection, prefix, query), connection)
      },
      // A Cluster has no list to split: a list is split by slot anyway.
      ...(connection.cluster
        ? { partOf: (lockName: string) => connection.masterOf?.(slotOf(prefix + lockName)) }
        : { listSplit: MAX_ENTRIES / 2 }),
    },
  }
}

const forces = ({ forceUpTo }: Claim): boolean => forceUpTo !== undefined

const isRefusal = (answer: AcquireAnswer | Error | undefined): boolean =>
  answer !== undefined && 'granted' in answer && !answer.granted

/**
 * Taking a lock with many shared leases by force needs several calls, each of which ends a bounded number of them. The
 * lock belongs to the new holder from the first call on. It is granted when all leases are ended.
 */
async function acquireUntilFinished(
  parts: ListParts,
  slot: number,
  claims: readonly Claim[],
  publication: Publication | undefined,
): Promise<LeasesReply> {
  const ask = (requests: readonly Claim[]): Promise<LeasesReply> => {
    const args = acquireArgs(requests, parts.prefix === '')
    return runLeases(parts, slot, { operation: 'acquire', requests, args, publication }, (reply) => reply)
  }
  const reply = await ask(claims)
  const isOpen = (index: number): boolean => forces(claims[index] as Claim) && isUnfinished(reply[1 + index])
  let open = [...claims.keys()].filter(isOpen)
  while (open.length > 0) {
    const more = await ask(open.map((index) => claims[index] as Claim))
    open.forEach((index, at) => {
      reply[1 + index] = more[1 + at]
    })
    open = open.filter(isOpen)
  }
  return reply
}

function readAnswer(claim: Claim, reply: LeasesReply, index: number): AcquireAnswer | Error {
  const answer = readAcquire(claim, reply[0], reply[1 + index])
  return 'tokenRefused' in answer ? unexpectedReply('acquire', reply[1 + index]) : answer
}

const isUnfinished = (answer: unknown): boolean => Array.isArray(answer) && answer[0] === 'm'

const releasePart: Send<LeaseRef, boolean> = ({ connection, prefix }, leases, slot) =>
  runScript(connection, releaseRun(prefix, connection.cluster ? slot : undefined, leases))

type ReleaseAnswers = readonly (boolean | Error)[]

/** `unpublished`: called if the server refuses to publish. */
export function releaseRun(
  prefix: string,
  slot: number | undefined,
  leases: readonly LeaseRef[],
  publication?: Publication,
  unpublished?: (connection: RedisConnection) => void,
): ScriptRun<ReleaseAnswers> {
  const list = { operation: 'release', requests: leases, args: releaseArgs(leases), publication } as const
  return leasesRun<ReleaseAnswers>(prefix, slot, list, (reply, connection, session) => {
    if (reply[0] === 1) unpublished?.(connection)
    const answers = leases.map((_, index) => entryError('release', reply[1 + index]) ?? Number(reply[1 + index]) === 1)
    return connection.session === undefined || !answers.includes(false)
      ? answers
      : unlessResent(answers, session, connection)
  })
}

/** "No" may be the answer to the second copy of a release whose first copy ended the lease. It is not a loss. */
async function unlessResent(
  answers: ReleaseAnswers,
  session: unknown,
  connection: RedisConnection,
): Promise<ReleaseAnswers> {
  if ((await connection.session?.(true)) === (await session)) return answers
  const rule = 'it is unknown whether the lease had ended before'
  return answers.map((answer) => answer || new StoreError(`the connection was lost during a release: ${rule}`))
}
