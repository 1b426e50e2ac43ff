import { type Ballot, MAX_ROUNDS, NEW_PROPOSER, type Proposer, type Vote } from '../../src/drivers/redlock/ballot.ts'
import type { NodeError } from '../../src/drivers/redlock/quorum.ts'
import { type Bounds, NODES, type Times, timeOf } from './bounds.ts'
import type { LeaseId } from './node.ts'
import type { Rules } from './rules.ts'

/** One client: the driver's memory, and what the core believes. */
export interface ClientState {
  /** 0 or 1. */
  readonly index: number
  readonly proposer: Proposer
  /** How many rounds it has begun. */
  readonly rounds: number
  /** How many claims it has made. The id of the current one has this number. */
  readonly claims: number
  /** Of the current claim. */
  readonly ballot: Ballot | undefined
  readonly phase: 'idle' | 'voting' | 'held'
  readonly round: number
  /** By its own clock: when the call began. */
  readonly sentMs: number
  /** Until when it trusts its lease. */
  readonly deadlineMs: number
  readonly renewals: number
  /** When the renewal in flight was sent. */
  readonly renewingMs: number | undefined
  /** How far its clock has fallen behind. */
  readonly behindMs: number
  /** Everything it has ever sent. All of it may arrive at any time, any number of times, or never. */
  readonly proposed: readonly LeaseId[]
  readonly released: readonly LeaseId[]
  readonly renewed: readonly LeaseId[]
  readonly repaired: readonly LeaseId[]
}

export const newClient = (index: number): ClientState => ({
  index,
  proposer: NEW_PROPOSER,
  rounds: 0,
  claims: 0,
  ballot: undefined,
  phase: 'idle',
  round: 0,
  sentMs: 0,
  deadlineMs: 0,
  renewals: 0,
  renewingMs: undefined,
  behindMs: 0,
  proposed: [],
  released: [],
  renewed: [],
  repaired: [],
})

/** A step that the client can take, and what it is in a sentence. */
export interface ClientStep {
  readonly label: string
  readonly client: ClientState
  /** A round or a renewal begins or ends: its answers that are still on their way count no more. */
  readonly forgets: 'votes' | 'renewals' | 'nothing'
  readonly granted?: number
}

export interface ClientParts {
  readonly bounds: Bounds
  readonly rules: Rules
  readonly quorum: number
  readonly times: Times
}

/** All steps of a client that do not depend on the nodes. */
export function ownSteps(parts: ClientParts, client: ClientState, tick: number): ClientStep[] {
  const { bounds } = parts
  const steps: ClientStep[] = []
  const { ballot, phase } = client
  const mayAsk = client.rounds < (bounds.proposals[client.index] as number)
  if (phase === 'idle' && mayAsk) {
    if (ballot !== undefined) steps.push(ask(parts, client, tick, 'asks again'))
    steps.push(ask(parts, finish(client), tick, 'acquires'))
  }
  if (phase === 'voting' && bounds.withdraws) {
    const over = { ...releasing(client, (ballot as Ballot).tokens), ballot: ended(ballot as Ballot) }
    if (ballot?.state === 'open') steps.push({ label: 'withdraws its claim', client: over, forgets: 'nothing' })
    if (mayAsk) steps.push(ask(parts, over, tick, 'asks again before the vote has ended'))
  }
  if (phase === 'held') {
    const { tokens } = ballot as Ballot
    const over = finish(client)
    steps.push({ label: `releases ${shown(tokens.at(-1))}`, client: { ...over, phase: 'idle' }, forgets: 'renewals' })
    if (client.renewals < (bounds.renewals[client.index] as number) && client.renewingMs === undefined) {
      const own = { claimId: claimId(client.index, client.claims), token: tokens.at(-1) as number }
      const renewing = {
        ...client,
        renewals: client.renewals + 1,
        renewingMs: clockOf(client, tick),
        renewed: including(client.renewed, [own]),
      }
      steps.push({ label: `renews ${shown(own.token)}`, client: renewing, forgets: 'renewals' })
    }
  }
  return steps
}

