import type { Vote } from '../../src/drivers/redlock/ballot.ts'
import { type Bounds, NODES, runIdOf, START_MS, type Times, timeOf, timesOf } from './bounds.ts'
import {
  atTick,
  type ClientParts,
  type ClientState,
  type ClientStep,
  decisions,
  learned,
  newClient,
  ownSteps,
  pruned,
  renewalSteps,
  shown,
} from './client.ts'
import { Interned, memo } from './interned.ts'
import { alive, EMPTY_NODE, isVoting, type LeaseId, type NodeServer, type NodeState } from './node.ts'
import type { Rules } from './rules.ts'

/** A node, and its answers that are on their way to each client. */
export interface Place {
  readonly node: NodeState
  /** What a replica or a backup of it has. */
  readonly copy: NodeState | undefined
  /** How many servers it has been. Each has its own run_id. */
  readonly runs: number
  readonly aheadMs: number
  readonly votes: readonly [Vote | undefined, Vote | undefined]
  readonly renewals: readonly [boolean | undefined, boolean | undefined]
}

/** What belongs to no node and no client. */
export interface Common {
  readonly tick: number
  readonly restarts: number
  /** How many copies were made for it. */
  readonly failovers: number
  readonly hasDrifted: boolean
  /** The largest token that a client was granted. */
  readonly largest: number
  /** Why this state must not exist. */
  readonly fault: string | undefined
}

/** A state: common, three places, two clients, each as the number of its value. Equal places are interchangeable. */
export const WIDTH = 2 + NODES + 1
const [PLACES, CLIENTS] = [1, 1 + NODES]

export type Visit = (next: Int32Array, label: () => string) => void

export interface World {
  readonly first: Int32Array
  /** Calls `visit` with every state that can follow. The array is used again after the call. */
  forEachNext(state: Int32Array, visit: Visit): void
  common(state: Int32Array): Common
  /** The numbers of its places and clients. */
  numbers(state: Int32Array): { readonly places: Int32Array; readonly clients: Int32Array; readonly tick: number }
  place(number: number): Place
  client(number: number): ClientState
}

