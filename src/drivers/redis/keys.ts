import { isStorable } from '../../core/arguments.ts'
import { InvalidArgumentError } from '../../core/errors.ts'

/** The keys of a lock. `protocol/redis/README.md` has the rules. */
export interface LockKeys {
  /** The lock's own key, which other lock clients use, too. */
  readonly plain: string
  readonly data: string
  readonly order: string
}

export function lockKeys(prefix: string, lockName: string): LockKeys {
  const plain = prefix + lockName
  return { plain, data: siblingKey(plain, 'd'), order: siblingKey(plain, 'o') }
}

/** The keys of several locks as scripts take them: the plain keys, then the data, then the order of each. */
export function keysOf(prefix: string, locks: readonly { readonly lockName: string }[]): string[] {
  const count = locks.length
  const keys = new Array<string>(3 * count)
  for (let index = 0; index < count; index += 1) {
    const { plain, data, order } = lockKeys(prefix, (locks[index] as { lockName: string }).lockName)
    keys[index] = plain
    keys[count + index] = data
    keys[2 * count + index] = order
  }
  return keys
}

/**
 * All keys of the driver's own begin with this, so no plain key may. A lock named `holdfast:token` would be the token
 * counter.
 */
const OWN_KEYS = 'holdfast:'

export const isOwnKey = (key: string): boolean => key.startsWith(OWN_KEYS)

/**
 * Whether a lock name can reach the driver's own keys under this prefix. With `lock:`, none can, and no name has to be
 * checked.
 */
export const reachesOwnKeys = (prefix: string): boolean => OWN_KEYS.startsWith(prefix) || isOwnKey(prefix)

/** Undefined if the name is allowed under this prefix. */
export const ownKeyError = (prefix: string, lockName: string): InvalidArgumentError | undefined =>
  isOwnKey(prefix + lockName)
    ? new InvalidArgumentError(
        'lockName',
        lockName,
        `a name whose key does not begin with "${OWN_KEYS}", which is reserved for the driver's own keys`,
      )
    : undefined

export function checkPrefix(prefix: unknown): asserts prefix is string {
  if (typeof prefix === 'string' && isStorable(prefix) && !isOwnKey(prefix)) return
  const rule = `a string without NUL and lone surrogates that does not begin with "${OWN_KEYS}", which is reserved`
  throw new InvalidArgumentError('prefix', prefix, rule)
}

/** Another key of the same slot. No two keys have the same sibling. */
export function siblingKey(key: string, kind: 'd' | 'o' | 'f' | 'b' | `r${string}`): string {
  if (!key.includes('}')) return `holdfast:{${key}}:${kind}`
  // The key has a hash tag, or its closing brace would end ours early. Then the key follows behind the tag.
  return `holdfast:{${hashTag(key) ?? slotTag(slotOf(key))}}:${kind}:${key}`
}

/** The plain key that a data key belongs to. */
export function plainOfData(data: string): string | undefined {
  const tagged = /^holdfast:\{([^}]+)\}:d(?::(.+))?$/s.exec(data)
  return tagged === null ? undefined : (tagged[2] ?? tagged[1])
}

export const COUNTER = 'holdfast:token'
/** On a Cluster each slot has its own counter, because a script can only use the keys of one slot. */
export const slotCounter = (slot: number): string => `holdfast:{${slotTag(slot)}}:token`

/** The key that says since when a Redlock node has forgotten nothing. */
export const VOTER = 'holdfast:voter'

/** The key that keeps a node from repairing leases on this name that were ended by force. */
export const barKey = (prefix: string, lockName: string): string => siblingKey(prefix + lockName, 'b')

/** The channel on which every forced release is published. */
export const FORCED_CHANNEL = 'holdfast:forced'

/** The channel for the grants of one client. Sharded publishing needs a channel in the slot of the lock. */
export const channelOf = (clientId: string, slot?: number): string =>
  slot === undefined ? `holdfast:wake:${clientId}` : `holdfast:{${slotTag(slot)}}:wake:${clientId}`

/** The key of one rate limit. All limits of one name are in one slot, so that one script can charge them together. */
export const rateKey = (prefix: string, name: string, limitId: string): string =>
  siblingKey(prefix + name, `r${limitId}`)

/** The plain key and the limit's id of a rate's key. */
export function rateOfKey(key: string): { plain: string; id: string } | undefined {
  const [, tag, id, plain] = /^holdfast:\{([^}]+)\}:r(\d+\/\d+\/\d+)(?::(.+))?$/s.exec(key) ?? []
  return tag === undefined || id === undefined ? undefined : { plain: plain ?? tag, id }
}

export const slotOf = (key: string): number => slotOfText(hashTag(key) ?? key)

/**
 * A key of the same slot that every client library hashes as the server does. For `{}a}`, the hash library that clients
 * use takes the tag behind the empty one. node-redis 5 then follows redirections between wrong nodes until it gives up.
 */
export const routingKey = (key: string): string => (key.includes('{}') ? slotCounter(slotOf(key)) : key)

/** The part that Redis Cluster hashes instead of the key: between the first `{` and the next `}`, unless empty. */
function hashTag(key: string): string | undefined {
  const open = key.indexOf('{')
  if (open === -1) return undefined
  const close = key.indexOf('}', open + 1)
  return close > open + 1 ? key.slice(open + 1, close) : undefined
}

/** The smallest whole number whose decimal digits hash to the slot. */
function slotTag(slot: number): string {
  tags ??= makeTags()
  return tags[slot] as string
}

let tags: string[] | undefined

function makeTags(): string[] {
  const found = new Array<string>(SLOTS)
  let missing = SLOTS
  for (let number = 0; missing > 0; number += 1) {
    const text = `${number}`
    const slot = slotOfText(text)
    if (found[slot] !== undefined) continue
    found[slot] = text
    missing -= 1
  }
  return found
}

const slotOfText = (text: string): number => crc16(text) % SLOTS

const SLOTS = 16_384

/** CRC-16/XMODEM, as Redis Cluster defines it, over the text's UTF-8 bytes. */
function crc16(text: string): number {
  let crc = 0
  for (let index = 0; index < text.length; index += 1) {
    const code = text.charCodeAt(index)
    if (code > 0x7f) return crcOfBytes(new TextEncoder().encode(text))
    crc = ((crc << 8) ^ (TABLE[(crc >> 8) ^ code] as number)) & 0xffff
  }
  return crc
}

function crcOfBytes(bytes: Uint8Array): number {
  let crc = 0
  for (const byte of bytes) crc = ((crc << 8) ^ (TABLE[(crc >> 8) ^ byte] as number)) & 0xffff
  return crc
}

const TABLE = Uint16Array.from({ length: 256 }, (_, byte) => {
  let crc = byte << 8
  for (let bit = 0; bit < 8; bit += 1) crc = crc & 0x8000 ? (crc << 1) ^ 0x1021 : crc << 1
  return crc & 0xffff
})
