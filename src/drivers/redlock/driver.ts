import { callListener } from '../../core/call-listener.ts'
import type {
  AcquireAnswer,
  Capabilities,
  Claim,
  Driver,
  LeaseRef,
  Refusal,
  RenewAnswer,
  Renewal,
} from '../../core/driver.ts'
import { ClosedError, InvalidArgumentError, StoreError, UnsupportedError } from '../../core/errors.ts'
import type { Clock } from '../../core/time/clock.ts'
import { queueMicrotask } from '../../core/time/native-time.ts'
import type { Random } from '../../core/time/random.ts'
import type { RedlockNode } from '../redis/driver.ts'
import { inTime, storeErrorFrom } from '../redis/errors.ts'
import { proposalsOf } from '../redis/proposals.ts'
import { acquiredAt } from './agreed-record.ts'
import {
  type Attempt,
  Attempts,
  addToRelease,
  endingOf,
  leasesOf,
  newReleaseList,
  type ReleaseList,
} from './attempts.ts'
import {
  conclude,
  decide,
  isOwed,
  learn,
  MAX_ROUNDS,
  mayCount,
  NEW_PROPOSER,
  type Outcome,
  propose,
  type Vote,
} from './ballot.ts'
import { callNodes, countYes, type NodeError, quorumError, type Votes } from './quorum.ts'
import { inspectByQuorum } from './quorum-inspect.ts'
import { publishedRelease, publishRefused, ReleaseBroadcast } from './release-broadcast.ts'
import { publishTheft, Thefts } from './thefts.ts'

export const redlockCapabilities: Capabilities = {
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
  force: true,
  groups: false,
  reasons: {
    limit:
      'majorities do not preserve a count. With 2 permits and 3 nodes, 3 clients can each find a majority that has ' +
      'room',
    rate: 'majorities do not preserve a count. Each node would see only some of what was taken',
    steal:
      'a lock is granted by a majority, and no node could end the leases of the others in the same step. ' +
      'forceRelease ends leases without taking the lock',
  },
}

export interface RedlockParts {
  readonly nodes: readonly RedlockNode[]
  readonly quorum: number
  /** How long a node may take before it counts as failed. */
  readonly timeoutMs: number
  /** Undefined: the nodes forget nothing, and a time to live has no bound. */
  readonly longestTtlMs: number | undefined
  readonly clock: Clock
  readonly random: Random
  readonly onNodeError: ((failure: NodeError) => void) | undefined
  /** Closes the node drivers that were made for this driver. */
  close(): Promise<void>
}

