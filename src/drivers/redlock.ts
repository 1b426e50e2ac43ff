import { type Clock, systemClock } from '../core/clock.ts'
import type {
  AcquireAnswer,
  Capabilities,
  Claim,
  Driver,
  LeaseRef,
  Refusal,
  RenewAnswer,
  Renewal,
} from '../core/driver.ts'
import { ClosedError, InvalidArgumentError, UnsupportedError } from '../core/errors.ts'
import { type Random, systemRandom } from '../core/random.ts'
import { Ballots, type Outcome, type Vote } from './support/redis-ballots.ts'
import { connectionOf } from './support/redis-connection.ts'
import { type RedisDriver, redisDriverOn } from './support/redis-driver.ts'
import { storeErrorFrom } from './support/redis-errors.ts'
import { openClient } from './support/redis-open.ts'
import { poll, quorumError } from './support/redis-quorum.ts'
import { inspectByQuorum } from './support/redis-quorum-inspect.ts'
import { ReleaseNews } from './support/redis-release-news.ts'
import { RestartWatch } from './support/redis-restart-watch.ts'
import { redlockUrl } from './support/redis-url.ts'

export const capabilities: Capabilities = {
  expiry: 'ttl',
  scope: 'network',
  fencing: true,
  shared: true,
  limit: false,
  queue: false,
  wake: true,
  metadata: true,
  rate: false,
  steal: false,
  reasons: {
    limit:
      'majorities do not preserve a count. With 2 permits and 3 nodes, 3 clients can each find a majority that has room',
    rate: 'majorities do not preserve a count. Each node would see only some of what was taken',
    steal: 'a lock is given by a majority, and no node could end the leases of the others in the same step',
  },
}

export interface RedlockOptions {
  /** Independent servers, none a replica of another: `redisDriver({ client })` for each. The caller closes them. */
  readonly nodes: readonly RedisDriver[]
  /** How many nodes must agree: the majority if not said, never less. */
  readonly quorum?: number
  /** How long a node may take before it counts as failed: 1 s if not said. */
  readonly nodeTimeoutSeconds?: number
  /**
   * The longest time to live that any client uses: 60 if not said. A node does not vote until so long after its start, because it may have forgotten leases;
   * claims and renewals for longer are refused.
   */
  readonly longestTtlSeconds?: number
  /** Nothing is forgotten in a restart (appendfsync always on every node): nodes vote at once, and a time to live has no bound here. */
  readonly persistent?: boolean
  /**
   * Told each time a node fails to do something or takes too long for it, also where the others were enough, and where nobody waits for it: giving back what a
   * lost vote has got, telling waiters of a release. Leases that are left behind so end with their time to live. Nobody is told if not said.
   */
  readonly onNodeError?: (failure: RedlockNodeError) => void
  /** For tests. */
  readonly clock?: Clock
  readonly random?: Random
}

export interface RedlockNodeError {
  /** Its place in `nodes`, from 1 on, as errors name it: `node 3`. */
  readonly node: string
  readonly error: Error
}

/**
 * A lock that outlives the loss of any minority of independent Redis servers. It is held when a quorum holds it; tokens are agreed on by ballot in the same
 * round trip. Throws `InvalidArgumentError` for no nodes, for a quorum below the majority, and for seconds that are none.
 */
