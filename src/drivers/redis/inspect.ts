import { checkInspectQuery } from '../../core/arguments.ts'
import type { InspectPage, InspectQuery, LeaseRecord, RatesPage, RatesQuery, WaiterRecord } from '../../core/driver.ts'
import { InvalidArgumentError } from '../../core/errors.ts'
import { limitFromId } from '../shared/consume-step.ts'
import { readProtocol } from '../shared/read-protocol.ts'
import type { RedisConnection, RedisNode } from './connection.ts'
import { isOurs, readLease, readWaiter, unexpectedReply } from './format.ts'
import { isOwnKey, keysOf, plainOfData, rateOfKey, slotOf } from './keys.ts'
import { protocolScript, runScript, scriptCall } from './scripts.ts'

const inspectScript = protocolScript(() => readProtocol('redis/inspect.lua'))

/**
 * Leases and waiters in pages. It walks the key space with SCAN, one node after the other, and reads a bounded number
 * of entries in one call, so it never blocks a server. A lock with more entries continues on the next page.
 */
export async function inspect(connection: RedisConnection, prefix: string, query: InspectQuery): Promise<InspectPage> {
  const { lockName, prefix: wanted, after, pageSize } = checkInspectQuery(query)
  const walk = after === undefined ? newWalk(lockName) : readCursor(after, isWalk)
  const isWanted = ([name]: Part): boolean => name.startsWith(wanted) && (lockName === undefined || name === lockName)
  const parts = new Map(walk.rest.filter(isWanted))
  if (!walk.over) {
    const nodes = await sortedNodes(connection)
    for (let steps = 0; parts.size < pageSize && !walk.over && steps < MAX_STEPS; steps += 1) {
      for (const name of await step(nodes, walk, prefix, wanted)) if (!parts.has(name)) parts.set(name, BEGINNING)
    }
  }
  const found = [...parts]
  // Without a prefix, every string in the database would look like a lock of another client. Such a key is shown only
  // if the query names it.
  const showsOthers = prefix !== '' || lockName !== undefined
  const { page, left } = await showPart(connection, prefix, found.slice(0, pageSize), showsOthers)
  const rest = [...left, ...found.slice(pageSize)]
  return rest.length === 0 && walk.over ? page : { ...page, next: writeCursor({ ...walk, rest }) }
}

/** A lock, and where to continue reading its entries. */
type Part = readonly [name: string, from: string]

const BEGINNING = ''

/** Where a walk over the key space is: at a node, and in its SCAN. */
interface Place {
  node: string
  cursor: string
}

/** The cursor of a walk. It carries the locks that were found but did not fit on the page. */
interface Walk extends Place {
  /** Plain keys first. Then the data of locks without a plain key: for a moment, these have only waiters. */
  phase: 'plain' | 'data'
  over: boolean
  readonly rest: readonly Part[]
}

const newWalk = (lockName: string | undefined): Walk => ({
  phase: 'plain',
  node: '',
  cursor: '0',
  over: lockName !== undefined,
  rest: lockName === undefined ? [] : [[lockName, BEGINNING]],
})

/** Runs one SCAN and advances the walk. */
async function step(nodes: readonly RedisNode[], walk: Walk, prefix: string, wanted: string): Promise<string[]> {
  const match = walk.phase === 'plain' ? `${escaped(prefix + wanted)}*` : 'holdfast:{*:d*'
  const scanned = await scan(nodes, walk, match)
  if (scanned === undefined) {
    walk.over = walk.phase === 'data'
    Object.assign(walk, { phase: 'data', node: '', cursor: '0' })
    return []
  }
  const { node, keys } = scanned
  const plains = walk.phase === 'plain' ? keys : await withoutPlain(node, keys)
  return plains
    .filter((plain) => plain.startsWith(prefix + wanted) && !isOwnKey(plain))
    .map((plain) => plain.slice(prefix.length))
}

