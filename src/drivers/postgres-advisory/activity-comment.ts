import { deflateRawSync, inflateRawSync } from 'node:zlib'

/**
 * What a connection holds, written where everybody can read it: as a comment in front of its last statement, which
 * `pg_stat_activity` shows. Nothing is stored, and it goes with the connection.
 *
 * The server shows only the first `track_activity_query_size` bytes (1,024 if nobody changed that): a few leases in
 * plain JSON, some dozens packed. What does not fit is held all the same, and shown by its key.
 */
export interface BoardEntry {
  readonly lockName: string
  readonly claimId: string
  readonly holderId: string
  readonly shared: boolean
  /** Missing while the statement that the board stands before is what asks for it. */
  readonly fencingToken?: number
  readonly acquiredAtMs?: number
}

/** Newest first, so that what does not fit is what has been there longest. `room` is in bytes. */
export function writeBoard(entries: readonly BoardEntry[], room: number): string {
  if (entries.length === 0) return ''
  const free = room - MARK.length - END.length - 1
  for (let count = Math.min(entries.length, MAX_ENTRIES); count > 0; count = Math.floor(count / 2)) {
    const json = JSON.stringify(entries.slice(0, count).map(packed))
    const plain = withoutStars(json)
    if (Buffer.byteLength(plain) <= free) return `${MARK}${plain}${END}`
    const deflated = deflateRawSync(json).toString('base64')
    if (deflated.length <= free) return `${MARK}${withoutStars(deflated)}${END}`
  }
  return `${MARK}[]${END}`
}

/** Undefined: not one of ours. */
export function readBoard(query: string | null): readonly BoardEntry[] | undefined {
  if (query === null || !query.startsWith(MARK)) return undefined
  const end = query.indexOf(END)
  const text = query.slice(MARK.length, end === -1 ? undefined : end)
  try {
    const json = text.startsWith('[') ? text : inflateRawSync(Buffer.from(text, 'base64')).toString()
    return (JSON.parse(json) as Packed[]).map(unpacked)
  } catch {
    // Cut off, or written by a later version.
    return []
  }
}

type Packed = readonly [string, string, string, 0 | 1, (number | undefined)?, (number | undefined)?]

const packed = ({ lockName, claimId, holderId, shared, fencingToken, acquiredAtMs }: BoardEntry): Packed =>
  fencingToken === undefined
    ? [lockName, claimId, holderId, shared ? 1 : 0]
    : [lockName, claimId, holderId, shared ? 1 : 0, fencingToken, acquiredAtMs]

const unpacked = ([lockName, claimId, holderId, shared, fencingToken, acquiredAtMs]: Packed): BoardEntry => ({
  lockName,
  claimId,
  holderId,
  shared: shared === 1,
  ...(fencingToken !== undefined && { fencingToken }),
  ...(acquiredAtMs !== undefined && { acquiredAtMs }),
})

/** Without a star nothing ends the comment, or begins another one in it. Both forms read a star's escape as a star. */
const withoutStars = (text: string): string => text.replaceAll('*', '\\u002a')

const MARK = '/*holdfast '
/** The space keeps a slash before it from beginning another comment. */
const END = ' */'
const MAX_ENTRIES = 64