export function redlockDriver(options: RedlockOptions): Driver {
  const { nodes, clock = systemClock, random = systemRandom, persistent = false, longestTtlSeconds = 60 } = options
  const majority = Math.floor(nodes.length / 2) + 1
  const { quorum = majority, nodeTimeoutSeconds = 1 } = options
  if (nodes.length === 0) throw new InvalidArgumentError('nodes', nodes, 'a list of at least one redis driver')
  if (!Number.isInteger(quorum) || quorum < majority || quorum > nodes.length) {
    const rule = `a majority of the ${nodes.length} nodes (${majority}) or more: below that, two clients can hold one lock`
    throw new InvalidArgumentError('quorum', quorum, rule)
  }
  assertSeconds('nodeTimeoutSeconds', nodeTimeoutSeconds, 3_600)
  assertSeconds('longestTtlSeconds', longestTtlSeconds, 1_000_000_000)
  const timeoutMs = nodeTimeoutSeconds * 1_000
  const longestMs = persistent ? Number.POSITIVE_INFINITY : longestTtlSeconds * 1_000
  const names = nodes.map((_, at) => `node ${at + 1}`)
  const watch = new RestartWatch(persistent ? 0 : longestMs)
  const ballots = new Ballots(clock)
  const news = new ReleaseNews(nodes, quorum)
  const released = new ReleasedLeases()
  let closed = false
  const assertOpen = (): void => {
    if (closed) throw new ClosedError('the redlock driver is closed')
  }
  const { onNodeError } = options
  // By itself, so that an error which the caller's function throws does not break the vote.
  const failed = (failure: RedlockNodeError): void => {
    if (onNodeError !== undefined) queueMicrotask(() => onNodeError(failure))
  }
  const common = { nodes, names, timeoutMs, failed }
  /** What nobody waits for. */
  const inBackground = (node: RedisDriver, what: string, work: Promise<readonly unknown[]>): void => {
    const tell = (error: unknown): void =>
      failed({ node: names[nodes.indexOf(node)] as string, error: storeErrorFrom(what, error) })
    work.then((answers) => {
      const error = answers.find((answer) => answer instanceof Error)
      if (error !== undefined) tell(error)
    }, tell)
  }

  /**
   * On every node, those that did not answer included. Only what these ballots may have got: the claim may be asked for again at once, and a release that arrives
   * late must not end what it has got by then.
   */
  const releaseEverywhere = (claim: Claim, tokens: Iterable<number>): void => {
    const leases = [...new Set(tokens)].map((fencingToken) => ({ ...refOf(claim), fencingToken }))
    for (const node of nodes) inBackground(node, 'give back', node.release(leases))
  }

  /** One round: a proposal for each claim, to every node. */
  function vote(claims: readonly Claim[], tokens: readonly number[], again: boolean): Promise<readonly Outcome[]> {
    return poll<RedisDriver, Vote, Outcome>({
      ...common,
      entries: claims.length,
      async call(node) {
        // A lease of this claim with an older token would be answered with that. The release has to be over before: where the node has forgotten its script it
        // is sent twice, and would come after the proposal and end what that got.
        if (again) await node.release(claims.map(refOf))
        return node.propose(claims, tokens, watch.of(node))
      },
      decide: (votes, entry) => ballots.decide(votes, claims[entry] as Claim, quorum),
      late(node, entry, answer, outcome) {
        if (!('granted' in answer) || !answer.granted) return
        const lease = { ...refOf(claims[entry] as Claim), fencingToken: answer.fencingToken }
        const isOfGrant = outcome.kind === 'granted' && outcome.grant.fencingToken === lease.fencingToken
        // Nobody will end it but this, if it is of no grant, or if the release of the grant has passed it on the way.
        if (!isOfGrant || released.has(lease)) inBackground(node, 'give back', node.release([lease]))
      },
    })
  }

  async function acquire(claims: readonly Claim[]): Promise<readonly (AcquireAnswer | Error)[]> {
    const answers = new Array<AcquireAnswer | Error>(claims.length)
    let open = claims.flatMap((claim, index) => {
      const refused = unsupported(claim, longestMs)
      if (refused !== undefined) answers[index] = refused
      return refused === undefined ? [index] : []
    })
    for (let round = 1; open.length > 0; round += 1) {
      const asked = open
      const tokens = ballots.next(asked.length)
      const outcomes = await vote(
        asked.map((index) => claims[index] as Claim),
        tokens,
        round > 1,
      )
      open = []
      outcomes.forEach((outcome, at) => {
        const index = asked[at] as number
        const claim = claims[index] as Claim
        // Somebody else's proposal was higher. This one is now known, so the next goes above it.
        if (outcome.kind === 'outbid' && round < MOST_ROUNDS) open.push(index)
        else answers[index] = answerTo(claim, outcome, tokens[at] as number)
      })
    }
    return answers
  }

  function answerTo(claim: Claim, outcome: Outcome, proposed: number): AcquireAnswer | Error {
    if (outcome.kind === 'granted') {
      // A node that had missed the first ballot has granted another one. The lease's own release names its token, and would leave that there.
      if (outcome.given.length > 0) releaseEverywhere(claim, outcome.given)
      return outcome.grant
    }
    releaseEverywhere(claim, [proposed, ...outcome.given])
    if (outcome.kind === 'failed') return quorumError('acquire', quorum, nodes.length, outcome.errors)
    // Whoever split the vote with somebody asks again at a moment of its own, so that not all of them split it again.
    const jitterMs = RETRY_MS.least + random.fraction() * (RETRY_MS.most - RETRY_MS.least)
    const holder = outcome.kind === 'refused' && outcome.holder
    const endsInMs = outcome.kind === 'refused' && holder ? outcome.askAgainMs : undefined
    const refusal: Refusal = { granted: false, ...(holder && { holder }) }
    return claim.waitMs === 0 ? refusal : { ...refusal, askAgainMs: (endsInMs ?? 0) + jitterMs }
  }

  function renew(renewals: readonly Renewal[]): Promise<readonly (RenewAnswer | Error)[]> {
    return poll<RedisDriver, RenewAnswer, RenewAnswer | Error>({
      ...common,
      entries: renewals.length,
      call: (node) => node.renew(renewals),
      decide({ answers, errors, pending }) {
        const renewed = answers.filter((answer) => answer === 'renewed').length
        if (renewed >= quorum) return 'renewed'
        if (renewed + errors.length + pending < quorum) return 'lost'
        return pending === 0 ? quorumError('renew', quorum, nodes.length, errors) : undefined
      },
    })
  }

  return {
    name: 'redlock',
    capabilities,

    async acquire(claims) {
      assertOpen()
      return acquire(claims)
    },

    async renew(renewals) {
      assertOpen()
      const sent = renewals.filter(({ ttlMs }) => ttlMs <= longestMs)
      const answers = await renew(sent)
      let at = 0
      return renewals.map(({ ttlMs }) =>
        ttlMs <= longestMs ? (answers[at++] as RenewAnswer | Error) : tooLong(ttlMs, longestMs),
      )
    },

    async release(leases) {
      assertOpen()
      for (const lease of leases) released.add(lease)
      const answers = await poll<RedisDriver, boolean, boolean | Error>({
        ...common,
        entries: leases.length,
        call(node) {
          const released = node.release(leases)
          // On the same connection, so it arrives after the release.
          inBackground(node, 'tell of a release', news.tell(node, leases))
          return released
        },
        decide({ answers, errors, pending }) {
          const ended = answers.filter((answer) => answer).length
          if (ended >= quorum) return true
          if (ended + errors.length + pending < quorum) return false
          return pending === 0 ? quorumError('release', quorum, nodes.length, errors) : undefined
        },
      })
      return answers
    },

    async inspect(query) {
      assertOpen()
      return inspectByQuorum({ ...common, quorum }, query)
    },

    async listen(listener) {
      assertOpen()
      return news.listen(listener, timeoutMs)
    },

    async close() {
      closed = true
      news.end()
    },
  }
}