export function redlockDriverOn(parts: RedlockParts): Driver {
  const { nodes, quorum, timeoutMs, longestTtlMs, clock, random, onNodeError } = parts
  const maxAheadUs = longestTtlMs === undefined ? HOUR_US : Math.ceil((longestTtlMs * 1_000) / 4)
  const names = nodes.map((_, at) => `node ${at + 1}`)
  const terms = { quorum, maxAheadUs }
  const wallUs = (): number => clock.now().wallMs * 1_000
  let proposer = NEW_PROPOSER
  const attempts = new Attempts()
  const broadcast = new ReleaseBroadcast({ nodes, quorum, clock })
  const thefts = new Thefts({ nodes, quorum, clock })
  let closed = false
  const assertOpen = (): void => {
    if (closed) throw new ClosedError('the redlock driver is closed')
  }
  const failed = (failure: NodeError): void => {
    if (onNodeError !== undefined) queueMicrotask(() => callListener('onNodeError', onNodeError, failure))
  }
  const common = { nodes, names, timeoutMs, failed }
  const nodeFailed = (node: RedlockNode, what: string, error: unknown): void =>
    failed({ node: names[nodes.indexOf(node)] as string, error: storeErrorFrom(what, error, node.connection) })
  const unpublished = names.map((node) => () => failed({ node, error: publishRefused() }))
  /** For work that no caller waits for. */
  const inBackground = (node: RedlockNode, what: string, work: Promise<readonly unknown[]>): void => {
    const report = (error: unknown): void => nodeFailed(node, what, error)
    work.then((answers) => {
      const error = answers.find((answer) => answer instanceof Error)
      if (error !== undefined) report(error)
    }, report)
  }

  /** Releases on every node, also on those that did not answer. */
  const releaseEverywhere = (list: ReleaseList): void => {
    if (list.leases.length === 0) return
    list.answers = nodes.map((node) => node.release(list.leases))
    for (const [at, node] of nodes.entries()) inBackground(node, 'release', list.answers[at] as Promise<unknown[]>)
  }

  /**
   * Releases votes that arrived after their tokens were released. Usually the release follows the proposal over the
   * same connection, and has ended the lease. Only if it overtook the proposal, nothing else will end it.
   */
  async function giveBack(at: number, votes: readonly { attempt: Attempt; token: number }[]): Promise<void> {
    const left: LeaseRef[] = []
    for (const { attempt, token } of votes) {
      const hasEnded = await endingOf(attempt, token, at)
      if (isOwed(hasEnded)) left.push(...leasesOf(attempt.claim, [token]))
    }
    const node = nodes[at] as RedlockNode
    if (left.length > 0) inBackground(node, 'release', node.release(left))
  }

  /** One round: proposes a token for each attempt to every node. */
  function vote(round: readonly Attempt[]): Promise<readonly Outcome[]> {
    const tokens = round.map((attempt) => attempt.tokens.at(-1) as number)
    const proposed = round.map(({ claim }, at) => ({ lockName: claim.lockName, claim, token: tokens[at] as number }))
    const proposals = proposalsOf(proposed, { maxAheadUs, longestTtlMs })
    return callNodes<RedlockNode, Vote, Outcome>({
      ...common,
      entries: round.length,
      call: (node) => node.propose(proposals),
      decide(votes, entry) {
        const decided = decide(terms, proposer, wallUs(), votes, round[entry] as Attempt)
        proposer = decided.proposer
        return decided.outcome
      },
      late(at, late) {
        const owed: { attempt: Attempt; token: number }[] = []
        for (const { entry, answer } of late) {
          proposer = learn(terms, proposer, wallUs(), answer)
          const [attempt, token] = [round[entry] as Attempt, tokens[entry] as number]
          if ('granted' in answer && answer.granted && !mayCount(attempt, token)) owed.push({ attempt, token })
        }
        if (owed.length > 0) void giveBack(at, owed)
      },
    })
  }

  async function acquire(claims: readonly Claim[]): Promise<readonly (AcquireAnswer | Error)[]> {
    const answers = new Map<Attempt, AcquireAnswer | Error>()
    // A claim that is in the list twice has one attempt.
    const begun = new Set<Attempt>()
    const attempted = claims.map((claim) => {
      const refused = unsupported(claim, longestTtlMs)
      if (refused !== undefined) return refused
      const attempt = attempts.begin(claim, begun)
      begun.add(attempt)
      return attempt
    })
    let open = [...begun]
    for (let round = 1; open.length > 0; round += 1) {
      const voting = open
      const proposed = propose(proposer, wallUs(), voting)
      proposer = proposed.proposer
      for (const [at, attempt] of voting.entries()) attempt.tokens = proposed.tokens[at] as readonly number[]
      const outcomes = await vote(voting)
      const released = newReleaseList()
      open = voting.filter((attempt, at) => {
        const answer = answerTo(attempt, outcomes[at] as Outcome, round === MAX_ROUNDS, released)
        if (answer !== undefined) answers.set(attempt, answer)
        return answer === undefined
      })
      releaseEverywhere(released)
    }
    return attempted.map((each) => (each instanceof Error ? each : (answers.get(each) as AcquireAnswer | Error)))
  }

  /** Undefined: another round. `released`: gets what has to be released. */
  function answerTo(
    attempt: Attempt,
    outcome: Outcome,
    isLast: boolean,
    released: ReleaseList,
  ): AcquireAnswer | Error | undefined {
    const { claim } = attempt
    const conclusion = conclude(attempt, outcome, isLast)
    if (conclusion.kind === 'again') {
      attempt.isRepeat = false
      attempt.mark = conclusion.mark
      return undefined
    }
    // Rule 11: the attempt is over before its release is sent. From then on none of its tokens counts.
    attempts.end(attempt, conclusion.kind === 'granted' || conclusion.kind === 'kept' ? 'granted' : 'over')
    addToRelease(released, attempt, leasesOf(claim, conclusion.release))
    if (conclusion.kind === 'withdrawn') {
      return new StoreError(`the claim of "${claim.lockName}" was withdrawn, or asked for again, during the vote`)
    }
    if (conclusion.kind === 'granted') {
      const { token } = conclusion
      attempt.tokens = [token]
      return { granted: true, fencingToken: token, ttlMs: claim.ttlMs, acquiredAtMs: acquiredAt(token) }
    }
    return outcome.kind === 'failed'
      ? quorumError('acquire', quorum, nodes.length, outcome.errors)
      : refusalOf(claim, outcome)
  }

  function refusalOf(claim: Claim, outcome: Outcome): Refusal {
    // Each rival in a split vote asks again at a different moment, so that they do not split the next vote, too.
    const jitterMs = RETRY_MS.least + random.fraction() * (RETRY_MS.most - RETRY_MS.least)
    const holder = outcome.kind === 'refused' && outcome.holder
    const endsInMs = outcome.kind === 'refused' && holder ? outcome.askAgainMs : undefined
    const refusal: Refusal = { granted: false, ...(holder && { holder }) }
    return claim.waitMs === 0 ? refusal : { ...refusal, askAgainMs: (endsInMs ?? 0) + jitterMs }
  }

  function renew(renewals: readonly Renewal[]): Promise<readonly (RenewAnswer | Error)[]> {
    return callNodes<RedlockNode, RenewAnswer, RenewAnswer | Error>({
      ...common,
      entries: renewals.length,
      call: (node) => node.renew(renewals),
      decide(votes) {
        const decision = countYes(quorum, votes, (answer) => answer === 'renewed')
        if (decision === 'unknown') return quorumError('renew', quorum, nodes.length, votes.errors)
        return decision && (decision === 'yes' ? 'renewed' : 'lost')
      },
    })
  }

  /** Releases on every node, and tells waiters. Resolves when every lease is decided. */
  function release(
    leases: readonly LeaseRef[],
    decide: (votes: Votes<boolean>) => boolean | Error | undefined,
  ): Promise<readonly (boolean | Error)[]> {
    const list = newReleaseList()
    const counts = leases.map((lease) => attempts.release(lease, list))
    const published = publishedRelease(list.leases, random.id())
    list.answers = nodes.map((node, at) => node.releaseAndPublish(published, unpublished[at] as () => void))
    return callNodes<RedlockNode, boolean, boolean | Error>({
      ...common,
      entries: leases.length,
      call: (_, at) => joined(list.answers[at] as ReleaseAnswers, counts, list.leases.length),
      decide,
    })
  }

  return {
    name: 'redlock',
    capabilities: redlockCapabilities,
    ...(longestTtlMs !== undefined && { longestTtlMs }),

    async acquire(claims) {
      assertOpen()
      return acquire(claims)
    },

    async renew(renewals) {
      assertOpen()
      const refused = renewals.map(({ ttlMs }) => tooLong(ttlMs, longestTtlMs))
      const answers = await renew(renewals.filter((_, at) => refused[at] === undefined))
      let at = 0
      return refused.map((error) => error ?? (answers[at++] as RenewAnswer | Error))
    },

    async release(leases) {
      assertOpen()
      return release(leases, (votes) => {
        const decision = countYes(quorum, votes, (answer) => answer)
        if (decision === 'unknown') return quorumError('release', quorum, nodes.length, votes.errors)
        return decision && decision === 'yes'
      })
    },

    /**
     * Each node compares claim and token, as in any release. A lease that a quorum of the nodes does not have any more
     * has ended, even if the other nodes are away and still have it: its holder needs a quorum for every renewal.
     */
    async forceRelease(leases, { by }) {
      assertOpen()
      const answers = await release(leases, ({ answers: given, errors }) => {
        if (given.length >= quorum) return given.includes(true)
        return errors.length > nodes.length - quorum
          ? quorumError('end the lease', quorum, nodes.length, errors)
          : undefined
      })
      const ended = leases.filter((_, at) => answers[at] === true)
      const publish = (node: RedlockNode): Promise<unknown> =>
        inTime('publish', timeoutMs, () => publishTheft(node, ended, by), node.connection)
      // A caller that closes the driver after this must not cut the messages off.
      await Promise.all(nodes.map((node) => publish(node).catch((error) => nodeFailed(node, 'publish', error))))
      return answers
    },

    async inspect(query) {
      assertOpen()
      return inspectByQuorum({ ...common, quorum }, query)
    },

    async listen(listener) {
      assertOpen()
      return broadcast.listen(listener, timeoutMs)
    },

    async watch(listener) {
      assertOpen()
      return thefts.listen(listener, timeoutMs)
    },

    async close() {
      closed = true
      broadcast.end()
      thefts.end()
      await parts.close()
    },
  }
}

