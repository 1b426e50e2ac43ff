import { inspect } from 'node:util'

/**
 * Where one of the secrets appears in a value, in any of the ways in which it could be logged. Undefined if nowhere.
 * The result does not contain the secret.
 */
export function secretsIn(thing: unknown, secrets: readonly string[]): string | undefined {
  if (secrets.length === 0) return undefined
  for (const text of textsOf(thing)) {
    const lower = text.toLowerCase()
    for (const secret of secrets) {
      const at = lower.indexOf(secret.toLowerCase())
      if (at >= 0) return `${text.slice(Math.max(0, at - 80), at)}<SECRET>${text.slice(at + secret.length, at + 200)}`
    }
  }
  return undefined
}

/** Everything that a logger could print of a value: hidden properties, causes and stacks, too. */
export function* textsOf(thing: unknown): Generator<string> {
  yield inspect(thing, {
    showHidden: true,
    depth: Number.POSITIVE_INFINITY,
    maxStringLength: null,
    maxArrayLength: null,
  })
  yield String(thing)
  yield jsonOf(thing)
  for (let each = thing; each instanceof Error; each = each.cause) {
    yield `${each.stack} ${each.message} ${String(each)}`
    yield jsonOf(Object.fromEntries(Object.getOwnPropertyNames(each).map((name) => [name, Reflect.get(each, name)])))
  }
}

function jsonOf(thing: unknown): string {
  try {
    return JSON.stringify(thing) ?? ''
  } catch {
    // A bigint or a cycle: `inspect` has shown it.
    return ''
  }
}