/** Runs one SCAN and advances the place. Undefined behind the last node. */
async function scan(
  nodes: readonly RedisNode[],
  place: Place,
  match: string,
): Promise<{ node: RedisNode; keys: string[] } | undefined> {
  const node = nodes.find(({ id }) => id >= place.node)
  if (node === undefined) return undefined
  if (node.id !== place.node) Object.assign(place, { node: node.id, cursor: '0' })
  const reply = await node.command(['SCAN', place.cursor, 'MATCH', match, 'COUNT', SCAN_COUNT])
  const [cursor, keys] = (Array.isArray(reply) ? reply : []) as [string?, string[]?]
  if (!Array.isArray(keys) || !keys.every(isText)) throw unexpectedReply('SCAN', reply)
  place.cursor = `${cursor}`
  // The smallest text that sorts after the id of this node.
  if (place.cursor === '0') place.node = `${node.id}\0`
  return { node, keys }
}

const sortedNodes = async (connection: RedisConnection): Promise<RedisNode[]> =>
  (await connection.nodes()).toSorted((x, y) => (x.id < y.id ? -1 : 1))

/** A lock whose plain key exists was found in the first phase. */
async function withoutPlain(node: RedisNode, keys: readonly string[]): Promise<string[]> {
  const plains = keys.map(plainOfData).filter((plain) => plain !== undefined)
  const exist = await Promise.all(plains.map((plain) => node.command(['EXISTS', plain])))
  return plains.filter((_, index) => Number(exist[index]) === 0)
}

/** All leases and waiters of these locks, in as many calls as it takes. */
export async function inspectNames(
  connection: RedisConnection,
  prefix: string,
  names: readonly string[],
): Promise<InspectPage> {
  const pages: InspectPage[] = []
  let parts: readonly Part[] = names.map((name) => [name, BEGINNING])
  while (parts.length > 0) {
    const { page, left } = await showPart(connection, prefix, parts, true)
    pages.push(page)
    parts = left
  }
  return { leases: pages.flatMap(({ leases }) => leases), waiters: pages.flatMap(({ waiters }) => waiters) }
}

/** What one call for each slot returns of these locks, and what is left of them. */
async function showPart(
  connection: RedisConnection,
  prefix: string,
  parts: readonly Part[],
  showsOthers: boolean,
): Promise<{ page: InspectPage; left: Part[] }> {
  const shown = new Map<string, Shown>()
  const bySlot = new Map<number, Part[]>()
  for (const part of parts) {
    if (isOwnKey(prefix + part[0])) continue
    const slot = connection.cluster ? slotOf(prefix + part[0]) : 0
    const ofSlot = bySlot.get(slot) ?? []
    bySlot.set(slot, ofSlot)
    if (ofSlot.length < MAX_LOOKED_AT) ofSlot.push(part)
  }
  await Promise.all(
    [...bySlot.values()].map(async (ofSlot) => {
      const keys = keysOf(
        prefix,
        ofSlot.map(([lockName]) => ({ lockName })),
      )
      const froms = ofSlot.map(([, from]) => from)
      const call = scriptCall(keys, [`${ofSlot.length}`, `${MAX_LOOKED_AT}`, ...froms])
      const read = (reply: unknown): Shown[] => {
        if (!isShownList(reply)) throw unexpectedReply('inspect', reply)
        return reply
      }
      const reply = await runScript(connection, { what: 'inspect', script: inspectScript(), call, read })
      for (const [at, each] of reply.entries()) shown.set((ofSlot[at] as Part)[0], each)
    }),
  )
  const leases: LeaseRecord[][] = []
  const waiters: WaiterRecord[][] = []
  const left: Part[] = []
  for (const part of parts) {
    const [name] = part
    if (isOwnKey(prefix + name)) continue
    const found = shown.get(name)
    if (found === undefined) {
      left.push(part)
      continue
    }
    leases.push(leasesIn(name, found, showsOthers))
    waiters.push(pairs(found[3]).map(([id, text]) => readWaiter(name, id, text)))
    if (found[4] !== '') left.push([name, found[4]])
  }
  return { page: { leases: leases.flat(), waiters: waiters.flat() }, left }
}