export function worldOf(bounds: Bounds, rules: Rules, quorum: number): World {
  const commons = new Interned<Common>()
  const places = new Interned<Place>()
  const clients = new Interned<ClientState>()
  const requests = new Interned<Request>()
  const votes = new Interned<Vote | null>()
  const times = timesOf(bounds)
  const parts: ClientParts = { bounds, rules, quorum, times }
  const next = new Int32Array(WIDTH)

  const placeAt = (state: Int32Array, node: number): number => state[PLACES + node] as number
  const clientAt = (state: Int32Array, client: number): number => state[CLIENTS + client] as number

  // ------------------------------------------------------------------------------------------------------------------
  // What each part can do, once for each combination of numbers

  const forgetVotes = memo((place, index) => places.id(without(places.at(place), 'votes', index)))
  const forgetRenewals = memo((place, index) => places.id(without(places.at(place), 'renewals', index)))
  /** The number of the vote that a place has for a client. */
  const voteAt = memo((place, index) => votes.id(places.at(place).votes[index] ?? null))
  const renewalAt = memo((place, index) => [undefined, false, true].indexOf(places.at(place).renewals[index]))

  const numbered = ({ client, ...step }: ClientStep): NumberedStep => ({ ...step, client: clients.id(client) })
  const own = memo((client, tick) => ownSteps(parts, clients.at(client), tick).map(numbered))
  const decided = memo((client, detail) => {
    const [tick, ...given] = unpacked(detail)
    const known = given.map((vote) => votes.at(vote) ?? undefined)
    return distinct(decisions(parts, clients.at(client), tick, known).map(numbered))
  })
  const renewed = memo((client, detail) => {
    const [tick, ...given] = unpacked(detail)
    const known = given.map((answer) => [undefined, false, true][answer])
    return renewalSteps(parts, clients.at(client), tick, known).map(numbered)
  })
  const inbox = memo((client, _) => requestsOf(clients.at(client)).map((each) => requests.id(each)))
  const arrive = memo((place, detail) => {
    const [request, tick] = [Math.floor(detail / TICKS), detail % TICKS]
    return arrivals(rules, times, places.at(place), requests.at(request), tick).map(({ place: after, vote }) => ({
      place: places.id(after),
      vote: vote === undefined ? -1 : votes.id(vote),
    }))
  })
  const taught = memo((client, detail) => {
    const vote = votes.at(Math.floor(detail / TICKS)) as Vote
    return clients.id(learned(parts, clients.at(client), detail % TICKS, vote))
  })
  const aged = memo((place, tick) => {
    const { node, copy, ...rest } = places.at(place)
    const nowMs = timeOf(tick)
    // With the clock of the server that will use it.
    const copied = copy && alive(copy, nowMs + Math.min(rest.aheadMs, ...bounds.clocksMs))
    return places.id({ ...rest, node: alive(node, nowMs + rest.aheadMs), copy: copied })
  })
  const agedClient = memo((client, tick) => clients.id(atTick(bounds, clients.at(client), tick)))
  const emptied = memo((place, _) =>
    places.id({ ...places.at(place), node: EMPTY_NODE, runs: places.at(place).runs + 1 }),
  )
  const copied = memo((place, _) => places.id({ ...places.at(place), copy: places.at(place).node }))
  const failedOver = memo((place, tick) =>
    failovers(places.at(place), bounds.clocksMs, tick).map((each) => places.id(each)),
  )
  const corrected = memo((place, tick) => places.id(clockSetRight(places.at(place), tick)))
  const restarted = memo((common, _) =>
    commons.id({ ...commons.at(common), restarts: commons.at(common).restarts + 1 }),
  )
  const copiedOnce = memo((common, _) =>
    commons.id({ ...commons.at(common), failovers: commons.at(common).failovers + 1 }),
  )
  const drifted = memo((common, _) => commons.id({ ...commons.at(common), hasDrifted: true }))
  const later = memo((common, _) => commons.id({ ...commons.at(common), tick: commons.at(common).tick + 1 }))
  const behind = memo((client, tick) => {
    return clients.id(atTick(bounds, { ...clients.at(client), behindMs: times.driftMs }, tick))
  })

  /** The tick, and what each place has for the client, in one number. The order does not matter. */
  const packed = (tick: number, state: Int32Array, index: number, at: (place: number, index: number) => number) => {
    const three = Int32Array.of(
      at(placeAt(state, 0), index),
      at(placeAt(state, 1), index),
      at(placeAt(state, 2), index),
    )
    const [low, middle, high] = three.sort() as unknown as [number, number, number]
    return ((high * ANSWERS + middle) * ANSWERS + low) * TICKS + tick
  }

  // ------------------------------------------------------------------------------------------------------------------

  const prune = memo((client, detail) => {
    const [refused, ...given] = unpackedLeases(detail)
    const known = clients.at(client)
    const most = bounds.proposals[known.index] as number
    return clients.id(
      pruned(
        known,
        most,
        refusedTokens[refused] as number,
        given.flatMap((place) => leases.at(place)),
      ),
    )
  })
  const refusedTokens: number[] = []
  const refusedIds = new Map<number, number>()
  /** What a place has, and what it may get back. */
  const leases = new Interned<readonly LeaseId[]>()
  const leaseAt = memo((place, _) => {
    const { node, copy } = places.at(place)
    const all = [node.lease, copy?.lease].filter((lease) => lease !== undefined)
    return leases.id(all.map(({ claimId, token }) => ({ claimId, token })))
  })
  /** The highest token that the node refuses from now on, also after a restart. */
  const refusedAt = memo((place, tick) => refusedBy(places.at(place), timeOf(tick), times, bounds.clocksMs))

  /** Drops what cannot matter any more, so that states that differ only in that are one. */
  function simplify(state: Int32Array): void {
    const { tick } = commons.at(state[0] as number)
    const [one, two, three] = [placeAt(state, 0), placeAt(state, 1), placeAt(state, 2)]
    const refused = Math.min(refusedAt(one, tick), refusedAt(two, tick), refusedAt(three, tick))
    let id = refusedIds.get(refused)
    if (id === undefined) {
      id = refusedTokens.push(refused) - 1
      refusedIds.set(refused, id)
    }
    const [low, middle, high] = sorted(leaseAt(one, 0), leaseAt(two, 0), leaseAt(three, 0))
    const detail = ((high * LEASES + middle) * LEASES + low) * LEASES + id
    for (let index = 0; index < 2; index += 1) state[CLIENTS + index] = prune(clientAt(state, index), detail)
  }

  function take(state: Int32Array, index: number, step: NumberedStep, visit: Visit): void {
    next.set(state)
    next[CLIENTS + index] = step.client
    if (step.forgets !== 'nothing') {
      const forget = step.forgets === 'votes' ? forgetVotes : forgetRenewals
      for (let node = 0; node < NODES; node += 1) next[PLACES + node] = forget(placeAt(state, node), index)
    }
    if (step.granted !== undefined) {
      const common = commons.at(state[0] as number)
      const isRepeat = clients.at(clientAt(state, index)).ballot?.isRepeat === true
      const fault = twoHolders(step, index) ?? fallen(common.largest, step.granted, isRepeat)
      next[0] = commons.id({ ...common, largest: Math.max(common.largest, step.granted), fault })
    }
    visit(next, () => `${NAMES[index]} ${step.label}`)
  }

  function twoHolders(step: NumberedStep, index: number): string | undefined {
    const [mine, theirs] = [clients.at(step.client), clients.at(clientAt(next, 1 - index))]
    return mine.phase === 'held' && theirs.phase === 'held' ? 'both clients hold the lock' : undefined
  }

  function forEachClientStep(state: Int32Array, tick: number, visit: Visit): void {
    for (let index = 0; index < 2; index += 1) {
      const client = clientAt(state, index)
      const { phase, renewingMs } = clients.at(client)
      for (const step of own(client, tick)) take(state, index, step, visit)
      if (phase === 'voting') {
        for (const step of decided(client, packed(tick, state, index, voteAt))) take(state, index, step, visit)
      }
      if (renewingMs !== undefined) {
        for (const step of renewed(client, packed(tick, state, index, renewalAt))) take(state, index, step, visit)
      }
    }
  }

  function forEachArrival(state: Int32Array, tick: number, visit: Visit): void {
    for (let index = 0; index < 2; index += 1) {
      const client = clientAt(state, index)
      for (const request of inbox(client, 0)) {
        for (let node = 0; node < NODES; node += 1) {
          const place = placeAt(state, node)
          // Equal places: the same happens.
          if (node > 0 && place === placeAt(state, node - 1)) continue
          for (const { place: after, vote } of arrive(place, request * TICKS + tick)) {
            const taughtClient = vote === -1 ? client : taught(client, vote * TICKS + tick)
            const label = (): string =>
              `node ${node + 1} gets ${told(requests.at(request))}: ${said(places.at(after), index)}`
            if (after !== place) {
              next.set(state)
              next[PLACES + node] = after
              visit(next, label)
            }
            if (taughtClient !== client) {
              next.set(state)
              next[PLACES + node] = after
              next[CLIENTS + index] = taughtClient
              visit(next, label)
            }
          }
        }
      }
    }
  }

  function forEachFailover(state: Int32Array, { tick, failovers }: Common, visit: Visit): void {
    if (bounds.failovers === 0) return
    for (let node = 0; node < NODES; node += 1) {
      const place = placeAt(state, node)
      if (failovers < bounds.failovers && places.at(place).copy === undefined) {
        next.set(state)
        next[0] = copiedOnce(state[0] as number, 0)
        next[PLACES + node] = copied(place, 0)
        visit(next, () => `the replica of node ${node + 1} receives nothing more`)
      }
      for (const after of failedOver(place, tick)) {
        next.set(state)
        next[PLACES + node] = after
        visit(next, () => `node ${node + 1} fails over to its replica: ${served(places.at(after))}`)
      }
      if (bounds.clocksMs.length === 0) continue
      const after = corrected(place, tick)
      if (after === place) continue
      next.set(state)
      next[PLACES + node] = after
      visit(next, () => `the clock of node ${node + 1} is set right`)
    }
  }

  function forEachFault(state: Int32Array, common: Common, visit: Visit): void {
    if (common.restarts < bounds.restarts) {
      for (let node = 0; node < NODES; node += 1) {
        next.set(state)
        next[0] = restarted(state[0] as number, 0)
        next[PLACES + node] = emptied(placeAt(state, node), 0)
        visit(next, () => `node ${node + 1} restarts without its data`)
      }
    }
    forEachFailover(state, common, visit)
    if (bounds.drifts && !common.hasDrifted) {
      for (let index = 0; index < 2; index += 1) {
        next.set(state)
        next[0] = drifted(state[0] as number, 0)
        next[CLIENTS + index] = behind(clientAt(state, index), common.tick)
        visit(next, () => `the clock of ${NAMES[index]} falls behind`)
      }
    }
    if (common.tick < bounds.ticks) {
      const tick = common.tick + 1
      next.set(state)
      next[0] = later(state[0] as number, 0)
      for (let node = 0; node < NODES; node += 1) next[PLACES + node] = aged(placeAt(state, node), tick)
      for (let index = 0; index < 2; index += 1) next[CLIENTS + index] = agedClient(clientAt(state, index), tick)
      visit(next, () => `a second passes: ${tick}`)
    }
  }

  const first = new Int32Array(WIDTH)
  first[0] = commons.id({ tick: 0, restarts: 0, failovers: 0, hasDrifted: false, largest: 0, fault: undefined })
  bounds.nodesAheadMs.forEach((aheadMs, node) => {
    const node0 = {
      ...EMPTY_NODE,
      voter: { sinceMs: START_MS - 100 * times.longestMs, longestMs: times.longestMs, runId: runIdOf(0) },
    }
    first[PLACES + node] = places.id({
      node: node0,
      copy: undefined,
      runs: 0,
      aheadMs,
      votes: [undefined, undefined],
      renewals: [undefined, undefined],
    })
  })
  for (let index = 0; index < 2; index += 1) first[CLIENTS + index] = clients.id(newClient(index))

  return {
    first,
    forEachNext(state, visitAll) {
      const common = commons.at(state[0] as number)
      if (common.fault !== undefined) return
      const visit: Visit = (after, label) => {
        if (bounds.simplifies) simplify(after)
        visitAll(after, label)
      }
      forEachClientStep(state, common.tick, visit)
      forEachArrival(state, common.tick, visit)
      forEachFault(state, common, visit)
    },
    common: (state) => commons.at(state[0] as number),
    numbers: (state) => ({
      places: state.subarray(PLACES, CLIENTS),
      clients: state.subarray(CLIENTS),
      tick: commons.at(state[0] as number).tick,
    }),
    place: (number) => places.at(number),
    client: (number) => clients.at(number),
  }
}

