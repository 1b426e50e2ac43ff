import { checkMethods } from '../core/arguments.ts'
import { callListener } from '../core/call-listener.ts'
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
import { ClosedError, InvalidArgumentError, StoreError, UnsupportedError } from '../core/errors.ts'
import { checkOptions, optionNames } from '../core/options.ts'
import { type Clock, systemClock } from '../core/time/clock.ts'
import { queueMicrotask } from '../core/time/native-time.ts'
import { type Random, systemRandom } from '../core/time/random.ts'
import { connectionOf } from './redis/client.ts'
import { type RedisDriver, redisDriverOn } from './redis/driver.ts'
import { storeErrorFrom } from './redis/errors.ts'
import { openClient } from './redis/open.ts'
import { redlockUrl } from './redis/url.ts'
import { type Ask, Asks, leasesOf, mayCount } from './redlock/asks.ts'
import { Ballots, type Outcome, type Vote } from './redlock/ballots.ts'
import { distinctServers } from './redlock/distinct-servers.ts'
import { poll, quorumError } from './redlock/quorum.ts'
import { inspectByQuorum } from './redlock/quorum-inspect.ts'
import { ReleaseNews } from './redlock/release-broadcast.ts'

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
  groups: false,
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
   * The longest time to live that any client uses; claims and renewals for longer are refused. A node that may have
   * forgotten leases, because it was started, emptied or never asked before, does not vote for so long. Use the same
   * value for all clients.
   * @default 60
   */
  readonly longestTtlSeconds?: number
  /**
   * No node ever forgets anything: `appendonly yes` and `appendfsync always` on every node, no eviction, and no
   * `FLUSHALL`. Then nodes vote at once, and a time to live has no bound here.
   * @default false
   */
  readonly persistent?: boolean
  /**
   * Told each time a node fails to do something or takes too long for it, also where the others were enough, and where
   * nobody waits for it: giving back what a lost vote has got, telling waiters of a release. Leases that are left
   * behind so end with their time to live. Nobody is told if not said.
   */
  readonly onNodeError?: (failure: RedlockNodeError) => void
  /** For tests. */
  readonly clock?: Clock
  readonly random?: Random
}

const NODES_RULE = 'a list of at least one redis driver'
const NODE_RULE = 'a redis driver, such as redisDriver({ client })'
const OPTIONS = optionNames<RedlockOptions>({
  nodes: true,
  quorum: true,
  nodeTimeoutSeconds: true,
  longestTtlSeconds: true,
  persistent: true,
  onNodeError: true,
  clock: true,
  random: true,
})

export interface RedlockNodeError {
  /** Its place in `nodes`, from 1 on, as errors name it: `node 3`. */
  readonly node: string
  readonly error: Error
}

/**
 * A lock that outlives the loss of any minority of independent Redis servers. It is held when a quorum holds it; tokens
 * are agreed on by ballot in the same round trip. Throws `InvalidArgumentError` for no nodes, for a driver or a client
 * that is there twice, for a quorum below the majority, and for seconds that are none.
 */
