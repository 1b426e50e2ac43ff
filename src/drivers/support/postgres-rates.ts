import type { RateAnswer, RateRequest } from '../../core/driver.ts'
import { answerTake, countOf, type Policy, policiesOf, type Take, takesOf } from './consume-step.ts'
import { numberArray, parseNumbers, textArray } from './postgres-arrays.ts'
import type { Row } from './postgres-client.ts'

/**
 * Rate-limiting steps, all of a list in one statement, which can touch a row only once: what is asked of one name with different costs goes in
 * further ones.
 */
export async function consume(
  requests: readonly RateRequest[],
  call: (values: readonly string[]) => Promise<Row>,
): Promise<RateAnswer[]> {
  const answers = new Array<RateAnswer>(requests.length)
  let waiting = takesOf(requests)
  while (waiting.length > 0) {
    const names = new Set<string>()
    const later: Take[] = []
    const takes = waiting.filter((take) => {
      if (!names.has(take.name)) return names.add(take.name)
      later.push(take)
      return false
    })
    await consumeOnce(takes.sort(byBytes), answers, call)
    waiting = later
  }
  return answers
}

async function consumeOnce(
  takes: readonly Take[],
  answers: RateAnswer[],
  call: (values: readonly string[]) => Promise<Row>,
): Promise<void> {
  const { policies, numbers } = policiesOf(takes)
  const { answers: reply } = await call([
    textArray(takes.map(({ name }) => name)),
    numberArray(takes.map(countOf)),
    numberArray(numbers.map((number) => number + 1)),
    policyArray(policies, ({ stepsMs }) => stepsMs),
    policyArray(policies, ({ fullsMs }) => fullsMs),
  ])
  const states = parseNumbers(reply as string)
  let at = 0
  for (const take of takes) {
    const count = states[at] as number
    const usedMs = states.slice(at + 1, at + 1 + take.policy.limits.length)
    at += 1 + usedMs.length
    answerTake(take, { count, usedMs }, answers)
  }
}

/** A row for each policy, all of one length. */
function policyArray(policies: readonly Policy[], valuesOf: (policy: Policy) => readonly number[]): string {
  const most = Math.max(...policies.map(({ limits }) => limits.length))
  const places = Array.from({ length: most }, (_, place) => place)
  return `{${policies.map((policy) => numberArray(places.map((place) => valuesOf(policy)[place]))).join(',')}}`
}

/** As the server sorts them. Code units are in the order of bytes but for surrogates, which only longer forms have. */
function byBytes({ name: a }: Take, { name: b }: Take): number {
  if (SURROGATE.test(a) || SURROGATE.test(b)) return Buffer.compare(Buffer.from(a), Buffer.from(b))
  return a < b ? -1 : 1
}

const SURROGATE = /[\ud800-\udfff]/
