import { inspect } from 'node:util'
import type { InvalidArgumentError } from 'holdfast'
import type { Judge } from '../judge.ts'
import { type Bag, type Bench, CALLS, type Slot } from './calls.ts'
import { CallersError, oddValue } from './odd-values.ts'

/** Calls a function of the public API with one or two odd arguments or options. */
export async function useArguments(bench: Bench, judge: Judge): Promise<void> {
  const { draw } = bench
  const { name, args, call } = draw.one(CALLS)
  const wrong: string[] = []
  const values = args.map((slot, at) => {
    if (!('options' in slot)) return oddValueOf(bench, slot, `argument ${at}`, wrong)
    return draw.chance(0.08) ? oddValue(draw) : bagOf(bench, slot, wrong)
  })
  judge.note(`${name}(${values.map(shown).join(', ')})`)
  const settled = await settle(() => call(bench, values as never[]))
  if (settled === 'late') judge.late.push(`${name} did not settle within ${MAX_MS} ms`)
  if (settled === 'late') return
  if (!('error' in settled)) {
    judge.outcomes.push('ok')
    if (wrong.length > 0) judge.violation(`${name} accepted ${wrong.join(' and ')}`)
    return
  }
  const { error } = settled
  // The caller's own code failed, and the caller gets that error.
  if (error instanceof CallersError) return void judge.outcomes.push('the caller’s own error')
  judge.failed(name, error)
  const { code, argument, rule, message } = error as InvalidArgumentError
  if (code !== 'INVALID_ARGUMENT') return
  judge.check(typeof argument === 'string' && argument !== '', () => `${name}: no argument in ${message}`)
  judge.check(typeof rule === 'string' && rule !== '', () => `${name}: no rule in ${message}`)
  judge.check(message.length < 800, () => `${name}: a message of ${message.length} characters`)
}

function bagOf(bench: Bench, { options, required = [] }: Bag, wrong: string[]): unknown {
  const { draw } = bench
  const names = draw.some(Object.keys(options), draw.whole(0, 3))
  const all = [...new Set([...required, ...names])]
  const bag = all.map((name) => [name, oddValueOf(bench, options[name] as Slot, name, wrong)] as const)
  if (draw.chance(0.05)) bag.push([draw.one(['ttl', 'uri', '__proto__x', 'toString', '']), 7])
  return Object.fromEntries(bag)
}

function oddValueOf(bench: Bench, { valid, odd, isRight }: Slot, what: string, wrong: string[]): unknown {
  const { draw } = bench
  if (!draw.chance(odd === undefined ? 0.3 : 0.7)) return valid(bench)
  const value = odd === undefined ? oddValue(draw) : odd(draw)
  // Undefined means the default, for an option.
  if (value !== undefined && isRight !== undefined && !accepts(isRight, value))
    wrong.push(`${shown(value)} for ${what}`)
  return value
}

function accepts(isRight: (value: unknown) => boolean, value: unknown): boolean {
  try {
    return isRight(value)
  } catch {
    return false
  }
}

async function settle(call: () => unknown): Promise<{ value: unknown } | { error: unknown } | 'late'> {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<'late'>((resolve) => {
    timer = setTimeout(resolve, MAX_MS, 'late')
  })
  try {
    const value = await Promise.race([Promise.resolve().then(call), late])
    return value === 'late' ? 'late' : { value }
  } catch (error) {
    return { error }
  } finally {
    clearTimeout(timer)
  }
}

const MAX_MS = 10_000

/** For people. Some objects throw even when they are shown. */
function shown(value: unknown): string {
  try {
    return inspect(value, { depth: 1, maxStringLength: 40, maxArrayLength: 5 }).replaceAll(/\s+/g, ' ').slice(0, 150)
  } catch {
    return 'an object that cannot be shown'
  }
}
