import { callListener } from '../../core/call-listener.ts'
import type {
  AcquireAnswer,
  Capabilities,
  Claim,
  Driver,
  LeaseRecord,
  LeaseRef,
  Refusal,
  RenewAnswer,
  Renewal,
} from '../../core/driver.ts'
import { ClosedError, InvalidArgumentError, StoreError, UnsupportedError } from '../../core/errors.ts'
import type { Clock } from '../../core/time/clock.ts'
import { queueMicrotask } from '../../core/time/native-time.ts'
import type { Random } from '../../core/time/random.ts'
import type { RedisConnection } from '../redis/connection.ts'
import type { RedlockNode } from '../redis/driver.ts'
import { inTime, storeErrorFrom } from '../redis/errors.ts'
import { type ProposedClaim, proposalsOf, REPAIRS } from '../redis/proposals.ts'
import {
  type Attempt,
  Attempts,
  addToRelease,
  endingOf,
  type LateVote,
  leasesOf,
  newReleaseList,
  type ReleaseAnswers,
  type ReleaseList,
} from './attempts.ts'
import {
  acquiredAt,
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
import { askNodes, countYes, type NodeError, type Quorum, quorumError, type Votes } from './quorum.ts'
import { inspectByQuorum } from './quorum-inspect.ts'
import { publishedRelease, publishForced, publishRefused, ReleaseBroadcast } from './release-broadcast.ts'

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
  force: 'call',
  groups: false,
  reasons: {
    limit:
      'majorities do not preserve a count. With 2 permits and 3 nodes, 3 clients can each find a majority that has ' +
      'room',
    rate: 'majorities do not preserve a count. Each node would see only some of what was taken',
    force:
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
  let closed = false
  const assertOpen = (): void => {
    if (closed) throw closedError()
  }
  const failed = (failure: NodeError): void => {
    if (onNodeError !== undefined) queueMicrotask(() => callListener('onNodeError', onNodeError, failure))
  }
  const voters: Quorum = { nodes, names, quorum, timeoutMs, failed }
  const broadcast = new ReleaseBroadcast(voters, clock)
  const nodeFailed = ({ connection }: Pick<RedlockNode, 'connection'>, what: string, error: unknown): void => {
    const at = nodes.findIndex((node) => node.connection === connection)
    failed({ node: names[at] as string, error: storeErrorFrom(what, error, connection) })
  }
  const unpublished = (connection: RedisConnection): void => nodeFailed({ connection }, 'publish', publishRefused())

  /** Sends a release that no caller waits for to one node. */
  function releaseAt(at: number, list: ReleaseList): void {
    const node = nodes[at] as RedlockNode
    const answered = (answers: ReleaseAnswers | Error): void => {
      const error = answers instanceof Error ? answers : answers.find((answer) => answer instanceof Error)
      if (error !== undefined) nodeFailed(node, 'release', error)
      released(at, list, answers)
    }
    node.release(list.leases).then(answered, answered)
  }

  /** Also on those that did not answer. */
  const releaseEverywhere = (list: ReleaseList): void => {
    if (list.leases.length > 0) for (const at of nodes.keys()) releaseAt(at, list)
  }

  function released(at: number, list: ReleaseList, answers: ReleaseAnswers | Error): void {
    list.answers[at] = answers
    if (list.late.length === 0) return
    const ofNode = list.late.filter((vote) => vote.at === at)
    list.late = list.late.filter((vote) => vote.at !== at)
    giveBack(at, ofNode)
  }

  /**
   * Releases votes that arrived after their tokens were released. Usually the release follows the proposal over the
   * same connection, and has ended the lease. Only if it overtook the proposal, nothing else will end it.
   */
  function giveBack(at: number, votes: readonly LateVote[]): void {
    const left: LeaseRef[] = []
    for (const vote of votes) {
      const { attempt, token } = vote
      const hasEnded = endingOf(vote)
      if (hasEnded === 'unanswered') attempt.ending?.release.late.push(vote)
      else if (isOwed(hasEnded)) left.push(...leasesOf(attempt.claim, [token]))
    }
    if (left.length > 0) releaseAt(at, newReleaseList(left))
  }

  /** One round: proposes a token for each attempt to every node. */
  function vote(round: readonly Attempt[]): Promise<readonly Outcome[]> {
    const proposed = round.map(({ claim, tokens }) => {
      return { lockName: claim.lockName, claim, token: tokens.at(-1) as number }
    })
    const proposals = proposalsOf(proposed, { maxAheadUs, longestTtlMs })
    return askNodes<Vote, Outcome>(voters, {
      entries: round.length,
      call: (node) => node.propose(proposals),
      decide(votes, entry) {
        const decided = decide(terms, proposer, wallUs(), votes, round[entry] as Attempt)
        proposer = decided.proposer
        return decided.outcome
      },
      late(at, answers, outcomes) {
        const votes: LateVote[] = []
        let nowUs: number | undefined
        for (let entry = 0; entry < round.length; entry += 1) {
          const answer = answers[entry] as Vote | Error
          if (outcomes[entry] === undefined || answer instanceof Error) continue
          nowUs ??= wallUs()
          proposer = learn(terms, proposer, nowUs, answer)
          const [attempt, { token }] = [round[entry] as Attempt, proposed[entry] as ProposedClaim]
          if ('granted' in answer && answer.granted && !mayCount(attempt, token)) votes.push({ at, attempt, token })
        }
        giveBack(at, votes)
      },
    })
  }

  async function acquire(claims: readonly Claim[]): Promise<readonly (AcquireAnswer | Error)[]> {
    // By attempt: a claim that is in the list twice has one.
    const answers = new Map<Attempt, AcquireAnswer | Error | undefined>()
    const attempted = claims.map((claim) => {
      const refused = unsupported(claim, longestTtlMs)
      if (refused !== undefined) return refused
      const attempt = attempts.begin(claim, answers)
      answers.set(attempt, undefined)
      return attempt
    })
    let open = [...answers.keys()]
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
    return outcome.kind === 'failed' ? quorumError(voters, 'acquire', outcome.errors) : refusalOf(claim, outcome)
  }

  function refusalOf(claim: Claim, outcome: Outcome): Refusal {
    // Each rival in a split vote asks again at a different moment, so that they do not split the next vote, too.
    const jitterMs = RETRY_MS.least + random.fraction() * (RETRY_MS.most - RETRY_MS.least)
    const { holder, askAgainMs } = outcome.kind === 'refused' ? outcome : { holder: undefined, askAgainMs: 0 }
    const refusal: Refusal = { granted: false, ...(holder && { holder }) }
    return claim.waiterTtlMs === 0 ? refusal : { ...refusal, askAgainMs: askAgainMs + jitterMs }
  }

  function renew(renewals: readonly Renewal[]): Promise<readonly (RenewAnswer | Error)[]> {
    /** Of each node that lacks some of the leases, before a quorum has renewed them: their places in the list. */
    const lacking = new Map<number, number[]>()
    const answered: (readonly (RenewAnswer | Error)[] | undefined)[] = []
    const { monotonicMs } = clock.now()
    const outcomes: (RenewAnswer | Error | undefined)[] = []
    const repairRenewed = (): void => {
      for (const [at, entries] of lacking) {
        const renewed = entries.filter((entry) => outcomes[entry] === 'renewed')
        const from = answered.findIndex((answers) => answers?.[renewed[0] as number] === 'renewed')
        repair(
          at,
          from,
          renewed.map((entry) => renewals[entry] as Renewal),
        )
        lacking.set(
          at,
          entries.filter((entry) => outcomes[entry] === undefined),
        )
      }
    }
    return askNodes<RenewAnswer, RenewAnswer | Error>(voters, {
      entries: renewals.length,
      call: (node) => node.renew(renewals),
      settled(at, answers) {
        // Long after the call, the leases may have been released, perhaps by another driver. The next renewal repairs.
        if (answers instanceof Error || clock.now().monotonicMs - monotonicMs > timeoutMs) return answers
        answered[at] = answers
        const lost = [...answers.keys()].filter((entry) => answers[entry] === 'lost')
        if (lost.length > 0) lacking.set(at, lost)
        // When these answers have been counted.
        queueMicrotask(repairRenewed)
        return answers
      },
      decide(votes, entry) {
        const decision = countYes(quorum, votes, (answer) => answer === 'renewed')
        if (decision === undefined) return undefined
        outcomes[entry] =
          decision === 'unknown' ? quorumError(voters, 'renew', votes.errors) : decision === 'yes' ? 'renewed' : 'lost'
        return outcomes[entry]
      },
    })
  }

  /**
   * Writes leases again on a node that has lost them, because it was restarted or away for longer than their time to
   * live. A quorum has just renewed them. Without this, a lease would be lost when enough nodes have been restarted one
   * after the other, although a quorum was always up.
   *
   * `from`: the place of a node that has them. What this driver did not get itself is read there: it may renew for
   * another one, as in a heartbeat thread.
   */
  function repair(at: number, from: number, renewals: readonly Renewal[]): void {
    proposeAgain(at, renewals)
    const source = nodes[from]
    const unknown = renewals.filter((renewal) => attempts.holding(renewal) === undefined)
    if (source === undefined || unknown.length === 0) return
    const read = async (lockNames: readonly string[]) => (await source.inspectNames(lockNames)).leases
    attempts.adopt(unknown, read).then(
      () => proposeAgain(at, unknown),
      (error: unknown) => nodeFailed(source, 'read a lease', error),
    )
  }

  function proposeAgain(at: number, renewals: readonly Renewal[]): void {
    const known = renewals.flatMap((renewal) => {
      const attempt = attempts.holding(renewal)
      return attempt === undefined ? [] : [{ attempt, ttlMs: renewal.ttlMs, token: renewal.fencingToken }]
    })
    if (known.length === 0 || closed) return
    const node = nodes[at] as RedlockNode
    const proposed = known.map(({ attempt: { claim }, ttlMs, token }) => {
      return { lockName: claim.lockName, claim: { ...claim, ttlMs }, token }
    })
    node.propose(proposalsOf(proposed, { maxAheadUs: REPAIRS, longestTtlMs })).then(
      (answers) => {
        // As for any vote: if the lease was released meanwhile, this may have come after the release.
        const late = known.flatMap(({ attempt, token }, entry) => {
          const answer = answers[entry] as Vote | Error
          const isLate =
            !(answer instanceof Error) && 'granted' in answer && answer.granted && !mayCount(attempt, token)
          return isLate ? [{ at, attempt, token }] : []
        })
        giveBack(at, late)
      },
      (error: unknown) => nodeFailed(node, 'repair a lease', error),
    )
  }

  /**
   * Releases on every node, and tells waiters. Resolves when every lease is decided. `barMs`: for how long no node may
   * repair the leases.
   */
  function release(
    leases: readonly LeaseRef[],
    decide: (votes: Votes<boolean>) => boolean | Error | undefined,
    barMs?: number,
  ): Promise<readonly (boolean | Error)[]> {
    const list = newReleaseList()
    const counts = leases.map((lease) => attempts.release(lease, list))
    const published = publishedRelease(list.leases, random.id(), unpublished, barMs)
    return askNodes<boolean, boolean | Error>(voters, {
      entries: leases.length,
      call: (node) => node.releaseAndPublish(published),
      settled(at, answers) {
        released(at, list, answers)
        return answers instanceof Error || list.leases.length === leases.length ? answers : joined(answers, counts)
      },
      decide,
    })
  }

  const releaseByForce = (leases: readonly LeaseRecord[]): Promise<readonly (boolean | Error)[]> => {
    const decide = ({ answers, errors }: Votes<boolean>): boolean | Error | undefined => {
      if (answers.length >= quorum) return answers.includes(true)
      return errors.length > nodes.length - quorum ? quorumError(voters, 'end the lease', errors) : undefined
    }
    // Its holder learns with its next renewal that it has ended, and repairs it no more.
    return release(leases, decide, longestTtlMs ?? HOUR_US / 1_000)
  }

  return {
    name: 'redlock',
    capabilities: redlockCapabilities,

    // An async function here would take three more steps to settle.
    acquire: (claims) => (closed ? Promise.reject(closedError()) : acquire(claims)),

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
        if (decision === 'unknown') return quorumError(voters, 'release', votes.errors)
        return decision && decision === 'yes'
      })
    },

    async inspect(query) {
      assertOpen()
      return inspectByQuorum(voters, query)
    },

    async listen(listener) {
      assertOpen()
      return broadcast.listen(listener)
    },

    async close() {
      closed = true
      broadcast.end()
      await parts.close()
    },

    extensions: {
      ...(longestTtlMs !== undefined && { longestTtlMs }),

      /**
       * Each node compares claim and token, as in any release. A lease that a quorum of the nodes does not have any
       * more has ended, even if the other nodes are away and still have it: its holder needs a quorum for every
       * renewal. A renewal that comes between the nodes makes its holder repair the lease on those that have ended it,
       * so each of them refuses that first.
       */
      async forceRelease(leases, { by }) {
        assertOpen()
        const answers = await releaseByForce(leases)
        const ended = leases.filter((_, at) => answers[at] === true)
        const publish = (node: RedlockNode): Promise<unknown> =>
          inTime('publish', timeoutMs, () => publishForced(node, ended, by), node.connection)
        // A caller that closes the driver after this must not cut the messages off.
        await Promise.all(nodes.map((node) => publish(node).catch((error) => nodeFailed(node, 'publish', error))))
        return answers
      },
    },
  }
}