function unsupported({ limit, ttlMs, steal }: Claim, longestTtlMs: number | undefined): Error | undefined {
  const { reasons } = redlockCapabilities
  if (steal) return new UnsupportedError(`redlock cannot steal: ${reasons?.steal}`)
  if (limit !== undefined) return new UnsupportedError(`redlock has no limits: ${reasons?.limit}`)
  return tooLong(ttlMs, longestTtlMs)
}

function tooLong(ttlMs: number, longestTtlMs: number | undefined): Error | undefined {
  if (longestTtlMs === undefined || ttlMs <= longestTtlMs) return undefined
  const bound = `longestTtlSeconds (${longestTtlMs / 1_000})`
  const rule = `at most the redlock driver's ${bound}, for which a restarted node does not vote`
  return new InvalidArgumentError('timeoutSeconds', ttlMs / 1_000, rule)
}

type ReleaseAnswers = ReleaseList['answers'][number]

/** One answer for each lease. `counts`: under how many tokens each of them was released. */
function joined(sent: ReleaseAnswers, counts: readonly number[], total: number): ReleaseAnswers {
  if (total === counts.length) return sent
  return sent.then((answers) => {
    const each = answers.values()
    return counts.map((count) => anyOf(Array.from({ length: count }, () => each.next().value ?? false)))
  })
}

/** One lease may have been released under several tokens. */
const anyOf = (answers: readonly (boolean | Error)[]): boolean | Error =>
  answers.includes(true) || (answers.find((answer) => answer instanceof Error) ?? false)

/** How far a token may be ahead of the clock of a node that forgets nothing. */
const HOUR_US = 3_600_000_000
const RETRY_MS = { least: 2, most: 40 }
