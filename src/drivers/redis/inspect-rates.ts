import { checkInspectQuery } from '../../core/arguments.ts'
import type { RateRecord, RatesPage, RatesQuery } from '../../core/driver.ts'
import { InvalidArgumentError } from '../../core/errors.ts'
import { limitFromId } from '../shared/consume-step.ts'
import type { RedisConnection } from './connection.ts'
import { unexpectedReply } from './format.ts'
import { rateOfKey } from './keys.ts'

/**
 * The limits in use, in pages. A limit's key contains its name and the limit itself, so that a walk over the key space
 * finds both, and no value is read. A key can be on two pages: SCAN may return it twice.
 */
export async function inspectRates(connection: RedisConnection, prefix: string, query: RatesQuery): Promise<RatesPage> {
  const { prefix: wanted, after, pageSize } = checkInspectQuery(query)
  const walk = after === undefined ? { node: '', cursor: '0', rest: [] } : readCursor(after)
  const found = new Set<string>(walk.rest)
  const nodes = (await connection.nodes()).toSorted((x, y) => (x.id < y.id ? -1 : 1))
  let isOver = false
  for (let steps = 0; found.size < pageSize && !isOver && steps < MAX_STEPS; steps += 1) {
    const node = nodes.find(({ id }) => id >= walk.node)
    if (node === undefined) {
      isOver = true
      break
    }
    if (node.id !== walk.node) Object.assign(walk, { node: node.id, cursor: '0' })
    const reply = await node.command(['SCAN', walk.cursor, 'MATCH', 'holdfast:{*}:r*', 'COUNT', SCAN_COUNT])
    const [cursor, keys] = (Array.isArray(reply) ? reply : []) as [string?, string[]?]
    if (!Array.isArray(keys)) throw unexpectedReply('SCAN', reply)
    walk.cursor = `${cursor}`
    // The smallest text that sorts after the id of this node.
    if (walk.cursor === '0') walk.node = `${node.id}\0`
    for (const key of keys) if (rateOfKey(key)?.plain.startsWith(prefix + wanted)) found.add(key)
  }
  const keys = [...found]
  const rates = keys.slice(0, pageSize).flatMap((key) => recordOf(key, prefix))
  const rest = keys.slice(pageSize)
  return isOver && rest.length === 0 ? { rates } : { rates, next: writeCursor({ ...walk, rest }) }
}

function recordOf(key: string, prefix: string): RateRecord[] {
  const found = rateOfKey(key)
  const limit = found && limitFromId(found.id)
  return found && limit ? [{ name: found.plain.slice(prefix.length), limit }] : []
}

interface Walk {
  node: string
  cursor: string
  /** Keys that were found and did not fit on the page. */
  readonly rest: readonly string[]
}

const writeCursor = (walk: Walk): string => Buffer.from(JSON.stringify(walk)).toString('base64url')

function readCursor(after: string): Walk {
  try {
    const walk = JSON.parse(Buffer.from(after, 'base64url').toString()) as Walk
    if (typeof walk.node === 'string' && typeof walk.cursor === 'string' && Array.isArray(walk.rest)) return walk
  } catch {
    // The error below says what is wrong.
  }
  throw new InvalidArgumentError('after', after, '`next` of the page before')
}

const SCAN_COUNT = '250'
/** How many SCANs one page may take. In a large database a page may be short, and its cursor says where to go on. */
const MAX_STEPS = 40
