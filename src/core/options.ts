import { InvalidArgumentError } from './errors.ts'

/** The names of all options of an interface. The compiler rejects a list that lacks one. */
export type OptionNames<Options> = { readonly [Name in keyof Options]-?: true }

export const optionNames = <Options>(names: OptionNames<Options>): ReadonlySet<string> => new Set(Object.keys(names))

/**
 * Rejects unknown options. Without this check a mistake would be silent: `{ uri }` would lock in the default store, and
 * `{ ttl }` would hold a lock for the default time. It runs for every claim, so it creates no array and no closure.
 *
 * @param argument the name of the options in error messages
 * @throws `InvalidArgumentError`, which suggests the nearest known name
 */
export function checkOptions<Options extends object>(
  options: Options,
  known: ReadonlySet<string>,
  argument = 'options',
): Options {
  checkObject(options, argument)
  for (const name in options) {
    // Inherited properties were not set by the caller.
    if (!known.has(name) && Object.hasOwn(options, name)) throw unknownOption(argument, name, known)
  }
  return options
}

/** Arrays are rejected, too: an empty one has no unknown option and would pass as "no options". */
export function checkObject(options: unknown, argument = 'options'): void {
  if (typeof options === 'object' && options !== null && isReadable(options) && !isArray(options)) return
  throw new InvalidArgumentError(argument, options, 'an object')
}

/** False also for a proxy that was revoked, where `Array.isArray` throws. */
export const isArray = (value: unknown): value is readonly unknown[] => isReadable(value) && Array.isArray(value)

/** False for a proxy that was revoked, or whose handlers throw: reading it would throw, too. */
export function isReadable(value: unknown): boolean {
  try {
    if ((typeof value === 'object' && value !== null) || typeof value === 'function') Object.getPrototypeOf(value)
    return true
  } catch {
    return false
  }
}

function unknownOption(argument: string, name: string, known: ReadonlySet<string>): InvalidArgumentError {
  const nearest = nearestName(name, [...known])
  const hint = nearest === undefined ? '' : `: did you mean ${nearest}?`
  const names = [...known].join(', ')
  const message = `${argument} has no option ${JSON.stringify(name.slice(0, 60))}${hint} (known: ${names})`
  // The error holds the name, not the value: an unknown option may contain a password.
  return new InvalidArgumentError(argument, name, `made of ${names}`, message)
}

/**
 * The known name that a mistyped name, or a name from another lock library, probably means. Undefined if none is near.
 */
export function nearestName(name: string, known: readonly string[]): string | undefined {
  const synonyms = SYNONYMS.filter(({ words }) => words.includes(normalized(name))).map((each) => each.name)
  const synonym = synonyms.find((each) => known.includes(each))
  if (synonym !== undefined) return synonym
  const callOption = known.includes('defaults') ? [name, ...synonyms].find((each) => CALL_OPTIONS.has(each)) : undefined
  if (callOption !== undefined) return `defaults: { ${callOption} }`
  const found = known
    .map((each) => ({
      each,
      distance: Math.min(distanceOf(normalized(name), normalized(each)), distanceOf(name, each)),
    }))
    .sort((a, b) => a.distance - b.distance)[0]
  return found !== undefined && found.distance <= Math.max(1, found.each.length / 3) ? found.each : undefined
}

/** In lower case and without the unit. These are the most frequent differences between libraries. */
const normalized = (name: string): string => name.replace(/(?:Seconds|Millis(?:econds)?|Ms)$/, '').toLowerCase()

const SYNONYMS: readonly { readonly name: string; readonly words: readonly string[] }[] = [
  { name: 'timeoutSeconds', words: ['ttl', 'expiry', 'expires', 'expiresin', 'lease', 'leasetime', 'duration', 'px'] },
  { name: 'deadlineSeconds', words: ['timeout', 'deadline', 'within'] },
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

/** The options of a call, which an instance accepts in `defaults`. */
const CALL_OPTIONS = new Set([
  ...['timeoutSeconds', 'blockingTimeoutSeconds', 'blocking', 'heartbeat', 'metadata', 'signal'],
  ...['minHoldSeconds', 'maxHoldSeconds'],
])

/** The edit distance: how many characters have to be added, removed, replaced or swapped with their neighbour. */
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
