import type { Bounds } from './bounds.ts'
import { SMALLEST } from './configurations.ts'
import type { NodeServer, NodeState } from './node.ts'
import { RULES, type Rules } from './rules.ts'

/** A fault in one decision. The model has to find each: otherwise it proves nothing. */
export interface Mutant {
  readonly name: string
  readonly rules: Rules
  readonly quorum?: number
  /** Just large enough to find it. */
  readonly bounds: Bounds
}

const mutant = (name: string, bounds: Partial<Bounds>, changed: Partial<Rules>): Mutant => ({
  name,
  rules: { ...RULES, ...changed },
  bounds: { ...SMALLEST, ...bounds },
})

const OLD = { sinceMs: 0, longestMs: 0 }
/** As if the node had never forgotten anything. */
const trusting = (node: NodeState, { runId }: NodeServer): NodeState => ({ ...node, voter: { ...OLD, runId } })

/** What `npm test` runs. */
export const MUTANTS: readonly Mutant[] = [
  { ...mutant('quorum off by one', {}, {}), quorum: 1 },
  mutant(
    'a released ballot counted',
    { clientsAheadMs: [0, 200], withdraws: true },
    {
      conclude: (ballot, outcome, isLast) => RULES.conclude({ ...ballot, state: 'open' }, outcome, isLast),
    },
  ),
  mutant(
    'mark forgotten',
    { clientsAheadMs: [200, 0] },
    {
      vote(node, server, proposal) {
        const voted = RULES.vote(node, server, proposal)
        return { ...voted, node: { ...voted.node, mark: node.mark } }
      },
    },
  ),
  mutant(
    'proposal not above the mark',
    { clientsAheadMs: [200, 0] },
    {
      vote(node, server, proposal) {
        const voted = RULES.vote({ ...node, mark: 0 }, server, proposal)
        return { ...voted, node: { ...voted.node, mark: Math.max(node.mark, voted.node.mark) } }
      },
    },
  ),
  mutant(
    'next proposal not above the mark that was named',
    { clientsAheadMs: [200, 0] },
    {
      propose: (proposer, wallUs, ballots) =>
        RULES.propose(
          proposer,
          wallUs,
          ballots.map((each) => ({ ...each, mark: 0 })),
        ),
      learn: (_, proposer) => proposer,
      decide: (terms, proposer, ...rest) => ({ ...RULES.decide(terms, proposer, ...rest), proposer }),
    },
  ),
  mutant(
    'grace period dropped',
    { restarts: 1 },
    {
      vote(node, server, proposal) {
        const { longestMs } = proposal
        const sinceMs = Math.floor(server.nowUs / 1_000) - longestMs
        return RULES.vote(
          { ...node, voter: node.voter ?? { sinceMs, longestMs, runId: server.runId } },
          server,
          proposal,
        )
      },
    },
  ),
  mutant(
    'least mark dropped after the grace period',
    { ticks: 1, restarts: 1, clientsAheadMs: [0, -1_500] },
    {
      vote(node, server, proposal) {
        const voted = RULES.vote(node, server, proposal)
        if ('silentMs' in voted.reply) return voted
        const unmarked = RULES.vote(trusting(node, server), server, { ...proposal, longestMs: 0 })
        return { ...unmarked, node: { ...unmarked.node, voter: voted.node.voter } }
      },
    },
  ),
  mutant('validity not checked', { ticks: 1 }, { isInTime: () => true }),
  mutant('margin removed', { ticks: 1, drifts: true }, { trustedUntilMs: (sentMs, ttlMs) => sentMs + ttlMs }),
  mutant(
    'released by claim, without the token',
    { proposals: [2, 1], clientsAheadMs: [0, 200] },
    {
      release: (node, nowMs, lease) =>
        RULES.release(node, nowMs, node.lease?.claimId === lease.claimId ? node.lease : lease),
    },
  ),
  mutant(
    'a renewal confirmed by one node',
    { ttlTicks: 2, ticks: 2, renewals: [1, 1] },
    {
      countYes: (quorum, votes, isYes) => RULES.countYes(quorum - 1, votes, isYes),
    },
  ),
  mutant(
    'the guard trusts the voter of another server',
    { failovers: 1 },
    {
      vote(node, server, proposal) {
        const voter = node.voter && { ...node.voter, runId: server.runId }
        return RULES.vote({ ...node, voter }, server, proposal)
      },
    },
  ),
  mutant(
    "a repair replaces another claim's lease",
    { ticks: 1, proposals: [2, 1], renewals: [1, 0], repairs: true, clientsAheadMs: [200, 0] },
    {
      repair: (node, server, proposal) =>
        RULES.repair(node.lease?.claimId === proposal.claimId ? node : { ...node, lease: undefined }, server, proposal),
    },
  ),
  mutant(
    'a repair lowers the mark',
    { proposals: [2, 1], renewals: [1, 0], repairs: true, clientsAheadMs: [0, 200] },
    {
      repair(node, server, proposal) {
        const repaired = RULES.repair(node, server, proposal)
        const isGranted = 'granted' in repaired.reply && repaired.reply.granted
        return isGranted ? { ...repaired, node: { ...repaired.node, mark: proposal.token } } : repaired
      },
    },
  ),
]

/** What only `npm run model` runs, because it takes some seconds to find it. */
export const RARE_MUTANTS: readonly Mutant[] = [
  // A rival has a vote of the node, and gets the other one that it needs when the lease ends there.
  mutant(
    'a repair accepted by a node that is silent',
    { ttlTicks: 2, ticks: 2, renewals: [2, 0], repairs: true, restarts: 1 },
    {
      repair(node, server, proposal) {
        const repaired = RULES.repair(trusting(node, server), server, { ...proposal, longestMs: 0 })
        return { ...repaired, node: { ...repaired.node, voter: node.voter } }
      },
    },
  ),
]
