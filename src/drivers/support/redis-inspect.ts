import { checkInspectQuery } from '../../core/arguments.ts'
import type { InspectPage, InspectQuery, LeaseRecord, WaiterRecord } from '../../core/driver.ts'
import { InvalidArgumentError } from '../../core/errors.ts'
import type { RedisConnection, RedisNode } from './redis-connection.ts'
import { isOurs, readLease, readWaiter } from './redis-format.ts'
import { isOwnKey, lockKeys, plainOfData, slotOf } from './redis-keys.ts'
import { protocolScript, runScript, scriptCall } from './redis-scripts.ts'

/** Leases and waiters in pages. It walks the key space with SCAN, node after node, so it never holds a server up. */
export async function inspect(connection: RedisConnection, prefix: string, query: InspectQuery): Promise<InspectPage> {
  const { lockName, prefix: wanted, after, pageSize } = checkInspectQuery(query)
  if (lockName !== undefined) {
    if (!lockName.startsWith(wanted) || isOwnKey(prefix + lockName)) return { leases: [], waiters: [] }
    return show(connection, prefix, [lockName])
  }
  const walk = after === undefined ? { ...START } : readCursor(after)
  const nodes = (await connection.nodes()).toSorted((x, y) => (x.id < y.id ? -1 : 1))
  let names = walk.rest
  for (let steps = 0; names.length < pageSize && !walk.over && steps < MOST_STEPS; steps += 1) {
    names = [...new Set([...names, ...(await step(nodes, walk, prefix, wanted))])]
  }
  const page = await show(connection, prefix, names.slice(0, pageSize))
  const rest = names.slice(pageSize)
  return rest.length === 0 && walk.over ? page : { ...page, next: writeCursor({ ...walk, rest }) }
}

/** Where a walk stands. Names that were found but did not fit on the page travel in it. */
interface Walk {
  /** Plain keys first, then the data of locks that have no plain key: only waiters, for a moment. */
  phase: 'plain' | 'data'
  node: string
  cursor: string
  over: boolean
  rest: string[]
}

const START: Walk = { phase: 'plain', node: '', cursor: '0', over: false, rest: [] }

/** One SCAN, and the walk moved on. */
async function step(nodes: readonly RedisNode[], walk: Walk, prefix: string, wanted: string): Promise<string[]> {
  const node = nodes.find(({ id }) => id >= walk.node)
  if (node === undefined) {
    walk.over = walk.phase === 'data'
    Object.assign(walk, { phase: 'data', node: '', cursor: '0' })
    return []
  }
  if (node.id !== walk.node) Object.assign(walk, { node: node.id, cursor: '0' })
  const match = walk.phase === 'plain' ? `${escaped(prefix + wanted)}*` : 'holdfast:{*:d*'
  const reply = await node.command(['SCAN', walk.cursor, 'MATCH', match, 'COUNT', `${SCAN_COUNT}`])
  const [cursor, keys] = reply as [string, string[]]
  walk.cursor = `${cursor}`
  // The smallest text that comes after this node's.
  if (walk.cursor === '0') walk.node = `${node.id}\0`
  const plains = walk.phase === 'plain' ? keys : await withoutPlain(node, keys)
  return plains
    .filter((plain) => plain.startsWith(prefix + wanted) && !isOwnKey(plain))
    .map((plain) => plain.slice(prefix.length))
}

/** A lock whose plain key exists has been shown already. */
async function withoutPlain(node: RedisNode, keys: readonly string[]): Promise<string[]> {
  const plains = keys.map(plainOfData).filter((plain) => plain !== undefined)
  const exist = await Promise.all(plains.map((plain) => node.command(['EXISTS', plain])))
  return plains.filter((_, index) => Number(exist[index]) === 0)
}

export async function show(
  connection: RedisConnection,
  prefix: string,
  names: readonly string[],
): Promise<InspectPage> {
  const leases: LeaseRecord[][] = []
  const waiters: WaiterRecord[][] = []
  const bySlot = new Map<number, [number, string][]>()
  for (const [index, name] of names.entries()) {
    const slot = connection.cluster ? slotOf(prefix + name) : 0
    bySlot.set(slot, [...(bySlot.get(slot) ?? []), [index, name]])
  }
  await Promise.all(
    [...bySlot.values()].map(async (entries) => {
      const keys = entries.map(([, name]) => lockKeys(prefix, name))
      const all = [
        ...keys.map(({ plain }) => plain),
        ...keys.map(({ data }) => data),
        ...keys.map(({ order }) => order),
      ]
      const call = scriptCall(all, [`${entries.length}`])
      const shown = await runScript(connection, protocolScript('inspect.lua'), call)
      ;(shown as Shown[]).forEach((each, at) => {
        const [index, name] = entries[at] as [number, string]
        leases[index] = leasesIn(name, each, prefix)
        waiters[index] = pairs(each[3]).map(([id, text]) => readWaiter(name, id, text))
      })
    }),
  )
  return { leases: leases.flat(), waiters: waiters.flat() }
}

/** Plain text, its end, shared leases and their ends, waiters' ids and texts. */
type Shown = [string, number, string[], string[]]

function leasesIn(lockName: string, [plain, end, shared]: Shown, prefix: string): LeaseRecord[] {
  const endMs = Number(end)
  const leases = pairs(shared).map(([text, each]) => readLease(lockName, text, Number(each)))
  if (endMs === -2 || plain === SHARED) return leases
  // Without a prefix every string of the database would look like somebody's lock.
  if (prefix === '' && !isOurs(plain)) return leases
  return [readLease(lockName, plain, endMs), ...leases]
}

const pairs = (flat: readonly string[]): [string, string][] =>
  Array.from({ length: flat.length / 2 }, (_, at) => [flat[2 * at] as string, flat[2 * at + 1] as string])

const escaped = (text: string): string => text.replace(/[\\*?[\]^]/g, '\\$&')

const writeCursor = (walk: Walk): string => Buffer.from(JSON.stringify(walk)).toString('base64url')

function readCursor(after: string): Walk {
  try {
    const walk = JSON.parse(Buffer.from(after, 'base64url').toString()) as Walk
    if (typeof walk.cursor === 'string' && Array.isArray(walk.rest)) return walk
  } catch {
    // Said below.
  }
  throw new InvalidArgumentError('after', after, '`next` of the page before')
}

const SHARED = 'holdfast:shared'
const SCAN_COUNT = 250
/** How many SCANs one page may cost: a page of a large database may come back short, and says where to go on. */
const MOST_STEPS = 40