/** Nodes are interchangeable: the same places in another order are the same state. */
export function canonical(state: Int32Array): Int32Array {
  order(state, PLACES, PLACES + 1)
  order(state, PLACES + 1, PLACES + 2)
  order(state, PLACES, PLACES + 1)
  return state
}

function order(state: Int32Array, low: number, high: number): void {
  const [one, other] = [state[low] as number, state[high] as number]
  if (one <= other) return
  state[low] = other
  state[high] = one
}

interface NumberedStep extends Omit<ClientStep, 'client'> {
  readonly client: number
}

interface Request extends LeaseId {
  readonly kind: 'proposal' | 'release' | 'renewal' | 'repair'
  readonly client: number
  /** The client still counts the answer. */
  readonly counts: boolean
}

function requestsOf(from: ClientState): Request[] {
  const { index: client, ballot, phase, renewingMs, proposed, released, renewed, repaired } = from
  const current = phase === 'voting' ? ballot?.tokens.at(-1) : undefined
  const last = proposed.at(-1)?.claimId
  const isCurrent = ({ token, claimId }: LeaseId) => token === current && claimId === last
  return [
    ...proposed.map((each) => ({ ...each, kind: 'proposal' as const, client, counts: isCurrent(each) })),
    ...released.map((each) => ({ ...each, kind: 'release' as const, client, counts: false })),
    ...renewed.map((each, at) => {
      const counts = renewingMs !== undefined && at === renewed.length - 1
      return { ...each, kind: 'renewal' as const, client, counts }
    }),
    ...repaired.map((each) => ({ ...each, kind: 'repair' as const, client, counts: false })),
  ]
}