/** A broken server may answer anything. What is left of a lock becomes a part of the cursor. */
const isShownList = (reply: unknown): reply is Shown[] =>
  Array.isArray(reply) &&
  reply.every(
    (each: unknown) =>
      Array.isArray(each) && isText(each[0]) && isTexts(each[2]) && isTexts(each[3]) && isText(each[4]),
  )

const isTexts = (value: unknown): boolean => Array.isArray(value) && value.every((each) => !Array.isArray(each))

/** As inspect.lua returns it: plain text, its end, shared leases and ends, ids and texts of waiters, where to go on. */
type Shown = [string, number, string[], string[], string]

function leasesIn(lockName: string, [plain, end, shared]: Shown, showsOthers: boolean): LeaseRecord[] {
  const endMs = Number(end)
  const leases = pairs(shared).map(([text, each]) => readLease(lockName, text, Number(each)))
  if (endMs === -2 || plain === SHARED) return leases
  if (!showsOthers && !isOurs(plain)) return leases
  return [readLease(lockName, plain, endMs), ...leases]
}

const pairs = (flat: readonly string[]): [string, string][] =>
  Array.from({ length: flat.length / 2 }, (_, at) => [flat[2 * at] as string, flat[2 * at + 1] as string])

const escaped = (text: string): string => text.replace(/[\\*?[\]^]/g, '\\$&')

/**
 * The rate limits in use, in pages. A limit's key contains its name and the limit itself, so that a walk over the key
 * space finds both, and no value is read. A key can be on two pages: SCAN may return it twice.
 */
export async function inspectRates(connection: RedisConnection, prefix: string, query: RatesQuery): Promise<RatesPage> {
  const { prefix: wanted, after, pageSize } = checkInspectQuery(query)
  const walk = after === undefined ? { node: '', cursor: '0', rest: [] } : readCursor(after, isRatesWalk)
  const found = new Set<string>(walk.rest)
  const nodes = await sortedNodes(connection)
  let isOver = false
  for (let steps = 0; found.size < pageSize && !isOver && steps < MAX_STEPS; steps += 1) {
    const scanned = await scan(nodes, walk, 'holdfast:{*}:r*')
    isOver = scanned === undefined
    for (const key of scanned?.keys ?? []) if (rateOfKey(key)?.plain.startsWith(prefix + wanted)) found.add(key)
  }
  const rest = [...found]
  const rates = rest.splice(0, pageSize).flatMap((key) => {
    const rate = rateOfKey(key)
    const limit = rate && limitFromId(rate.id)
    return rate && limit ? [{ name: rate.plain.slice(prefix.length), limit }] : []
  })
  return isOver && rest.length === 0 ? { rates } : { rates, next: writeCursor({ ...walk, rest }) }
}

/** With the keys that were found and did not fit on the page. */
interface RatesWalk extends Place {
  readonly rest: readonly string[]
}

const isPlace = ({ node, cursor }: Place): boolean => isText(node) && isText(cursor)
const isWalk = (walk: Walk): boolean =>
  isPlace(walk) && walk.rest.every((part: unknown) => Array.isArray(part) && part.length === 2 && part.every(isText))
const isRatesWalk = (walk: RatesWalk): boolean => isPlace(walk) && walk.rest.every(isText)

export const writeCursor = (walk: object): string => Buffer.from(JSON.stringify(walk)).toString('base64url')

/** `isWalk`: may throw for what is not one. */
export function readCursor<Walk>(after: string, isWalk: (walk: Walk) => boolean): Walk {
  try {
    const walk = JSON.parse(Buffer.from(after, 'base64url').toString()) as Walk
    if (isWalk(walk)) return walk
  } catch {
    // The error below says what is wrong.
  }
  throw new InvalidArgumentError('after', after, '`next` of the page before')
}

const isText = (value: unknown): boolean => typeof value === 'string'

const SHARED = 'holdfast:shared'
/** How many locks, leases and waiters one call may read. More would block the server for too long. */
const MAX_LOOKED_AT = 500
const SCAN_COUNT = '250'
/** How many SCANs one page may take. In a large database a page may be short, and its cursor says where to go on. */
const MAX_STEPS = 40