const closedError = (): ClosedError => new ClosedError('the redlock driver is closed')

function unsupported({ limit, ttlMs, forceUpTo }: Claim, longestTtlMs: number | undefined): Error | undefined {
  const { reasons } = redlockCapabilities
  if (forceUpTo !== undefined) return new UnsupportedError(`redlock cannot take a lock by force: ${reasons?.force}`)
  if (limit !== undefined) return new UnsupportedError(`redlock has no limits: ${reasons?.limit}`)
  return tooLong(ttlMs, longestTtlMs)
}

function tooLong(ttlMs: number, longestTtlMs: number | undefined): Error | undefined {
  if (longestTtlMs === undefined || ttlMs <= longestTtlMs) return undefined
  const bound = `longestTtlSeconds (${longestTtlMs / 1_000})`
  const rule = `at most the redlock driver's ${bound}, for which a restarted node does not vote`
  return new InvalidArgumentError('timeoutSeconds', ttlMs / 1_000, rule)
}

/** One answer for each lease. `counts`: under how many tokens each of them was released. */
function joined(answers: ReleaseAnswers, counts: readonly number[]): ReleaseAnswers {
  const each = answers.values()
  return counts.map((count) => anyOf(Array.from({ length: count }, () => each.next().value ?? false)))
}

/** One lease may have been released under several tokens. */
const anyOf = (answers: readonly (boolean | Error)[]): boolean | Error =>
  answers.includes(true) || (answers.find((answer) => answer instanceof Error) ?? false)

/** How far a token may be ahead of the clock of a node that forgets nothing. */
const HOUR_US = 3_600_000_000
const RETRY_MS = { least: 2, most: 40 }
