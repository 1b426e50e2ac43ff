import type { RedisConnection } from './redis-connection.ts'
import { storeErrorFrom } from './redis-errors.ts'
import { COUNTER, lockKeys, slotCounter, slotOf } from './redis-keys.ts'
import { protocolScript, runScript } from './redis-scripts.ts'

export interface ListParts {
  readonly connection: RedisConnection
  readonly prefix: string
  readonly timeoutMs: number
  /** One call for each slot, with the slot's own counter, as Cluster needs it. Redlock's ballots, too: else every name would compete with every other. */
  readonly bySlot?: boolean
}

/** Part of a list that goes to the server in one call. */
export interface Chunk<Request> {
  readonly requests: readonly Request[]
  /** Of all its keys on Cluster; else 0. */
  readonly slot: number
}

/**
 * Sends a list in as few calls as there may be, all in flight together, and gives the answers in the list's order. What fails, fails for its
 * own part of the list.
 */
export async function sendList<Request extends { readonly lockName: string }, Answer>(
  { connection, prefix, bySlot = connection.cluster }: ListParts,
  requests: readonly Request[],
  send: (chunk: Chunk<Request>) => Promise<readonly (Answer | Error)[]>,
): Promise<readonly (Answer | Error)[]> {
  if (requests.length === 0) return []
  // The most frequent case by far, and the one in which every microsecond counts.
  if (!bySlot && requests.length <= MOST_ENTRIES) return send({ requests, slot: 0 })
  const answers = new Array<Answer | Error>(requests.length)
  await Promise.all(
    chunksOf(requests, (request) => (bySlot ? slotOf(prefix + request.lockName) : 0)).map(async ({ indexes, slot }) => {
      try {
        const part = await send({ requests: indexes.map((index) => requests[index] as Request), slot })
        indexes.forEach((index, at) => {
          answers[index] = part[at] as Answer | Error
        })
      } catch (error) {
        for (const index of indexes) answers[index] = error as Error
      }
    }),
  )
  return answers
}

/** Runs leases.lua. Answers the server's time and then, for each entry, what the script says. */
export async function runLeases(
  { connection, prefix, bySlot = connection.cluster }: ListParts,
  operation: 'acquire' | 'renew' | 'release',
  { requests, slot }: Chunk<{ readonly lockName: string }>,
  entryArgs: readonly string[],
  address: { readonly channel: string; readonly hears: 0 | 1 } = NOWHERE,
  run: typeof runScript = runScript,
): Promise<readonly [nowMs: number, ...replies: unknown[]]> {
  const count = requests.length
  const args = new Array<string>(1 + 3 * count)
  args[0] = bySlot ? slotCounter(slot) : COUNTER
  for (let index = 0; index < count; index += 1) {
    const { plain, data, order } = lockKeys(prefix, (requests[index] as { lockName: string }).lockName)
    args[1 + index] = plain
    args[1 + count + index] = data
    args[1 + 2 * count + index] = order
  }
  const keyCount = args.length
  args.push(operation, address.channel, address.hears === 1 ? '1' : '0')
  for (const arg of entryArgs) args.push(arg)
  try {
    const reply = (await run(connection, protocolScript('leases.lua'), keyCount, args)) as [number, ...unknown[]]
    // With ioredis' `stringNumbers` numbers come as text, here and in every answer.
    reply[0] = Number(reply[0])
    return reply
  } catch (error) {
    throw storeErrorFrom(operation, error)
  }
}

const NOWHERE = { channel: '', hears: 0 } as const

interface Part {
  readonly slot: number
  readonly indexes: number[]
}

/** Indexes, by slot where that matters, in bounded parts and in their order. */
export function chunksOf<Request>(
  requests: readonly Request[],
  slotOfRequest: (request: Request) => number,
  mostEntries = MOST_ENTRIES,
): Part[] {
  const open = new Map<number, Part>()
  const parts: Part[] = []
  requests.forEach((request, index) => {
    const slot = slotOfRequest(request)
    const part = open.get(slot)
    if (part !== undefined && part.indexes.length < mostEntries) {
      part.indexes.push(index)
      return
    }
    const fresh = { slot, indexes: [index] }
    open.set(slot, fresh)
    parts.push(fresh)
  })
  return parts
}

/** How much one script may do, so that a long list does not hold the server up for long. */
export const MOST_ENTRIES = 128