/** Every way in which a vote can be decided by these answers, while others are late or lost. */
export function decisions(
  parts: ClientParts,
  client: ClientState,
  tick: number,
  answers: readonly (Vote | undefined)[],
): ClientStep[] {
  const { rules, quorum } = parts
  const ballot = client.ballot as Ballot
  const steps: ClientStep[] = []
  const isLast = client.round === MAX_ROUNDS || client.rounds === parts.bounds.proposals[client.index]
  const seen = new Set<number>()
  // A vote is decided when the answer arrives that decides it. So only what follows an undecided vote is tried.
  const visit = (counted: readonly Counted[]): void => {
    const key = counted.reduce((sum, each) => sum * 3 + COUNTED.indexOf(each), 0)
    if (seen.has(key)) return
    seen.add(key)
    const votes = {
      answers: answers.filter((_, node) => counted[node] === 'answer') as Vote[],
      errors: counted.filter((each) => each === 'error').map(() => LATE),
      pending: counted.filter((each) => each === 'pending').length,
    }
    const decided = rules.decide(
      { quorum, maxAheadUs: parts.times.maxAheadUs },
      client.proposer,
      wallUs(parts, client, tick),
      votes,
      ballot,
    )
    if (decided.outcome !== undefined) {
      const next = { ...client, proposer: decided.proposer }
      const conclusion = rules.conclude(ballot, decided.outcome, isLast)
      steps.push(concluded(parts, next, tick, conclusion))
      return
    }
    for (let node = 0; node < NODES; node += 1) {
      if (counted[node] !== 'pending') continue
      for (const as of ['answer', 'error'] as const) {
        if (as === 'error' || answers[node] !== undefined) visit(counted.with(node, as))
      }
    }
  }
  visit(['pending', 'pending', 'pending'])
  return steps
}

/** Every way in which a renewal can be decided. */
export function renewalSteps(
  parts: ClientParts,
  client: ClientState,
  tick: number,
  answers: readonly (boolean | undefined)[],
): ClientStep[] {
  const { rules, quorum } = parts
  const known = answers.filter((answer) => answer !== undefined)
  const steps: ClientStep[] = []
  for (const wanted of ['yes', 'no'] as const) {
    const counted = known.filter((answer) => answer === (wanted === 'yes'))
    const votes = { answers: counted, errors: [], pending: NODES - counted.length }
    if (rules.countYes(quorum, votes, (answer) => answer) !== wanted) continue
    const deadlineMs = rules.trustedUntilMs(client.renewingMs as number, parts.times.ttlMs)
    const settled = { ...client, renewingMs: undefined }
    if (wanted === 'yes' && rules.isInTime(deadlineMs, clockOf(client, tick))) {
      const renewed = repairing(parts.bounds, { ...settled, deadlineMs })
      steps.push({ label: 'has renewed its lease', client: renewed, forgets: 'renewals' })
    } else if (wanted === 'no') {
      const lost = { ...finish(settled), phase: 'idle' as const }
      steps.push({ label: 'learns that its lease was lost', client: lost, forgets: 'renewals' })
    }
  }
  return steps
}

/** A vote that arrived after the decision. */
export const learned = (parts: ClientParts, client: ClientState, tick: number, vote: Vote): ClientState => ({
  ...client,
  proposer: parts.rules.learn(
    { quorum: parts.quorum, maxAheadUs: parts.times.maxAheadUs },
    client.proposer,
    wallUs(parts, client, tick),
    vote,
  ),
})

/** A lease that the client does not trust any more is over. Its release is sent nevertheless. */
export function atTick(bounds: Bounds, client: ClientState, tick: number): ClientState {
  if (client.phase !== 'held' || clockOf(client, tick) < client.deadlineMs) return client
  // A renewal that is in flight may still be confirmed before the release is sent.
  const last = client.renewingMs === undefined ? client : repairing(bounds, client)
  return { ...finish(last), phase: 'idle' }
}

/** The driver sends a repair only to nodes that lack the lease. Here it may arrive at any node, and at any time. */
function repairing(bounds: Bounds, client: ClientState): ClientState {
  if (!bounds.repairs) return client
  const own = { claimId: claimId(client.index, client.claims), token: client.ballot?.tokens.at(-1) as number }
  return { ...client, repaired: including(client.repaired, [own]) }
}

export const clockOf = ({ behindMs }: ClientState, tick: number): number => timeOf(tick) - behindMs

export const claimId = (client: number, claims: number): string => `${'AB'[client]}${claims}`

/**
 * Without what cannot matter any more: the memory of a client that proposes nothing more, and requests that no node can
 * grant or end. A request is of no use if every node refuses its token, now and after a restart, and none has its
 * lease, or may get it back with an older state. A repair always matters, and so does the release of what it writes. It
 * does all that a proposal or a renewal of the same lease could do.
 */
export function pruned(client: ClientState, most: number, refused: number, leases: readonly LeaseId[]): ClientState {
  const current = client.phase === 'idle' ? undefined : client.ballot?.tokens.at(-1)
  const isUseful = ({ claimId, token }: LeaseId): boolean =>
    token > refused || token === current || leases.some((lease) => isSame(lease, { claimId, token }))
  const { proposed, released, renewed, repaired } = client
  const mayEnd = (lease: LeaseId): boolean => isUseful(lease) || repaired.some((each) => isSame(each, lease))
  const less = {
    ...client,
    proposed: proposed.filter(isUseful),
    released: released.filter(mayEnd),
    renewed: renewed.filter(isUseful),
  }
  if (client.phase !== 'idle' || client.rounds < most) return less
  const { released: rest, ...over } = finish(less)
  return { ...over, released: rest.filter(mayEnd), proposer: NEW_PROPOSER, claims: 0, behindMs: 0 }
}

