import type { TokenRefusal } from '../../src/drivers/redis/format.ts'
import type { Vote } from '../../src/drivers/redlock/ballot.ts'

/**
 * What a node decides about one exclusive lock, as pure functions: the same as `ballot.lua` and `leases.lua`.
 * `test/chaos/model-node.test.ts` compares the two on a real server, in random histories.
 */
export interface NodeState {
  /** The largest token that it has granted, or the least that it may have forgotten. 0: none. */
  readonly mark: number
  readonly lease: NodeLease | undefined
  readonly voter: Voter | undefined
}

export interface NodeLease {
  readonly claimId: string
  readonly token: number
  readonly acquiredAtMs: number
  readonly endMs: number
}

/** What the key `holdfast:voter` contains. */
export interface Voter {
  readonly sinceMs: number
  readonly longestMs: number
  readonly runId: string
}

/** The server that runs the script. */
export interface NodeServer {
  readonly nowUs: number
  readonly runId: string
}

export interface Proposal {
  readonly claimId: string
  readonly token: number
  readonly ttlMs: number
  readonly maxAheadUs: number
  readonly longestMs: number
}

/** Its leases may be forgotten: it does not vote for this long. */
export interface Silence {
  readonly silentMs: number
}

export const EMPTY_NODE: NodeState = { mark: 0, lease: undefined, voter: undefined }

export interface Voted {
  readonly node: NodeState
  readonly reply: Vote | Silence
}

/** A proposal: first the guard of `ballot.lua`, then `acquire` of `leases.lua`. */
export function vote(node: NodeState, server: NodeServer, proposal: Proposal): Voted {
  const { node: awake, nowMs, silentMs } = guard(node, server, proposal)
  if (silentMs > 0) return { node: awake, reply: { silentMs } }
  const { lease, mark } = awake
  const { claimId, token, ttlMs } = proposal
  const isOwn = lease?.claimId === claimId
  if (isOwn && lease.token === token) return kept(awake, lease, nowMs, ttlMs)
  if (lease !== undefined && !isOwn) return { node: awake, reply: { granted: false, answeredAtMs: nowMs } }
  const refused = refusedToken(mark, server.nowUs, proposal)
  if (refused !== undefined) return { node: awake, reply: refused }
  return written({ ...awake, mark: token }, nowMs, proposal)
}

export type Repair = Omit<Proposal, 'maxAheadUs'>

/** A proposal with mostAheadUs = -1: a lease that a quorum has renewed, and that this node may lack. */
export function repair(node: NodeState, server: NodeServer, proposal: Repair): Voted {
  const { node: awake, nowMs, silentMs } = guard(node, server, proposal)
  if (silentMs > 0) return { node: awake, reply: { silentMs } }
  const { lease, mark } = awake
  const { claimId, token, ttlMs } = proposal
  if (lease === undefined) return written({ ...awake, mark: Math.max(mark, token) }, nowMs, proposal)
  if (lease.claimId !== claimId) return { node: awake, reply: { granted: false, answeredAtMs: nowMs } }
  if (lease.token !== token) return { node: awake, reply: { tokenRefused: true, mark, nowMs } }
  return kept(awake, lease, nowMs, ttlMs)
}

export interface LeaseId {
  readonly claimId: string
  readonly token: number
}

export function renew(
  node: NodeState,
  nowMs: number,
  { claimId, token, ttlMs }: LeaseId & { readonly ttlMs: number },
): { readonly node: NodeState; readonly isRenewed: boolean } {
  const { lease } = alive(node, nowMs)
  if (lease?.claimId !== claimId || lease.token !== token) return { node, isRenewed: false }
  return { node: { ...node, lease: { ...lease, endMs: nowMs + ttlMs } }, isRenewed: true }
}

export function release(
  node: NodeState,
  nowMs: number,
  { claimId, token }: LeaseId,
): { readonly node: NodeState; readonly isEnded: boolean } {
  const { lease } = alive(node, nowMs)
  if (lease?.claimId !== claimId || lease.token !== token) return { node, isEnded: false }
  return { node: { ...node, lease: undefined }, isEnded: true }
}

/** Without a lease that has ended. */
export const alive = (node: NodeState, nowMs: number): NodeState =>
  node.lease !== undefined && node.lease.endMs <= nowMs ? { ...node, lease: undefined } : node

/** How long the node does not vote. */
export const silenceOf = ({ sinceMs, longestMs }: Voter, nowMs: number): number => sinceMs + longestMs - nowMs

/** Whether the node would vote now. */
export const isVoting = ({ voter }: NodeState, nowMs: number, runId: string): boolean =>
  voter?.runId === runId && voter.sinceMs <= nowMs && silenceOf(voter, nowMs) <= 0

/** The highest token that the node can have forgotten: a quarter ahead of its clock, and a quarter for other clocks. */
const leastMark = ({ sinceMs, longestMs }: Voter): number => (sinceMs + longestMs / 2) * 1_000

/** The node as it is when it votes, or when it is silent. */
function guard(node: NodeState, server: NodeServer, { longestMs }: Pick<Proposal, 'longestMs'>) {
  const nowMs = Math.floor(server.nowUs / 1_000)
  const voter = voterNow(node.voter, server, longestMs)
  const silentMs = silenceOf(voter, nowMs)
  if (silentMs > 0) return { node: { ...node, voter }, nowMs, silentMs }
  return { node: { ...alive(node, nowMs), voter, mark: Math.max(node.mark, leastMark(voter)) }, nowMs, silentMs }
}

function kept(node: NodeState, lease: NodeLease, nowMs: number, ttlMs: number): Voted {
  return {
    node: { ...node, lease: { ...lease, endMs: nowMs + ttlMs } },
    reply: granted(lease.token, ttlMs, lease.acquiredAtMs),
  }
}

function written(node: NodeState, nowMs: number, { claimId, token, ttlMs }: Repair): Voted {
  const lease = { claimId, token, acquiredAtMs: nowMs, endMs: nowMs + ttlMs }
  return { node: { ...node, lease }, reply: granted(token, ttlMs, nowMs) }
}

/** A voter that this server did not write came with data that may be old. */
function voterNow(kept: Voter | undefined, { nowUs, runId }: NodeServer, longestMs: number): Voter {
  const nowMs = Math.floor(nowUs / 1_000)
  const sinceMs = kept?.runId === runId ? Math.min(kept.sinceMs, nowMs) : nowMs
  return { sinceMs, longestMs: Math.max(longestMs, kept?.longestMs ?? 0), runId }
}

function refusedToken(mark: number, nowUs: number, { token, maxAheadUs }: Proposal): TokenRefusal | undefined {
  const nowMs = Math.floor(nowUs / 1_000)
  if (token <= mark) return { tokenRefused: true, mark, nowMs }
  return token > Math.max(nowUs + maxAheadUs, mark + MOST_STEP) ? { tokenRefused: true, nowMs } : undefined
}

const granted = (fencingToken: number, ttlMs: number, acquiredAtMs: number): Vote => ({
  granted: true,
  fencingToken,
  ttlMs,
  acquiredAtMs,
})

/** How far above a mark that is ahead of the clock a token may be. */
const MOST_STEP = 10_000
