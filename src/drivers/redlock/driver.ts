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
import { storeErrorFrom } from '../redis/errors.ts'
import { type Attempt, Attempts, leasesOf, mayCount } from './attempts.ts'
import { type Outcome, Proposals, type Vote } from './proposals.ts'
import { callNodes, type NodeError, quorumError } from './quorum.ts'
import { inspectByQuorum } from './quorum-inspect.ts'
import { ReleaseBroadcast } from './release-broadcast.ts'

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
  groups: false,
  reasons: {
    limit:
      'majorities do not preserve a count. With 2 permits and 3 nodes, 3 clients can each find a majority that has ' +
      'room',
    rate: 'majorities do not preserve a count. Each node would see only some of what was taken',
    steal: 'a lock is granted by a majority, and no node could end the leases of the others in the same step',
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
  const proposals = new Proposals({ clock, quorum, maxAheadUs })
  const attempts = new Attempts()
  const broadcast = new ReleaseBroadcast({ nodes, quorum, clock })
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
  /** For work that no caller waits for. */
  const inBackground = (node: RedlockNode, what: string, work: Promise<readonly unknown[]>): void => {
    const report = (error: unknown): void => nodeFailed(node, what, error)
    work.then((answers) => {
      const error = answers.find((answer) => answer instanceof Error)
      if (error !== undefined) report(error)
    }, report)
  }

  /** Releases on every node, also on those that did not answer. */
  const releaseEverywhere = (leases: readonly LeaseRef[]): void => {
    if (leases.length === 0) return
    for (const node of nodes) inBackground(node, 'release', node.release(leases))
  }

  /** One round: proposes a token for each attempt to every node. */
  function vote(round: readonly Attempt[]): Promise<readonly Outcome[]> {
    const tokens = round.map((attempt) => attempt.tokens.at(-1) as number)
    const proposed = round.map(({ claim }, at) => ({ ...claim, proposal: { token: tokens[at] as number, maxAheadUs } }))
    return callNodes<RedlockNode, Vote, Outcome>({
      ...common,
      entries: round.length,
      call: (node) => node.propose(proposed, longestTtlMs),
      decide: (votes, entry) => proposals.decide(votes, round[entry] as Attempt),
      late(node, entry, answer) {
        proposals.learn(answer)
        const [attempt, token] = [round[entry] as Attempt, tokens[entry] as number]
        if (!('granted' in answer) || !answer.granted || mayCount(attempt, token)) return
        // The release may have overtaken it, and nothing else will end this lease.
        inBackground(node, 'release', node.release(leasesOf({ claim: attempt.claim, tokens: [token] })))
      },
    })
  }

  async function acquire(claims: readonly Claim[]): Promise<readonly (AcquireAnswer | Error)[]> {
    const answers = new Map<Attempt, AcquireAnswer | Error>()
    // A claim that is in the list twice has one attempt.
    const begun = new Map<string, Attempt>()
    const attempted = claims.map((claim) => {
      const refused = unsupported(claim, longestTtlMs)
      if (refused !== undefined) return refused
      const key = `${claim.claimId} ${claim.lockName}`
      const attempt = begun.get(key) ?? attempts.begin(claim)
      begun.set(key, attempt)
      return attempt
    })
    let open = [...begun.values()]
    for (let round = 1; open.length > 0; round += 1) {
      const voting = open
      proposals.propose(voting)
      const outcomes = await vote(voting)
      open = voting.filter((attempt, at) => {
        const answer = answerTo(attempt, outcomes[at] as Outcome, round === MAX_ROUNDS)
        if (answer !== undefined) answers.set(attempt, answer)
        return answer === undefined
      })
    }
    return attempted.map((each) => (each instanceof Error ? each : (answers.get(each) as AcquireAnswer | Error)))
  }

  /** Undefined: another round. */
  function answerTo(attempt: Attempt, outcome: Outcome, isLast: boolean): AcquireAnswer | Error | undefined {
    if (attempt.state === 'over') {
      // Even if the nodes granted it: its tokens may have been released, or a newer attempt has replaced them.
      releaseEverywhere(leasesOf(attempt))
      const { lockName } = attempt.claim
      return new StoreError(`the claim of "${lockName}" was withdrawn, or asked for again, during the vote`)
    }
    if (outcome.kind === 'granted') {
      attempts.end(attempt, 'granted')
      // Nodes that did not answer this round may still have the lease of an earlier one.
      releaseEverywhere(leasesOf(attempt).slice(0, -1))
      attempt.tokens.splice(0, attempt.tokens.length - 1)
      return outcome.grant
    }
    if (outcome.kind === 'outbid' && !isLast) {
      attempt.isRepeat = false
      attempt.mark = outcome.mark
      return undefined
    }
    if (outcome.kind === 'failed') {
      const error = quorumError('acquire', quorum, nodes.length, outcome.errors)
      // As far as is known, the earlier grant still exists, and its holder may rely on it.
      if (attempt.isRepeat) attempts.end(attempt, 'granted')
      else lose(attempt)
      return error
    }
    lose(attempt)
    // Each rival in a split vote asks again at a different moment, so that they do not split the next vote, too.
    const jitterMs = RETRY_MS.least + random.fraction() * (RETRY_MS.most - RETRY_MS.least)
    const holder = outcome.kind === 'refused' && outcome.holder
    const endsInMs = outcome.kind === 'refused' && holder ? outcome.askAgainMs : undefined
    const refusal: Refusal = { granted: false, ...(holder && { holder }) }
    return attempt.claim.waitMs === 0 ? refusal : { ...refusal, askAgainMs: (endsInMs ?? 0) + jitterMs }
  }

  /** Rule 11: the attempt is over before its release is sent. From then on none of its tokens counts. */
  function lose(attempt: Attempt): void {
    attempts.end(attempt, 'over')
    releaseEverywhere(leasesOf(attempt))
  }

  function renew(renewals: readonly Renewal[]): Promise<readonly (RenewAnswer | Error)[]> {
    return callNodes<RedlockNode, RenewAnswer, RenewAnswer | Error>({
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
      const released = leases.map((lease) => attempts.release(lease))
      const messages = broadcast.messages(random.id())
      return callNodes<RedlockNode, boolean, boolean | Error>({
        ...common,
        entries: leases.length,
        async call(node) {
          const unpublished = (error: Error): void => nodeFailed(node, 'publish a release', error)
          const sent = await node.releaseAndPublish(released.flat(), { ...messages, failed: unpublished })
          const answers = sent.values()
          return released.map((parts) => anyOf(parts.map(() => answers.next().value as boolean | Error)))
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
      return broadcast.listen(listener, timeoutMs)
    },

    async close() {
      closed = true
      broadcast.end()
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

/** One lease may have been released under several tokens. */
const anyOf = (answers: readonly (boolean | Error)[]): boolean | Error =>
  answers.includes(true) || (answers.find((answer) => answer instanceof Error) ?? false)

/** After a proposal was outbid, the next one is above the mark. Only a third client can outbid that again. */
const MAX_ROUNDS = 4
/** How far a token may be ahead of the clock of a node that forgets nothing. */
const HOUR_US = 3_600_000_000
const RETRY_MS = { least: 2, most: 40 }