/** What can follow when a request arrives at a node. `vote`: an answer that comes after the decision. */
function arrivals(
  rules: Rules,
  { ttlMs, longestMs, maxAheadUs }: Times,
  place: Place,
  { kind, client, counts, ...lease }: Request,
  tick: number,
): readonly { readonly place: Place; readonly vote?: Vote }[] {
  const nowMs = timeOf(tick) + place.aheadMs
  if (kind === 'release') return [{ place: { ...place, node: rules.release(place.node, nowMs, lease).node } }]
  if (kind === 'renewal') {
    const { node, isRenewed } = rules.renew(place.node, nowMs, { ...lease, ttlMs })
    const after = { ...place, node }
    if (!counts) return [{ place: after }]
    // A request that arrives twice has one answer, and either may be the one that is received.
    const answered = { ...after, renewals: replaced(place.renewals, client, isRenewed) }
    return place.renewals[client] === undefined ? [{ place: answered }] : [{ place: after }, { place: answered }]
  }
  const server: NodeServer = { nowUs: nowMs * 1_000, runId: runIdOf(place.runs) }
  if (kind === 'repair') {
    return [{ place: { ...place, node: rules.repair(place.node, server, { ...lease, ttlMs, longestMs }).node } }]
  }
  const proposal = { ...lease, ttlMs, maxAheadUs, longestMs }
  const { node, reply } = rules.vote(place.node, server, proposal)
  const after = { ...place, node }
  // Silence is a failure of the node, and any node may seem to fail at any time.
  if ('silentMs' in reply) return [{ place: after }]
  if (!counts) return [{ place: after, vote: reply }]
  const answered = { ...after, votes: replaced(place.votes, client, reply) }
  return place.votes[client] === undefined ? [{ place: answered }] : [{ place: after }, { place: answered }]
}

