import { InvalidArgumentError } from './errors.ts'

/** The names of all options of an interface. The compiler refuses a list that misses one. */
export type OptionNames<Options> = { readonly [Name in keyof Options]-?: true }

export const optionNames = <Options>(names: OptionNames<Options>): ReadonlySet<string> => new Set(Object.keys(names))

/**
 * An unknown option is a mistake that would otherwise be silent: `{ uri }` would lock in the default store, and `{ ttl }`
 * would hold a lock for the default time. This runs with every claim, so it makes no list and no closure.
 *
 * @param argument what the options are called in errors
 * @throws `InvalidArgumentError`, with the nearest known name
 */
export function checkOptions<Options extends object>(
  options: Options,
  known: ReadonlySet<string>,
  argument = 'options',
): Options {
  checkObject(options, argument)
  for (const name in options) {
    // What an object inherits was not written by the caller of this function.
    if (!known.has(name) && Object.hasOwn(options, name)) throw unknownOption(argument, name, known)
  }
  return options
}

/** A list has no option that is known, and would be taken for one that has none. */
export function checkObject(options: unknown, argument = 'options'): void {
  if (typeof options === 'object' && options !== null && !Array.isArray(options)) return
  throw new InvalidArgumentError(argument, options, 'an object')
}

function unknownOption(argument: string, name: string, known: ReadonlySet<string>): InvalidArgumentError {
  const meant = nearestName(name, [...known])
  const hint = meant === undefined ? '' : `: did you mean ${meant}?`
  const names = [...known].join(', ')
  const message = `${argument} has no option ${JSON.stringify(name.slice(0, 60))}${hint} (known: ${names})`
  // The name, not the value: an unknown option may hold a password.
  return new InvalidArgumentError(argument, name, `made of ${names}`, message)
}

/** The name that a mistyped one stands for, or that other lock libraries use for it. Undefined if none is near. */
export function nearestName(name: string, known: readonly string[]): string | undefined {
  const synonyms = SYNONYMS.filter(({ words }) => words.includes(plain(name))).map((each) => each.name)
  const synonym = synonyms.find((each) => known.includes(each))
  if (synonym !== undefined) return synonym
  const ofCall = known.includes('defaults') ? [name, ...synonyms].find((each) => OF_CALLS.has(each)) : undefined
  if (ofCall !== undefined) return `defaults: { ${ofCall} }`
  const found = known
    .map((each) => ({ each, distance: Math.min(distanceOf(plain(name), plain(each)), distanceOf(name, each)) }))
    .sort((a, b) => a.distance - b.distance)[0]
  return found !== undefined && found.distance <= Math.max(1, found.each.length / 3) ? found.each : undefined
}

/** Without its case and its unit, which are what differs most between libraries. */
const plain = (name: string): string => name.replace(/(?:Seconds|Millis(?:econds)?|Ms)$/, '').toLowerCase()

const SYNONYMS: readonly { readonly name: string; readonly words: readonly string[] }[] = [
  { name: 'timeoutSeconds', words: ['ttl', 'expiry', 'expires', 'expiresin', 'lease', 'leasetime', 'duration', 'px'] },
  { name: 'blockingTimeoutSeconds', words: ['wait', 'waittime', 'waittimeout', 'acquiretimeout', 'maxwait'] },
  { name: 'blocking', words: ['block', 'waits'] },
  { name: 'heartbeat', words: ['renew', 'autorenew', 'autoextend', 'refresh', 'keepalive'] },
  { name: 'metadata', words: ['meta', 'data', 'value', 'info'] },
  { name: 'signal', words: ['abort', 'abortsignal'] },
  { name: 'url', words: ['uri', 'dsn', 'connection', 'connectionstring', 'host', 'redis', 'postgres', 'sqlite'] },
  { name: 'driver', words: ['store', 'backend', 'adapter', 'client', 'provider'] },
  { name: 'client', words: ['redis', 'pool', 'pg', 'sql', 'db', 'connection', 'ioredis'] },
  { name: 'database', words: ['db', 'client', 'sqlite', 'connection'] },
  { name: 'holderId', words: ['owner', 'ownerid', 'id', 'identifier', 'holder', 'clientid'] },
  { name: 'limit', words: ['max', 'size', 'count', 'concurrency', 'permits', 'points'] },
  { name: 'periodSeconds', words: ['window', 'interval', 'per', 'duration'] },
  { name: 'prefix', words: ['keyprefix', 'namespace'] },
]

/** What an instance takes as `defaults` for its calls. */
const OF_CALLS = new Set([
  ...['timeoutSeconds', 'blockingTimeoutSeconds', 'blocking', 'heartbeat', 'metadata', 'signal'],
  ...['minHoldSeconds', 'maxHoldSeconds'],
])

/** How many letters have to be added, removed, replaced or swapped with their neighbour. */
function distanceOf(a: string, b: string): number {
  let before: number[] = []
  let last = Array.from({ length: b.length + 1 }, (_, index) => index)
  for (let row = 1; row <= a.length; row += 1) {
    const next = [row]
    for (let column = 1; column <= b.length; column += 1) {
      const isSame = a[row - 1] === b[column - 1]
      const isSwapped = row > 1 && column > 1 && a[row - 1] === b[column - 2] && a[row - 2] === b[column - 1]
      next[column] = Math.min(
        (last[column] as number) + 1,
        (next[column - 1] as number) + 1,
        (last[column - 1] as number) + (isSame ? 0 : 1),
        isSwapped ? (before[column - 2] as number) + 1 : Number.POSITIVE_INFINITY,
      )
    }
    before = last
    last = next
  }
  return last[b.length] as number
}
