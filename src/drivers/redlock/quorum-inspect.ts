import { checkInspectQuery } from '../../core/arguments.ts'
import type { InspectPage, InspectQuery, LeaseRecord } from '../../core/driver.ts'
import { InvalidArgumentError } from '../../core/errors.ts'
import type { RedisDriver } from '../redis/driver.ts'
import { agreedRecord } from './ballots.ts'
import { type NodeError, poll, quorumError } from './quorum.ts'

export interface QuorumParts {
  readonly nodes: readonly RedisDriver[]
  readonly names: readonly string[]
  readonly quorum: number
  readonly timeoutMs: number
  failed(failure: NodeError): void
}

/**
 * Leases that a quorum of nodes has. Names are found by walking node after node; a lease that a quorum has is on one of
 * the first n − quorum + 1 nodes, so the rest need not be walked.
 */
export async function inspectByQuorum(parts: QuorumParts, query: InspectQuery): Promise<InspectPage> {
  const { lockName, prefix, after, pageSize } = checkInspectQuery(query)
  if (lockName !== undefined) return { leases: await agreedLeases(parts, [lockName], 0), waiters: [] }
  const walk: Walk = after === undefined ? { at: 0 } : readCursor(after)
  const lastNode = parts.nodes.length - parts.quorum
  const node = parts.nodes[walk.at]
  if (node === undefined) throw notOurs(after)
  const page = await node
    .inspect({ prefix, pageSize, ...(walk.after !== undefined && { after: walk.after }) })
    // What a node that is down would have shown is on another one, too, unless more are down than may be.
    .catch((error: Error): InspectPage => {
      parts.failed({ node: parts.names[walk.at] as string, error })
      return { leases: [], waiters: [] }
    })
  // A lock with many leases goes on on the node's next page, and all of it was shown with the first.
  const found = [...new Set(page.leases.map((lease) => lease.lockName))].filter((name) => name !== walk.last)
  const leases = found.length === 0 ? [] : await agreedLeases(parts, found, walk.at)
  const last = page.leases.at(-1)?.lockName ?? walk.last
  if (page.next !== undefined) {
    const next = writeCursor({ at: walk.at, after: page.next, ...(last !== undefined && { last }) })
    return { leases, waiters: [], next }
  }
  return { leases, waiters: [], ...(walk.at < lastNode && { next: writeCursor({ at: walk.at + 1 }) }) }
}

/** Where a walk stands. */
interface Walk {
  /** The node that is walked. */
  readonly at: number
  /** `next` of its last page. */
  readonly after?: string
  /** The last lock of that page. */
  readonly last?: string
}

/** `walked`: leases that are on one of the first so many nodes have been shown already. */
async function agreedLeases(parts: QuorumParts, lockNames: readonly string[], walked: number): Promise<LeaseRecord[]> {
  const { nodes, quorum } = parts
  const seen = new Map<string, { records: LeaseRecord[]; first: number }>()
  const failed: NodeError[] = []
  // Waits for every node, within its time: an answer that depends on which of them was first would differ from look to
  // look.
  await poll<RedisDriver, true, true>({
    ...parts,
    entries: 1,
    async call(node) {
      const { leases } = await node.show(lockNames)
      for (const lease of leases) {
        const key = JSON.stringify([lease.lockName, lease.claimId, lease.fencingToken])
        const known = seen.get(key) ?? { records: [], first: nodes.length }
        known.records.push(agreedRecord(lease))
        known.first = Math.min(known.first, nodes.indexOf(node))
        seen.set(key, known)
      }
      return [true]
    },
    decide({ errors, pending }) {
      if (pending > 0) return undefined
      failed.push(...errors)
      return true
    },
  })
  if (failed.length > nodes.length - quorum) throw quorumError('inspect', quorum, nodes.length, failed)
  const agreed = [...seen.values()].filter(({ records, first }) => records.length >= quorum && first >= walked)
  // It ends when fewer than a quorum have it.
  return agreed.map(
    ({ records }) => records.toSorted((x, y) => (y.expiresAtMs ?? 0) - (x.expiresAtMs ?? 0))[quorum - 1] as LeaseRecord,
  )
}

const writeCursor = (walk: Walk): string => Buffer.from(JSON.stringify(walk)).toString('base64url')

function readCursor(text: string): Walk {
  try {
    const walk = JSON.parse(Buffer.from(text, 'base64url').toString()) as Walk
    if (Number.isInteger(walk.at)) return walk
  } catch {
    // Said below.
  }
  throw notOurs(text)
}

const notOurs = (after: string | undefined): InvalidArgumentError =>
  new InvalidArgumentError('after', after, '`next` of the page before')
