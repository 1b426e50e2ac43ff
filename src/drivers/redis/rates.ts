import type { RateAnswer, RateRequest } from '../../core/driver.ts'
import { answerTake, countOf, inOrder, policiesOf, type Take, type Taken, takesOf } from '../shared/consume-step.ts'
import { readProtocol } from '../shared/read-protocol.ts'
import { inTime } from './errors.ts'
import { rateKey, slotOf } from './keys.ts'
import { partsOf } from './lists.ts'
import { type ListParts, protocolScript, runScript, type Script, scriptCall } from './scripts.ts'

const consumeScript = protocolScript(() => readProtocol('redis/consume.lua'))
const changeScript = protocolScript(() => readProtocol('redis/rate-change.lua'))

/** Rate-limiting steps and changes of limits, in the order of the list. */
export const consume = (parts: ListParts, requests: readonly RateRequest[]): Promise<readonly (RateAnswer | Error)[]> =>
  inOrder(
    requests,
    (steps) => takeSteps(parts, steps),
    async (take) => {
      const { policy, change } = take
      const what = change === 'reset' ? change : `${change.blockMs}`
      const reply = await run(parts, changeScript(), [take], [what, ...policy.fullsMs.map(String)])
      parts.connection.master?.wrote()
      return takenFrom(take, reply, 0)
    },
  )

/**
 * Equal requests on one name are one entry of the script. Each of them gets its part of the answer.
 */
async function takeSteps(parts: ListParts, requests: readonly RateRequest[]): Promise<(RateAnswer | Error)[]> {
  const { connection, prefix } = parts
  const answers = new Array<RateAnswer | Error>(requests.length)
  const takes = takesOf(requests)
  const slotAt = (index: number): number => (connection.cluster ? slotOf(prefix + (takes[index] as Take).name) : 0)
  await Promise.all(
    partsOf(takes as readonly object[], slotAt, MAX_ENTRIES).map(async ({ indexes }) => {
      const part = indexes.map((index) => takes[index] as Take)
      const reply = await run(parts, consumeScript(), part, policyArgs(part)).catch((error: Error) => error)
      if (!(reply instanceof Error)) {
        if (answerAll(part, reply, answers)) connection.master?.wrote()
        return
      }
      for (const { indexes } of part) for (const index of indexes) answers[index] = reply
    }),
  )
  return answers
}

type Reply = readonly (string | number)[]

function run(
  { connection, prefix, timeoutMs }: ListParts,
  script: Script,
  takes: readonly Take[],
  args: readonly string[],
): Promise<Reply> {
  const keys = takes.flatMap(({ name, policy }) => policy.ids.map((id) => rateKey(prefix, name, id)))
  const call = scriptCall(keys, args)
  const read = (reply: unknown): Reply => reply as Reply
  return inTime('consume', timeoutMs, () => runScript(connection, { what: 'consume', script, call, read }), connection)
}

/** Longer lists go out in parts that overlap: while the server runs one, the client reads or writes another. */
const MAX_ENTRIES = 32

function policyArgs(takes: readonly Take[]): [policies: string, chosen: string] {
  const { policies, numbers } = policiesOf(takes)
  const pairs = policies.map(({ stepsMs, fullsMs }) => stepsMs.flatMap((stepMs, at) => [stepMs, fullsMs[at]]))
  const isPlain = policies.length === 1 && takes.every((take) => countOf(take) === 1)
  const chosen = takes.flatMap((take, at) => [(numbers[at] as number) + 1, countOf(take)])
  return [JSON.stringify(pairs), isPlain ? '' : JSON.stringify(chosen)]
}

/** Returns whether a step was taken, which means that the server has written. */
function answerAll(takes: readonly Take[], reply: Reply, answers: (RateAnswer | Error | undefined)[]): boolean {
  let at = 0
  let isTaken = false
  for (const take of takes) {
    const taken = takenFrom(take, reply, at)
    at += 1 + taken.usedMs.length
    isTaken ||= taken.count > 0
    answerTake(take, taken, answers)
  }
  return isTaken
}

/** Reads the part of the reply that begins at `at`. */
function takenFrom({ policy }: Take, reply: Reply, at: number): Taken {
  const count = Number(reply[at])
  const usedMs = policy.limits.map((_, index) => Number(reply[at + 1 + index]) / 1_000_000)
  return { count: Math.max(0, count), usedMs, blockedMs: Math.max(0, -count) }
}