/** A token in a readable form: the tick of its clock, and what was added. */
export const shown = (token: number | undefined): string =>
  token === undefined ? '?' : `token ${(token / 1_000_000 - timeOf(0) / 1_000).toFixed(6)}`

function ask(parts: ClientParts, client: ClientState, tick: number, verb: string): ClientStep {
  const isNew = client.ballot === undefined
  const sentMs = clockOf(client, tick)
  const begun = {
    ...client,
    claims: client.claims + (isNew ? 1 : 0),
    ballot: parts.rules.begin(client.ballot),
    phase: 'voting' as const,
    round: 1,
    sentMs,
  }
  return propose(parts, begun, tick, verb)
}

function propose(parts: ClientParts, client: ClientState, tick: number, verb: string): ClientStep {
  const ballot = client.ballot as Ballot
  const { proposer, tokens } = parts.rules.propose(client.proposer, wallUs(parts, client, tick), [ballot])
  const token = tokens[0]?.at(-1) as number
  const own = { claimId: claimId(client.index, client.claims), token }
  const next = {
    ...client,
    proposer,
    rounds: client.rounds + 1,
    ballot: { ...ballot, tokens: tokens[0] as readonly number[] },
    proposed: including(client.proposed, [own]),
  }
  return { label: `${verb} as ${own.claimId}, and proposes ${shown(token)}`, client: next, forgets: 'votes' }
}

function concluded(
  parts: ClientParts,
  client: ClientState,
  tick: number,
  conclusion: ReturnType<Rules['conclude']>,
): ClientStep {
  const { rules, times } = parts
  const ballot = client.ballot as Ballot
  const nowMs = clockOf(client, tick)
  if (conclusion.kind === 'again') {
    const outbid = { ...client, round: client.round + 1, ballot: { ...ballot, isRepeat: false, mark: conclusion.mark } }
    return propose(parts, outbid, tick, `is outbid by ${shown(conclusion.mark)}, tries again`)
  }
  const after = { ...releasing(client, conclusion.release), phase: 'idle' as const, round: 0, sentMs: 0 }
  if (conclusion.kind === 'granted') {
    const { token } = conclusion
    const held = {
      ...after,
      ballot: { ...ballot, state: 'granted' as const, isRepeat: false, mark: 0, tokens: [token] },
    }
    const deadlineMs = rules.trustedUntilMs(client.sentMs, times.ttlMs)
    if (!rules.isInTime(deadlineMs, nowMs)) {
      return { label: `gets ${shown(token)} too late`, client: held, forgets: 'votes' }
    }
    const holds = { ...held, phase: 'held' as const, deadlineMs, renewals: 0, renewingMs: undefined }
    return { label: `holds ${shown(token)}`, client: holds, forgets: 'votes', granted: token }
  }
  if (conclusion.kind === 'kept') {
    const kept = { ...after, ballot: { ...ballot, state: 'granted' as const, isRepeat: false, mark: 0 } }
    return { label: 'cannot reach a quorum', client: kept, forgets: 'votes' }
  }
  return { label: `gets no lock (${conclusion.kind})`, client: { ...after, ballot: OVER }, forgets: 'votes' }
}

/** Its vote goes on: the client has to ignore it. */
const ended = (ballot: Ballot): Ballot => ({ ...ballot, state: 'over', isRepeat: false, mark: 0 })
const OVER: Ballot = { tokens: [], state: 'over', isRepeat: false, mark: 0 }

/** The claim is over: what it may have is released. */
function finish(client: ClientState): ClientState {
  const released = client.ballot === undefined ? client : releasing(client, client.ballot.tokens)
  return { ...released, ballot: undefined, sentMs: 0, deadlineMs: 0, renewals: 0, renewingMs: undefined, round: 0 }
}

function releasing(client: ClientState, tokens: readonly number[]): ClientState {
  const own = tokens.map((token) => ({ claimId: claimId(client.index, client.claims), token }))
  return { ...client, released: including(client.released, own) }
}

function including(all: readonly LeaseId[], more: readonly LeaseId[]): readonly LeaseId[] {
  const fresh = more.filter((each) => !all.some((known) => isSame(known, each)))
  return fresh.length === 0 ? all : [...all, ...fresh]
}

const isSame = (one: LeaseId, other: LeaseId): boolean => one.claimId === other.claimId && one.token === other.token

const wallUs = ({ bounds }: ClientParts, { index }: ClientState, tick: number): number =>
  (timeOf(tick) + (bounds.clientsAheadMs[index] as number)) * 1_000

type Counted = 'pending' | 'answer' | 'error'
const COUNTED: readonly Counted[] = ['pending', 'answer', 'error']
const LATE: NodeError = { node: 'a node', error: new Error('no answer in time') }