export function redlockDriver(options: RedlockOptions): Driver {
  checkOptions(options, OPTIONS)
  const { clock = systemClock, random = systemRandom, persistent = false, longestTtlSeconds = 60 } = options
  if (!Array.isArray(options.nodes) || options.nodes.length === 0) {
    throw new InvalidArgumentError('nodes', options.nodes, NODES_RULE)
  }
  for (const [at, node] of options.nodes.entries()) {
    checkMethods(`nodes[${at}]`, node, ['propose', 'release'], NODE_RULE)
  }
  const nodes = distinctServers(options.nodes)
  const majority = Math.floor(nodes.length / 2) + 1
  const { quorum = majority, nodeTimeoutSeconds = 1 } = options
  if (!Number.isInteger(quorum) || quorum < majority || quorum > nodes.length) {
    const rule = `a majority of the ${nodes.length} nodes (${majority}) or more: below that, two clients can hold one lock`
    throw new InvalidArgumentError('quorum', quorum, rule)
  }
  const cluster = nodes.findIndex(({ connection }) => connection.cluster)
  if (cluster !== -1) {
    const rule = `single servers: node ${cluster + 1} is a Redis Cluster, whose failovers forget leases unnoticed`
    throw new InvalidArgumentError('nodes', nodes[cluster], rule)
  }
  assertSeconds('nodeTimeoutSeconds', nodeTimeoutSeconds, 3_600)
  assertSeconds('longestTtlSeconds', longestTtlSeconds, 1_000_000_000)
  const timeoutMs = nodeTimeoutSeconds * 1_000
  const longestMs = persistent ? undefined : Math.ceil(longestTtlSeconds * 1_000)
  const mostAheadUs = longestMs === undefined ? HOUR_US : Math.ceil((longestMs * 1_000) / 4)
  const names = nodes.map((_, at) => `node ${at + 1}`)
  const ballots = new Ballots({ clock, quorum, mostAheadUs })
  const asks = new Asks()
  const news = new ReleaseNews({ nodes, quorum, clock })
  let closed = false
  const assertOpen = (): void => {
    if (closed) throw new ClosedError('the redlock driver is closed')
  }
  const { onNodeError } = options
  const failed = (failure: RedlockNodeError): void => {
    if (onNodeError !== undefined) queueMicrotask(() => callListener('onNodeError', onNodeError, failure))
  }
  const common = { nodes, names, timeoutMs, failed }
  const nodeFailed = (node: RedisDriver, what: string, error: unknown): void =>
    failed({ node: names[nodes.indexOf(node)] as string, error: storeErrorFrom(what, error, node.connection) })
  /** What nobody waits for. */
  const inBackground = (node: RedisDriver, what: string, work: Promise<readonly unknown[]>): void => {
    const tell = (error: unknown): void => nodeFailed(node, what, error)
    work.then((answers) => {
      const error = answers.find((answer) => answer instanceof Error)
      if (error !== undefined) tell(error)
    }, tell)
  }

  /** On every node, those that did not answer included. */
  const giveBack = (leases: readonly LeaseRef[]): void => {
    if (leases.length === 0) return
    for (const node of nodes) inBackground(node, 'give back', node.release(leases))
  }

  /** One round: a proposal for each claim, to every node. */
  function vote(round: readonly Ask[]): Promise<readonly Outcome[]> {
    const tokens = round.map((ask) => ask.tokens.at(-1) as number)
    const proposals = round.map(({ claim }, at) => ({
      ...claim,
      proposal: { token: tokens[at] as number, mostAheadUs },
    }))
    return poll<RedisDriver, Vote, Outcome>({
      ...common,
      entries: round.length,
      call: (node) => node.propose(proposals, longestMs),
      decide: (votes, entry) => ballots.decide(votes, round[entry] as Ask),
      late(node, entry, answer) {
        ballots.learn(answer)
        const [ask, token] = [round[entry] as Ask, tokens[entry] as number]
        if (!('granted' in answer) || !answer.granted || mayCount(ask, token)) return
        // Its release may have passed it on the way, and nobody else will end it.
        inBackground(node, 'give back', node.release(leasesOf({ claim: ask.claim, tokens: [token] })))
      },
    })
  }

  async function acquire(claims: readonly Claim[]): Promise<readonly (AcquireAnswer | Error)[]> {
    const answers = new Map<Ask, AcquireAnswer | Error>()
    // A claim that stands in the list twice is asked for once.
    const begun = new Map<string, Ask>()
    const asked = claims.map((claim) => {
      const refused = unsupported(claim, longestMs)
      if (refused !== undefined) return refused
      const key = `${claim.claimId} ${claim.lockName}`
      const ask = begun.get(key) ?? asks.begin(claim)
      begun.set(key, ask)
      return ask
    })
    let open = [...begun.values()]
    for (let round = 1; open.length > 0; round += 1) {
      const asking = open
      ballots.propose(asking)
      const outcomes = await vote(asking)
      open = asking.filter((ask, at) => {
        const answer = answerTo(ask, outcomes[at] as Outcome, round === MAX_ROUNDS)
        if (answer !== undefined) answers.set(ask, answer)
        return answer === undefined
      })
    }
    return asked.map((ask) => (ask instanceof Error ? ask : (answers.get(ask) as AcquireAnswer | Error)))
  }

  /** Undefined: another round. */
  function answerTo(ask: Ask, outcome: Outcome, isLast: boolean): AcquireAnswer | Error | undefined {
    if (ask.state === 'over') {
      // Whatever the nodes said: its tokens may have been released, or are replaced by those of a newer ask.
      giveBack(leasesOf(ask))
      return new StoreError(`the claim of "${ask.claim.lockName}" was withdrawn, or asked for again, during the vote`)
    }
    if (outcome.kind === 'granted') {
      asks.end(ask, 'granted')
      // Earlier rounds may have left something on nodes that did not answer this one.
      giveBack(leasesOf(ask).slice(0, -1))
      ask.tokens.splice(0, ask.tokens.length - 1)
      return outcome.grant
    }
    if (outcome.kind === 'outbid' && !isLast) {
      ask.isRepeat = false
      ask.mark = outcome.mark
      return undefined
    }
    if (outcome.kind === 'failed') {
      const error = quorumError('acquire', quorum, nodes.length, outcome.errors)
      // What was granted before is still there, for all that is known, and its holder may rely on it.
      if (ask.isRepeat) asks.end(ask, 'granted')
      else lose(ask)
      return error
    }
    lose(ask)
    // Whoever split the vote with somebody asks again at a moment of its own, so that not all of them split it again.
    const jitterMs = RETRY_MS.least + random.fraction() * (RETRY_MS.most - RETRY_MS.least)
    const holder = outcome.kind === 'refused' && outcome.holder
    const endsInMs = outcome.kind === 'refused' && holder ? outcome.askAgainMs : undefined
    const refusal: Refusal = { granted: false, ...(holder && { holder }) }
    return ask.claim.waitMs === 0 ? refusal : { ...refusal, askAgainMs: (endsInMs ?? 0) + jitterMs }
  }

  /** Over before its release is sent: from then on none of its tokens is counted. */
  function lose(ask: Ask): void {
    asks.end(ask, 'over')
    giveBack(leasesOf(ask))
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
    ...(longestMs !== undefined && { longestTtlMs: longestMs }),

    async acquire(claims) {
      assertOpen()
      return acquire(claims)
    },

    async renew(renewals) {
      assertOpen()
      const refused = renewals.map(({ ttlMs }) => tooLong(ttlMs, longestMs))
      const answers = await renew(renewals.filter((_, at) => refused[at] === undefined))
      let at = 0
      return refused.map((error) => error ?? (answers[at++] as RenewAnswer | Error))
    },

    async release(leases) {
      assertOpen()
      const sent = leases.map((lease) => asks.release(lease))
      const telling = news.telling(random.id())
      return poll<RedisDriver, boolean, boolean | Error>({
        ...common,
        entries: leases.length,
        async call(node) {
          const unheard = (error: Error): void => nodeFailed(node, 'tell of a release', error)
          const answers = (await node.releaseAndTell(sent.flat(), { ...telling, failed: unheard })).values()
          return sent.map((parts) => anyOf(parts.map(() => answers.next().value as boolean | Error)))
        },
        decide({ answers, errors, pending }) {
          const ended = answers.filter((answer) => answer).length
          if (ended >= quorum) return true
          if (ended + errors.length + pending < quorum) return false
          return pending === 0 ? quorumError('release', quorum, nodes.length, errors) : undefined
        },
      })
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
 * `redlock://host:port,host:port,…`, with `user:password@` before the hosts and `/database` behind them; `?prefix=`,
 * `?tls=true`, `?longestTtlSeconds=`, `?persistent=true`. Rejects with `InvalidArgumentError` for a URL of which any
 * part is not understood, and for one that names a server twice.
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

function unsupported({ limit, ttlMs, steal }: Claim, longestMs: number | undefined): Error | undefined {
  if (steal) return new UnsupportedError(`redlock cannot steal: ${capabilities.reasons?.steal}`)
  if (limit !== undefined) {
    return new UnsupportedError(`redlock has no limits: ${capabilities.reasons?.limit}`)
  }
  return tooLong(ttlMs, longestMs)
}

function tooLong(ttlMs: number, longestMs: number | undefined): Error | undefined {
  if (longestMs === undefined || ttlMs <= longestMs) return undefined
  const rule = `at most the redlock driver's longestTtlSeconds (${longestMs / 1_000}), for which a restarted node stays silent`
  return new InvalidArgumentError('timeoutSeconds', ttlMs / 1_000, rule)
}

/** One lease may have been released under several tokens. */
const anyOf = (answers: readonly (boolean | Error)[]): boolean | Error =>
  answers.includes(true) || (answers.find((answer) => answer instanceof Error) ?? false)

function assertSeconds(argument: string, seconds: number, most: number): void {
  if (typeof seconds === 'number' && seconds >= 0.001 && seconds <= most) return
  throw new InvalidArgumentError(argument, seconds, `a number of seconds from 0.001 to ${most}`)
}

/** A proposal that was outbid is made again, above the mark; by then it takes a third client to outbid it again. */
const MAX_ROUNDS = 4
/** How far ahead of its clock a node that forgets nothing lets a token be. */
const HOUR_US = 3_600_000_000
const RETRY_MS = { least: 2, most: 40 }
