import { failTogether, type GroupMember, groupSize } from '../shared/groups.ts'
import { isForbidden } from './errors.ts'
import { isOwnKey, ownKeyError, reachesOwnKeys, slotOf } from './keys.ts'
import type { ListParts, ScriptRun } from './scripts.ts'

/** Sends a list, or a part of it, in one call. `slot`: of all its keys on a Cluster. Otherwise 0. */
export type Send<Request, Answer> = (
  parts: ListParts,
  requests: readonly Request[],
  slot: number,
) => Promise<Answers<Answer>>

type Answers<Answer> = readonly (Answer | Error)[]

type ListEntry = GroupMember & { readonly lockName: string }

/**
 * Sends a list in as few calls as possible, all in flight together, and returns the answers in the order of the list.
 * If a call fails, only its own entries are errors.
 */
export function sendList<Request extends ListEntry, Answer>(
  parts: ListParts,
  requests: readonly Request[],
  send: Send<Request, Answer>,
  mostEntries = MAX_ENTRIES,
): Promise<Answers<Answer>> {
  if (requests.length === 0) return Promise.resolve([])
  const { connection, prefix } = parts
  if (reachesOwnKeys(prefix) && requests.some(({ lockName }) => isOwnKey(prefix + lockName))) {
    return sendAllowed(parts, requests, send, mostEntries)
  }
  // By far the most frequent case, and the one in which every microsecond counts.
  if (!connection.cluster && requests.length <= mostEntries) return sendPart(parts, requests, send, 0)
  return sendEach(parts, requests, send, partsOf(requests, slotsOf(parts, requests), mostEntries))
}

/** In a function of its own: a closure in `sendList` would allocate its context with every list. */
const slotsOf =
  ({ connection, prefix }: ListParts, requests: readonly ListEntry[]) =>
  (index: number): number =>
    connection.cluster ? slotOf(prefix + (requests[index] as ListEntry).lockName) : 0

/** Sends the list without the names that would be keys of the driver's own. Those are errors. */
async function sendAllowed<Request extends ListEntry, Answer>(
  parts: ListParts,
  requests: readonly Request[],
  send: Send<Request, Answer>,
  mostEntries: number,
): Promise<Answers<Answer>> {
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
function sendPart<Request extends ListEntry, Answer>(
  parts: ListParts,
  requests: readonly Request[],
  send: Send<Request, Answer>,
  slot: number,
): Promise<Answers<Answer>> {
  const sent = send(parts, requests, slot)
  if (requests.length === 1) return sent
  return sent.catch((error: unknown) => {
    const each = isForbidden(error) ? partsOf(requests, () => slot, 1) : []
    if (each.length < 2) throw error
    return sendEach(parts, requests, send, each)
  })
}

async function sendEach<Request extends ListEntry, Answer>(
  parts: ListParts,
  requests: readonly Request[],
  send: Send<Request, Answer>,
  split: readonly Part[],
): Promise<Answers<Answer>> {
  const answers = new Array<Answer | Error>(requests.length)
  await Promise.all(
    split.map(async ({ indexes, slot }) => {
      const part = indexes.map((index) => requests[index] as Request)
      const found = await sendPart(parts, part, send, slot).catch((error: Error) => error)
      indexes.forEach((index, at) => {
        answers[index] = found instanceof Error ? found : (found[at] as Answer | Error)
      })
    }),
  )
  return answers
}

interface Part {
  readonly slot: number
  readonly indexes: number[]
}

/** Splits a list into bounded parts of one slot each, in its order. The members of a group stay together. */
export function partsOf(
  requests: readonly GroupMember[],
  slotAt: (index: number) => number,
  mostEntries: number,
): Part[] {
  const open = new Map<number, Part>()
  const parts: Part[] = []
  for (let index = 0; index < requests.length; ) {
    const slot = slotAt(index)
    const end = index + groupSize(requests, index)
    let part = open.get(slot)
    if (part === undefined || part.indexes.length + end - index > mostEntries) {
      part = { slot, indexes: [] }
      open.set(slot, part)
      parts.push(part)
    }
    for (; index < end; index += 1) part.indexes.push(index)
  }
  return parts
}

/** A list for all nodes of a Redlock. */
export interface SharedList<Request, Answer> {
  readonly requests: readonly Request[]
  /** Sends it, or a part of it, to one of them. */
  readonly send: Send<Request, Answer>
}

/** The nodes usually have the same prefix. So the call of the entire list is put together once. */
export function sharedRun<Request, Answer>(
  all: readonly Request[],
  runOf: (prefix: string, requests: readonly Request[]) => ScriptRun<Answer>,
): (prefix: string, requests: readonly Request[]) => ScriptRun<Answer> {
  let [known, knownPrefix]: [ScriptRun<Answer>?, string?] = []
  return (prefix, requests) => {
    if (requests !== all) return runOf(prefix, requests)
    if (known === undefined || knownPrefix !== prefix) [known, knownPrefix] = [runOf(prefix, requests), prefix]
    return known
  }
}

/** How many entries one script may have, so that a long list does not block the server for long. */
export const MAX_ENTRIES = 128
