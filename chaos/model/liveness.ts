import { type Ballot, MAX_ROUNDS, type Proposer, type Vote } from '../../src/drivers/redlock/ballot.ts'
import { type Bounds, NODES, runIdOf, TICK_MS, type Times, timeOf, timesOf } from './bounds.ts'
import { Interned, memo } from './interned.ts'
import { isVoting, type NodeState } from './node.ts'
import type { Rules } from './rules.ts'
import type { World } from './world.ts'

interface Situation {
  readonly nodes: readonly { readonly node: NodeState; readonly aheadMs: number; readonly runs: number }[]
  readonly proposer: Proposer
  readonly clientAheadMs: number
  readonly tick: number
}

/**
 * Whether a client could not get the lock although nothing fails any more. If a quorum votes and is free, it must get
 * it at once, in the rounds of one call. Otherwise it must get it when all leases have ended and all nodes vote again.
 */
export function isStuck(world: World, bounds: Bounds, rules: Rules, quorum: number) {
  const times = timesOf(bounds)
  const nodes = new Interned<Situation['nodes'][number]>()
  const nodeAt = memo((place, _) => {
    const { node, aheadMs, runs } = world.place(place)
    return nodes.id({ node, aheadMs, runs })
  })
  const asking = new Interned<Pick<Situation, 'proposer' | 'clientAheadMs'>>()
  const askingAs = memo((client, _) => {
    const { index, proposer } = world.client(client)
    return asking.id({ proposer, clientAheadMs: bounds.clientsAheadMs[index] as number })
  })
  const triples = new Map<number, number>()
  const keys: number[] = []
  const judged = memo((triple, detail) => {
    const [tick, who] = [detail % TICKS, Math.floor(detail / TICKS)]
    const three = keys[triple] as number
    const ids = [three % MOST, Math.floor(three / MOST) % MOST, Math.floor(three / MOST / MOST)]
    const situation = { ...asking.at(who), tick, nodes: ids.map((id) => nodes.at(id)) }
    return stuckIn(situation, rules, times, quorum)
  })

  return (state: Int32Array): string | undefined => {
    const { places, clients, tick } = world.numbers(state)
    const [a, b, c] = [...places].map((place) => nodeAt(place, 0)).sort((x, y) => x - y) as [number, number, number]
    const key = (c * MOST + b) * MOST + a
    let triple = triples.get(key)
    if (triple === undefined) {
      triple = keys.push(key) - 1
      triples.set(key, triple)
    }
    for (const client of clients) {
      const stuck = judged(triple, askingAs(client, 0) * TICKS + tick)
      if (stuck !== '') return `client ${'AB'[world.client(client).index]} ${stuck}`
    }
    return undefined
  }
}

/** Empty if the client gets the lock. */
function stuckIn(situation: Situation, rules: Rules, times: Times, quorum: number): string {
  const nowMs = timeOf(situation.tick)
  const free = situation.nodes.filter(({ node, aheadMs, runs }) => {
    const votes = isVoting(node, nowMs + aheadMs, runIdOf(runs))
    return votes && (node.lease === undefined || node.lease.endMs <= nowMs + aheadMs)
  })
  const now = call(situation, rules, times, quorum)
  if (free.length >= quorum) return now.isGranted ? '' : 'cannot get the lock, although a quorum is free'
  // The call has made the nodes count since when they have forgotten nothing.
  const tick = situation.tick + (times.longestMs + times.ttlMs) / TICK_MS
  return call({ ...now.after, tick }, rules, times, quorum).isGranted
    ? ''
    : 'cannot get the lock after all leases have ended'
}

/** One call to acquire, in which every message arrives at once. */
function call(before: Situation, rules: Rules, times: Times, quorum: number): { isGranted: boolean; after: Situation } {
  const { tick, clientAheadMs } = before
  const wallUs = (timeOf(tick) + clientAheadMs) * 1_000
  let { nodes, proposer } = before
  let ballot: Ballot = rules.begin(undefined)
  for (let round = 1; round <= MAX_ROUNDS; round += 1) {
    const proposed = rules.propose(proposer, wallUs, [ballot])
    proposer = proposed.proposer
    ballot = { ...ballot, tokens: proposed.tokens[0] as readonly number[] }
    const token = ballot.tokens.at(-1) as number
    const replies = nodes.map(({ node, aheadMs, runs }) => {
      const server = { nowUs: (timeOf(tick) + aheadMs) * 1_000, runId: runIdOf(runs) }
      const terms = { ttlMs: times.ttlMs, maxAheadUs: times.maxAheadUs, longestMs: times.longestMs }
      return rules.vote(node, server, { claimId: 'next', token, ...terms })
    })
    nodes = nodes.map((each, at) => ({ ...each, node: (replies[at] as { node: NodeState }).node }))
    const answers: Vote[] = []
    const errors: { node: string; error: Error }[] = []
    let outcome: ReturnType<Rules['decide']>['outcome']
    for (const [at, { reply }] of replies.entries()) {
      if ('silentMs' in reply) errors.push({ node: `node ${at + 1}`, error: SILENT })
      else answers.push(reply)
      const votes = { answers, errors, pending: NODES - at - 1 }
      const decided = rules.decide({ quorum, maxAheadUs: times.maxAheadUs }, proposer, wallUs, votes, ballot)
      proposer = decided.proposer
      outcome = decided.outcome
      if (outcome !== undefined) break
    }
    const conclusion = rules.conclude(ballot, outcome as NonNullable<typeof outcome>, round === MAX_ROUNDS)
    const after = { ...before, nodes, proposer }
    if (conclusion.kind === 'granted') return { isGranted: true, after }
    if (conclusion.kind !== 'again') return { isGranted: false, after }
    ballot = { ...ballot, isRepeat: false, mark: conclusion.mark }
  }
  return { isGranted: false, after: { ...before, nodes, proposer } }
}

const SILENT = new Error('it does not vote')
/** More than a run has. */
const MOST = 2 ** 17
const TICKS = 16
