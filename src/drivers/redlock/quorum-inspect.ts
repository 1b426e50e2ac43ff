import { checkInspectQuery } from '../../core/arguments.ts'
import type { InspectPage, InspectQuery, LeaseRecord } from '../../core/driver.ts'
import type { RedlockNode } from '../redis/driver.ts'
import { readCursor, writeCursor } from '../redis/inspect.ts'
import { agreedRecord } from './ballot.ts'
import { askNodes, type NodeError, type Quorum, quorumError } from './quorum.ts'

/**
 * The leases that a quorum of nodes has. It finds the names by walking one node after the other. A lease that a quorum
 * has is on one of the first n − quorum + 1 nodes, so the rest need no walk.
 */
export async function inspectByQuorum(parts: Quorum, query: InspectQuery): Promise<InspectPage> {
  const { lockName, prefix, after, pageSize } = checkInspectQuery(query)
  if (lockName !== undefined) return { leases: await agreedLeases(parts, [lockName], 0), waiters: [] }
  const isWalk = ({ at }: Walk): boolean => Number.isInteger(at) && parts.nodes[at] !== undefined
  const walk: Walk = after === undefined ? { at: 0 } : readCursor(after, isWalk)
  const lastNode = parts.nodes.length - parts.quorum
  const page = await (parts.nodes[walk.at] as RedlockNode)
    .inspect({ prefix, pageSize, ...(walk.after !== undefined && { after: walk.after }) })
    // If this node is down, its leases are found on another node, unless too many are down.
    .catch((error: Error): InspectPage => {
      parts.failed({ node: parts.names[walk.at] as string, error })
      return { leases: [], waiters: [] }
    })
  // A lock with many leases continues on the next page of the node. All of it was returned with the first page.
  const found = [...new Set(page.leases.map((lease) => lease.lockName))].filter((name) => name !== walk.last)
  const leases = found.length === 0 ? [] : await agreedLeases(parts, found, walk.at)
  const last = page.leases.at(-1)?.lockName ?? walk.last
  if (page.next !== undefined) {
    const next = writeCursor({ at: walk.at, after: page.next, ...(last !== undefined && { last }) })
    return { leases, waiters: [], next }
  }
  return { leases, waiters: [], ...(walk.at < lastNode && { next: writeCursor({ at: walk.at + 1 }) }) }
}

/** The cursor of a walk. */
interface Walk {
  /** The index of the node. */
  readonly at: number
  /** `next` of the last page of the node. */
  readonly after?: string
  /** The last lock of that page. */
  readonly last?: string
}

/** `walked`: how many nodes were walked before. Their leases have been returned already. */
async function agreedLeases(parts: Quorum, lockNames: readonly string[], walked: number): Promise<LeaseRecord[]> {
  const { nodes, quorum } = parts
  const seen = new Map<string, { records: LeaseRecord[]; first: number }>()
  const failed: NodeError[] = []
  // Waits for every node until its timeout. If the first quorum decided, two calls could return different leases.
  await askNodes<true, true>(parts, {
    entries: 1,
    async call(node) {
      const { leases } = await node.inspectNames(lockNames)
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
  if (failed.length > nodes.length - quorum) throw quorumError(parts, 'inspect', failed)
  const agreed = [...seen.values()].filter(({ records, first }) => records.length >= quorum && first >= walked)
  // A lease ends when fewer than a quorum of nodes have it.
  return agreed.map(
    ({ records }) => records.toSorted((x, y) => (y.expiresAtMs ?? 0) - (x.expiresAtMs ?? 0))[quorum - 1] as LeaseRecord,
  )
}