function replaced<T>(pair: readonly [T, T], at: number, value: T): readonly [T, T] {
  return at === 0 ? [value, pair[1]] : [pair[0], value]
}

/** The server that has the copy takes over, by its own clock. */
function failovers({ copy, ...place }: Place, clocksMs: readonly number[], tick: number): readonly Place[] {
  if (copy === undefined) return []
  return [place.aheadMs, ...clocksMs].map((aheadMs) => {
    const node = alive(copy, timeOf(tick) + aheadMs)
    return { ...place, node, copy: undefined, runs: place.runs + 1, aheadMs }
  })
}

/** Not forward while the node is silent, which ends its silence, nor while it has a lease, which ends that. */
function clockSetRight(place: Place, tick: number): Place {
  const { node, runs, aheadMs } = place
  const isFree = isVoting(node, timeOf(tick) + aheadMs, runIdOf(runs)) && node.lease === undefined
  return aheadMs > 0 || isFree ? { ...place, aheadMs: 0 } : place
}

const without = (place: Place, kind: 'votes' | 'renewals', client: number): Place => ({
  ...place,
  [kind]: replaced<unknown>(place[kind], client, undefined),
})

function distinct(steps: readonly NumberedStep[]): readonly NumberedStep[] {
  const seen = new Set<string>()
  return steps.filter(({ client, granted }) => {
    const key = `${client} ${granted}`
    return !seen.has(key) && seen.add(key)
  })
}

function fallen(largest: number, granted: number, isRepeat: boolean): string | undefined {
  if (granted > largest || (isRepeat && granted === largest)) return undefined
  return `a grant has ${shown(granted)}, after a grant with ${shown(largest)}`
}

const told = ({ kind, claimId, token }: Request): string => `the ${kind} of ${claimId} with ${shown(token)}`

function served({ node, aheadMs }: Place): string {
  const lease = node.lease === undefined ? 'free' : `leased to ${node.lease.claimId}`
  return `${lease}${aheadMs === 0 ? '' : `, its clock ${aheadMs} ms ahead`}`
}

function said({ node, votes, renewals }: Place, client: number): string {
  const lease = node.lease === undefined ? 'free' : `leased to ${node.lease.claimId}`
  const vote = votes[client]
  const answer = vote === undefined ? '' : `, answers ${'granted' in vote ? (vote.granted ? 'yes' : 'no') : 'outbid'}`
  return `${lease}${answer}${renewals[client] === undefined ? '' : `, renewed: ${renewals[client]}`}`
}

function unpackedLeases(detail: number): [number, number, number, number] {
  const three = Math.floor(detail / LEASES)
  const two = Math.floor(three / LEASES)
  return [detail % LEASES, three % LEASES, two % LEASES, Math.floor(two / LEASES)]
}

/** A restarted node does not vote before its grace period has ended, and then only above its least mark. */
function refusedBy({ node, aheadMs }: Place, nowMs: number, { longestMs }: Times, clocksMs: readonly number[]): number {
  const leastMark = ((node.voter?.sinceMs ?? nowMs + aheadMs) + longestMs / 2) * 1_000
  const lowestMs = nowMs + Math.min(aheadMs, ...clocksMs)
  return Math.min(Math.max(node.mark, leastMark), (lowestMs + longestMs / 2) * 1_000)
}

function sorted(one: number, two: number, three: number): readonly [number, number, number] {
  const [low, high] = one < two ? [one, two] : [two, one]
  if (three >= high) return [low, high, three]
  return three < low ? [three, low, high] : [low, three, high]
}

function unpacked(detail: number): [number, number, number, number] {
  const three = Math.floor(detail / TICKS)
  const two = Math.floor(three / ANSWERS)
  return [detail % TICKS, three % ANSWERS, two % ANSWERS, Math.floor(two / ANSWERS)]
}

/** More than a run has. */
const TICKS = 16
const ANSWERS = 2 ** 15
const LEASES = 2 ** 12
const NAMES = ['client A', 'client B']