/**
 * `redlock://host:port,host:port,…`, with `user:password@` before the hosts and `/database` behind them; `?prefix=`, `?tls=true`, `?longestTtlSeconds=`,
 * `?persistent=true`. Rejects with `InvalidArgumentError` for a URL of which any part is not understood, and for one that names a server twice.
 */
export async function openRedlock(url: string): Promise<Driver> {
  const { targets, prefix, persistent, longestTtlSeconds } = redlockUrl(url)
  const opened = await Promise.all(targets.map((target) => openClient(target, { fast: true })))
  const nodes = opened.map(({ client }) =>
    redisDriverOn({
      connection: connectionOf(client),
      prefix,
      timeoutMs: 5_000,
      sharded: async () => false,
    }),
  )
  const close = async (): Promise<void> => {
    await Promise.all([...nodes.map((node) => node.close()), ...opened.map((each) => each.close())])
  }
  let driver: Driver
  try {
    driver = redlockDriver({ nodes, persistent, ...(longestTtlSeconds !== undefined && { longestTtlSeconds }) })
  } catch (error) {
    await close()
    throw error
  }
  return {
    ...driver,
    reopen: { module: import.meta.url, name: 'openRedlock', args: [url] },
    async close() {
      await driver.close()
      await close()
    },
  }
}

function unsupported({ limit, ttlMs, steal }: Claim, longestMs: number): Error | undefined {
  if (steal) return new UnsupportedError(`redlock cannot steal: ${capabilities.reasons?.steal}`)
  if (limit !== undefined) {
    return new UnsupportedError(`redlock has no limits: ${capabilities.reasons?.limit}`)
  }
  return ttlMs > longestMs ? tooLong(ttlMs, longestMs) : undefined
}

const tooLong = (ttlMs: number, longestMs: number): Error =>
  new InvalidArgumentError(
    'timeoutSeconds',
    ttlMs / 1_000,
    `at most the redlock driver's longestTtlSeconds (${longestMs / 1_000}), for which a restarted node stays silent`,
  )

function assertSeconds(argument: string, seconds: number, most: number): void {
  if (typeof seconds === 'number' && seconds >= 0.001 && seconds <= most) return
  throw new InvalidArgumentError(argument, seconds, `a number of seconds from 0.001 to ${most}`)
}

/** The newest leases that were given back. A node that votes after its lease's release has passed it must not keep it. */
class ReleasedLeases {
  readonly #keys = new Set<string>()

  add(lease: LeaseRef): void {
    // Without a token it does not say which: the claim may be asked for again.
    if (lease.fencingToken === undefined) return
    this.#keys.add(leaseKey(lease))
    const [oldest] = this.#keys
    if (this.#keys.size > MOST_RELEASED && oldest !== undefined) this.#keys.delete(oldest)
  }

  has(lease: LeaseRef): boolean {
    return this.#keys.has(leaseKey(lease))
  }
}

const leaseKey = ({ claimId, fencingToken }: LeaseRef): string => `${fencingToken} ${claimId}`

const refOf = ({ lockName, claimId }: Claim): LeaseRef => ({ lockName, claimId })

/** A proposal that was outbid is made again, above the mark; by then it takes a third client to outbid it again. */
const MOST_ROUNDS = 4
/** How many releases are remembered: about a megabyte. A vote that comes after so many more leaves a minority's lease to its time to live. */
const MOST_RELEASED = 10_000
const RETRY_MS = { least: 2, most: 40 }
