import { MAX_TIME_MS } from '../../core/lock-info.ts'
import { failTogether, type GroupMember, groupSize } from '../shared/groups.ts'
import { readProtocol } from '../shared/read-protocol.ts'
import type { RedisConnection } from './connection.ts'
import { isForbidden, storeErrorFrom } from './errors.ts'
import { unexpectedReply } from './format.ts'
import { COUNTER, isOwnKey, lockKeys, ownKeyError, reachesOwnKeys, slotCounter, slotOf } from './keys.ts'
import { protocolScript, runScript, type ScriptCall } from './scripts.ts'

export const leasesScript = protocolScript(() => readProtocol('redis/leases.lua'))

export interface ListParts {
  readonly connection: RedisConnection
  readonly prefix: string
  readonly timeoutMs: number
}

/** The part of a list that goes to the server in one call. */
export interface Chunk<Request> {
  readonly requests: readonly Request[]
  /** The slot of all its keys on a Cluster. Otherwise 0. */
  readonly slot: number
}

/**
 * Sends a list in as few calls as possible, all in flight together, and returns the answers in the order of the list.
 * If a call fails, only its own entries are errors.
 */
export function sendList<Request extends ListEntry, Answer>(
  parts: ListParts,
  requests: readonly Request[],
  send: (chunk: Chunk<Request>) => Promise<readonly (Answer | Error)[]>,
  mostEntries = MAX_ENTRIES,
): Promise<readonly (Answer | Error)[]> {
  if (requests.length === 0) return Promise.resolve([])
  const { connection, prefix } = parts
  const bySlot = connection.cluster
  if (reachesOwnKeys(prefix) && requests.some(({ lockName }) => isOwnKey(prefix + lockName))) {
    return sendAllowed(parts, requests, send, mostEntries)
  }
  // By far the most frequent case, and the one in which every microsecond counts.
  if (!bySlot && requests.length <= mostEntries) return sendChunk({ requests, slot: 0 }, send)
  const slotOfRequest = (request: Request): number => (bySlot ? slotOf(prefix + request.lockName) : 0)
  const sizeAt = (index: number): number => groupSize(requests, index)
  return sendParts(requests, chunksOf(requests, slotOfRequest, mostEntries, sizeAt), send)
}

type ListEntry = GroupMember & { readonly lockName: string }

/** Sends the list without the names that would be keys of the driver's own. Those are errors. */
async function sendAllowed<Request extends ListEntry, Answer>(
  parts: ListParts,
  requests: readonly Request[],
  send: (chunk: Chunk<Request>) => Promise<readonly (Answer | Error)[]>,
  mostEntries: number,
): Promise<readonly (Answer | Error)[]> {
  const refusals = failTogether(
    requests,
    requests.map(({ lockName }) => ownKeyError(parts.prefix, lockName)),
  )
  const allowed = requests.filter((_, index) => refusals[index] === undefined)
  const answers = [...(await sendList(parts, allowed, send, mostEntries))]
  return refusals.map((refusal) => refusal ?? (answers.shift() as Answer | Error))
}

/**
 * If the user has no right to one of the keys, the server refuses the call before it runs anything. One such name must
 * not cost the others their answer, so each is then sent alone. The members of a group stay together.
 */
function sendChunk<Request extends ListEntry, Answer>(
  chunk: Chunk<Request>,
  send: (chunk: Chunk<Request>) => Promise<readonly (Answer | Error)[]>,
): Promise<readonly (Answer | Error)[]> {
  const { requests, slot } = chunk
  if (requests.length === 1) return send(chunk)
  return send(chunk).catch((error: unknown) => {
    const units = unitsOf(requests)
    if (!isForbidden(error) || units.length === 1) throw error
    return sendParts(
      requests,
      units.map((indexes) => ({ indexes, slot })),
      send,
    )
  })
}

/** The indexes of the requests. Those of a group are together. */
function unitsOf(requests: readonly ListEntry[]): number[][] {
  const units: number[][] = []
  for (let index = 0; index < requests.length; ) {
    const size = groupSize(requests, index)
    units.push(Array.from({ length: size }, (_, at) => index + at))
    index += size
  }
  return units
}

