import { deflateRawSync, inflateRawSync } from 'node:zlib'

/**
 * A lease or a request of a connection, as other clients can read it. A connection lists them in a comment before each
 * statement, which `pg_stat_activity` shows. So nothing is stored, and the list ends with the connection.
 *
 * The server shows only the first `track_activity_query_size` bytes of a statement (1,024 by default). A few leases fit
 * as JSON, some dozens compressed. A lease that does not fit is held all the same, and shown by its key.
 */
export interface ActivityEntry {
  readonly lockName: string
  readonly claimId: string
  readonly holderId: string
  readonly shared: boolean
  /** Absent while the statement behind the comment is the one that requests the lock. */
  readonly fencingToken?: number
  readonly acquiredAtMs?: number
}

/** `entries` are newest first, so that the oldest ones are left out if there is no room. */
export function writeActivityComment(entries: readonly ActivityEntry[], maxBytes: number): string {
  if (entries.length === 0) return ''
  const free = maxBytes - START.length - END.length - 1
  for (let count = Math.min(entries.length, MAX_ENTRIES); count > 0; count = Math.floor(count / 2)) {
    const json = JSON.stringify(entries.slice(0, count).map(packed))
    const plain = withoutStars(json)
    if (Buffer.byteLength(plain) <= free) return `${START}${plain}${END}`
    const deflated = deflateRawSync(json).toString('base64')
    if (deflated.length <= free) return `${START}${withoutStars(deflated)}${END}`
  }
  return `${START}[]${END}`
}

/** Undefined: the query has no comment of this driver. */
export function readActivityComment(query: string | null): readonly ActivityEntry[] | undefined {
  if (query === null || !query.startsWith(START)) return undefined
  const end = query.indexOf(END)
  const text = query.slice(START.length, end === -1 ? undefined : end)
  try {
    const json = text.startsWith('[') ? text : inflated(text)
    const found: unknown = JSON.parse(json)
    return Array.isArray(found) ? found.filter(isPacked).slice(0, MAX_ENTRIES).map(unpacked) : []
  } catch {
    // Cut off, or written by a later version.
    return []
  }
}

/** Any session can send a comment, and a few compressed bytes can become very many. */
const inflated = (text: string): string =>
  inflateRawSync(Buffer.from(text, 'base64'), { maxOutputLength: MAX_INFLATED }).toString()

const isPacked = (entry: unknown): entry is Packed =>
  Array.isArray(entry) && entry.slice(0, 3).every((each) => typeof each === 'string') && entry.length >= 4

type Packed = readonly [string, string, string, 0 | 1, (number | undefined)?, (number | undefined)?]

function packed({ lockName, claimId, holderId, shared, fencingToken, acquiredAtMs }: ActivityEntry): Packed {
  const request = [lockName, claimId, holderId, shared ? 1 : 0] as const
  return fencingToken === undefined ? request : [...request, fencingToken, acquiredAtMs]
}

const unpacked = ([lockName, claimId, holderId, shared, fencingToken, acquiredAtMs]: Packed): ActivityEntry => ({
  lockName,
  claimId,
  holderId,
  shared: shared === 1,
  ...(fencingToken !== undefined && { fencingToken }),
  ...(acquiredAtMs !== undefined && { acquiredAtMs }),
})

/** Without a star, nothing in the text can end the comment or begin another. JSON reads the escape as a star again. */
const withoutStars = (text: string): string => text.replaceAll('*', '\\u002a')

const START = '/*holdfast '
/** The space keeps a slash at the end of the text from beginning another comment. */
const END = ' */'
const MAX_ENTRIES = 64
const MAX_INFLATED = 1_000_000
