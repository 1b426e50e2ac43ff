import type { RateAnswer, RateRecord, RateRequest, RatesPage } from '../../core/driver.ts'
import { OverloadError } from '../../core/errors.ts'
import {
  answerTake,
  countOf,
  inOrder,
  type Policy,
  periodMicros,
  policiesOf,
  type Take,
  type Taken,
  takesOf,
} from '../shared/consume-step.ts'
import { numberArray, parseNumbers, textArray } from './arrays.ts'
import type { Row } from './connections.ts'
import { withoutUnstorable } from './unstorable.ts'

/** A page of names, each with all of its limits: a name may have up to 32 of them. */
export function ratesFrom(text: string, pageSize: number): RatesPage {
  const names = JSON.parse(text) as [name: string, numbers: number[]][]
  const rates: RateRecord[] = []
  for (const [name, numbers] of names) {
    for (let at = 0; at + 2 < numbers.length; at += 3) {
      const [limit = 0, micros = 0, burst = 0] = numbers.slice(at, at + 3)
      rates.push({ name, limit: { limit, periodMs: micros / 1_000, burst } })
    }
  }
  const last = names.at(-1)
  return names.length < pageSize || last === undefined ? { rates } : { rates, next: last[0] }
}

type Call = (values: readonly (string | null)[]) => Promise<Row>

/** Rate-limiting steps, and changes of limits. */
export const consume = (
  requests: readonly RateRequest[],
  { step, change }: { readonly step: Call; readonly change: Call },
): Promise<readonly (RateAnswer | Error)[]> =>
  inOrder(
    requests,
    (steps) => takeSteps(steps, step),
    async (take) => {
      const { list } = policyList([take.policy])
      const blockMs = take.change === 'reset' ? null : `${take.change.blockMs}`
      const { answers } = await change([take.name, numberArray(list), blockMs])
      return takenFrom(take, parseNumbers(answers as string), 0)
    },
  )

/** A statement touches a row only once. Steps on one name with different limits need further statements. */
async function takeSteps(requests: readonly RateRequest[], call: Call): Promise<(RateAnswer | Error)[]> {
  const answers = new Array<RateAnswer | Error>(requests.length)
  let waiting = takesOf(requests)
  while (waiting.length > 0) {
    const first = new Map<string, Take>()
    for (const take of waiting) if (!first.has(take.name)) first.set(take.name, take)
    await consumeOnce([...first.values()].sort(stepsFirst), answers, call)
    waiting = waiting.filter((take) => first.get(take.name) !== take)
  }
  return answers
}

async function consumeOnce(takes: readonly Take[], answers: (RateAnswer | Error)[], call: Call): Promise<void> {
  const units = takes.map((take) => [take])
  const all = await withoutUnstorable(units, (part) => takeOnce(part, call))
  for (const [at, take] of takes.entries()) {
    const taken = all[at] as Taken | Error
    if (!(taken instanceof Error)) answerTake(take, taken, answers)
    else for (const index of take.indexes) answers[index] = taken
  }
}

async function takeOnce(takes: readonly Take[], call: Call): Promise<(Taken | Error)[]> {
  const { policies, numbers } = policiesOf(takes)
  const { places, list } = policyList(policies)
  const { answers: reply } = await call([
    textArray(takes.map(({ name }) => name)),
    numberArray(takes.map(countOf)),
    numberArray(numbers.map((number) => places[number])),
    numberArray(list),
  ])
  const states = parseNumbers(reply as string)
  let at = 0
  return takes.map((take) => {
    const taken = takenFrom(take, states, at)
    at += 2 + (states[at + 1] as number)
    return taken
  })
}

/** Reads the answer to one request, which begins at this index. */
function takenFrom({ name, policy }: Take, states: readonly number[], at: number): Taken | Error {
  const count = states[at] as number
  if (count === TOO_MANY_LIMITS) {
    return new OverloadError(
      `the key "${name}" has too many different limits: PostgreSQL keeps at most 32 that have not run out. ` +
        'This call took nothing. Use fewer different limits for one key, or wait until others have run out',
    )
  }
  const usedMs = states.slice(at + 2, at + 2 + policy.limits.length)
  return { count: Math.max(0, count), usedMs, blockedMs: Math.max(0, TOO_MANY_LIMITS - count) }
}

/** Instead of a count. A lower value means that one of the limits is blocked, for the difference in ms. */
const TOO_MANY_LIMITS = -1

/** The policies in one list, as `holdfast_rate_step` takes them, and where each of them begins. */
function policyList(policies: readonly Policy[]): { places: number[]; list: number[] } {
  const list: number[] = []
  const places = policies.map(({ limits, stepsMs, fullsMs }) => {
    const place = list.push(limits.length)
    for (const each of limits) list.push(each.limit, periodMicros(each), each.burst)
    for (const [at, stepMs] of stepsMs.entries()) list.push(stepMs, fullsMs[at] as number)
    return place
  })
  return { places, list }
}

/** Requests that take a step come before those that only look. Each part is sorted byte by byte. */
function stepsFirst(a: Take, b: Take): number {
  const isLook = Number(a.policy.cost === 0) - Number(b.policy.cost === 0)
  return isLook === 0 ? byBytes(a, b) : isLook
}

/** As the server sorts names. Without surrogates, the order of code units is the order of UTF-8 bytes. */
function byBytes({ name: a }: Take, { name: b }: Take): number {
  if (SURROGATE.test(a) || SURROGATE.test(b)) return Buffer.compare(Buffer.from(a), Buffer.from(b))
  return a < b ? -1 : 1
}

const SURROGATE = /[\ud800-\udfff]/