async function sendParts<Request extends ListEntry, Answer>(
  requests: readonly Request[],
  parts: readonly Part[],
  send: (chunk: Chunk<Request>) => Promise<readonly (Answer | Error)[]>,
): Promise<readonly (Answer | Error)[]> {
  const answers = new Array<Answer | Error>(requests.length)
  await Promise.all(
    parts.map(async ({ indexes, slot }) => {
      try {
        const part = await sendChunk({ requests: indexes.map((index) => requests[index] as Request), slot }, send)
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

/**
 * Runs leases.lua. Resolves with the server's time, followed by the script's answer to each entry. `args` are the
 * script's arguments from the fourth on.
 */
export function runLeases(
  { connection, prefix }: ListParts,
  operation: LeasesOperation,
  { requests, slot }: Chunk<{ readonly lockName: string }>,
  args: readonly string[],
  publication: Publication = NOTHING,
  run: typeof runScript = runScript,
): Promise<LeasesReply> {
  const counter = connection.cluster ? slotCounter(slot) : COUNTER
  const call = leasesCall({ prefix, counter, operation, requests, args, publication })
  return sendLeases(connection, operation, requests.length, call, run)
}

export type LeasesOperation = 'acquire' | 'renew' | 'release'

export interface LeasesCall {
  readonly prefix: string
  readonly counter: string
  readonly operation: LeasesOperation
  readonly requests: readonly { readonly lockName: string }[]
  /** From the fourth on. */
  readonly args: readonly string[]
  readonly publication: Publication
}

/** The keys and arguments of leases.lua. */
export function leasesCall({ prefix, counter, operation, requests, args, publication }: LeasesCall): ScriptCall {
  const count = requests.length
  // Filled by index instead of built from parts: it is the longest array on the way of a claim.
  const call = new Array<string>(7 + 3 * count + args.length)
  call[0] = call[1] = ''
  call[2] = `${1 + 3 * count}`
  call[3] = counter
  for (let index = 0; index < count; index += 1) {
    const { plain, data, order } = lockKeys(prefix, (requests[index] as { lockName: string }).lockName)
    call[4 + index] = plain
    call[4 + count + index] = data
    call[4 + 2 * count + index] = order
  }
  const at = 4 + 3 * count
  call[at] = operation
  call[at + 1] = publication.channel
  call[at + 2] = publication.text
  for (let index = 0; index < args.length; index += 1) call[at + 3 + index] = args[index] as string
  return call as ScriptCall
}

/** `count`: of the entries. */
export function sendLeases(
  connection: RedisConnection,
  operation: LeasesOperation,
  count: number,
  call: ScriptCall,
  run: typeof runScript = runScript,
): Promise<LeasesReply> {
  return run(connection, leasesScript(), call).then(
    (reply) => {
      const answers = readReply(operation, count, reply)
      if (connection.master?.expectsWrite && hasWritten(answers)) connection.master.wrote()
      return answers
    },
    (error: unknown) => {
      throw storeErrorFrom(operation, error, connection)
    },
  )
}

export type LeasesReply = [nowMs: number, ...answers: unknown[]]

/**
 * Expands the short reply "yes to all" to one answer for each entry. With ioredis' `stringNumbers`, numbers arrive as
 * text, here and in every answer.
 */
function readReply(operation: string, count: number, reply: unknown): LeasesReply {
  if (!isReply(reply)) throw unexpectedReply(operation, reply)
  reply[0] = Number(reply[0])
  const isTime = reply[0] >= (operation === 'acquire' ? 1 : 0) && reply[0] <= MAX_TIME_MS
  if (!isTime) throw unexpectedReply(operation, reply)
  if (count === 1 || reply[1] !== 'g') {
    if (reply.length !== 1 + count) throw unexpectedReply(operation, reply)
    return reply
  }
  const first = operation === 'acquire' ? Number(reply[2]) : 1
  const step = operation === 'acquire' ? 1 : 0
  for (let index = 0; index < count; index += 1) reply[1 + index] = first + index * step
  return reply
}

const isReply = (reply: unknown): reply is LeasesReply => Array.isArray(reply) && reply.length > 1

/**
 * Whether the script ran a write command, which a replica would have refused. Every claim that was granted, refused or
 * queued did.
 */
const hasWritten = (reply: LeasesReply): boolean =>
  reply.some((answer, index) => index > 0 && (isClaimed(answer) || Number(answer) > 0))

const isClaimed = (answer: unknown): boolean => Array.isArray(answer) && (answer[0] === 'y' || answer[0] === 'n')

/** acquire: the client's channel and the call's secret. release: a channel, and the messages to publish there. */
export interface Publication {
  readonly channel: string
  readonly text: string
}

const NOTHING: Publication = { channel: '', text: '' }

interface Part {
  readonly slot: number
  readonly indexes: number[]
}

/**
 * Splits a list into bounded parts of one slot each, in the order of the list. `sizeAt`: how many requests, from an
 * index on, must stay in one part.
 */
export function chunksOf<Request>(
  requests: readonly Request[],
  slotOfRequest: (request: Request) => number,
  mostEntries = MAX_ENTRIES,
  sizeAt: (index: number) => number = () => 1,
): Part[] {
  const open = new Map<number, Part>()
  const parts: Part[] = []
  requests.forEach((request, index) => {
    const slot = slotOfRequest(request)
    const part = open.get(slot)
    if (part !== undefined && part.indexes.length + sizeAt(index) <= mostEntries) {
      part.indexes.push(index)
      return
    }
    const fresh = { slot, indexes: [index] }
    open.set(slot, fresh)
    parts.push(fresh)
  })
  return parts
}

/** How many entries one script may have, so that a long list does not block the server for long. */
export const MAX_ENTRIES = 128
