import type { RateAnswer, RateRequest } from '../../core/driver.ts'
import { answerTake, countOf, policiesOf, type Take, takesOf } from './consume-step.ts'
import { readProtocol } from './read-protocol.ts'
import { inTime } from './redis-errors.ts'
import { rateKey, slotOf } from './redis-keys.ts'
import { chunksOf, type ListParts } from './redis-lists.ts'
import { protocolScript, runScript, scriptCall } from './redis-scripts.ts'

const consumeScript = protocolScript(() => readProtocol('redis/consume.lua'))

/**
 * Rate-limiting steps: those that are alike and on one name are one entry of the script, whose answer is then told to
 * each of them.
 */
export async function consume(
  { connection, prefix, timeoutMs }: ListParts,
  requests: readonly RateRequest[],
): Promise<(RateAnswer | Error)[]> {
  const answers = new Array<RateAnswer | Error>(requests.length)
  const takes = takesOf(requests)
  const slotOfTake = ({ name }: Take): number => (connection.cluster ? slotOf(prefix + name) : 0)
  const chunks = chunksOf(takes, slotOfTake, MOST_ENTRIES)
  await Promise.all(
    chunks.map(async ({ indexes }) => {
      const part = indexes.map((index) => takes[index] as Take)
      const keys: string[] = []
      for (const { name, policy } of part) for (const id of policy.ids) keys.push(rateKey(prefix, name, id))
      const call = scriptCall(keys, policyArgs(part))
      const run = (): Promise<unknown> => runScript(connection, consumeScript(), call)
      const reply = await inTime('consume', timeoutMs, run, connection).catch((error: Error) => error)
      if (!(reply instanceof Error)) {
        if (answerAll(part, reply as readonly (string | number)[], answers)) connection.master?.wrote()
        return
      }
      for (const { indexes } of part) for (const index of indexes) answers[index] = reply
    }),
  )
  return answers
}

/** A part of a list at a time: while the server works on one, the client reads or writes the other. */
const MOST_ENTRIES = 32

function policyArgs(takes: readonly Take[]): [policies: string, chosen: string] {
  const { policies, numbers } = policiesOf(takes)
  const pairs = policies.map(({ stepsMs, fullsMs }) => stepsMs.flatMap((stepMs, at) => [stepMs, fullsMs[at]]))
  const isPlain = policies.length === 1 && takes.every((take) => countOf(take) === 1)
  const chosen = takes.flatMap((take, at) => [(numbers[at] as number) + 1, countOf(take)])
  return [JSON.stringify(pairs), isPlain ? '' : JSON.stringify(chosen)]
}

/** Whether anything was taken, and so was written. */
function answerAll(
  takes: readonly Take[],
  reply: readonly (string | number)[],
  answers: (RateAnswer | Error | undefined)[],
): boolean {
  let at = 0
  let isTaken = false
  for (const take of takes) {
    const count = Number(reply[at])
    const usedMs = take.policy.limits.map((_, index) => Number(reply[at + 1 + index]) / 1_000_000)
    at += 1 + usedMs.length
    isTaken ||= count > 0
    answerTake(take, { count, usedMs }, answers)
  }
  return isTaken
}
