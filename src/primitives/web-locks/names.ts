import { createHash } from 'node:crypto'
import type { Metadata } from '../../core/driver.ts'
import { MAX_NAME_LENGTH } from '../../core/limits.ts'

/**
 * Maps a resource name, which may be any JavaScript string, to a lock name, which is 1 to 255 code units of well-formed
 * text without NUL. Different resource names get different lock names.
 *
 * - A code unit that cannot be stored (NUL, a lone surrogate), and `%` itself, becomes `%` and four hexadecimal digits.
 * - The empty string becomes `%`.
 * - A name that is too long becomes `%#` and the SHA-256 of its UTF-16 form. The metadata of the lease then has the
 *   name.
 */
export function storedName(prefix: string, name: string): { lockName: string; metadata?: Metadata } {
  const text = escaped(name)
  if (prefix.length + text.length <= MAX_NAME_LENGTH) return { lockName: prefix + text }
  const kept = text.length <= MAX_KEPT ? text : `${escaped(name.slice(0, MAX_KEPT / 6))}${CUT_OFF}`
  return { lockName: prefix + HASHED + hashOf(name), metadata: { name: kept } }
}

/** The resource name of a lock name. If it is hashed and there is no metadata, the lock name without its prefix. */
export function resourceNameOf(prefix: string, lockName: string, metadata: Metadata | undefined): string {
  const text = lockName.slice(prefix.length)
  if (!text.startsWith(HASHED)) return unescaped(text)
  const kept = metadata?.['name']
  if (typeof kept !== 'string') return text
  return kept.endsWith(CUT_OFF) ? `${unescaped(kept.slice(0, -CUT_OFF.length))}…` : unescaped(kept)
}

const escaped = (name: string): string =>
  name === '' ? '%' : name.replace(UNSTORABLE, (unit) => `%${unit.charCodeAt(0).toString(16).padStart(4, '0')}`)

const unescaped = (text: string): string =>
  text === '%'
    ? ''
    : text.replace(/%([0-9a-f]{4})/g, (_, digits: string) => String.fromCharCode(Number.parseInt(digits, 16)))

/** Of UTF-16: a lone surrogate has no UTF-8 form. */
const hashOf = (name: string): string => createHash('sha256').update(Buffer.from(name, 'utf16le')).digest('hex')

const UNSTORABLE = /[%\0]|[\uD800-\uDBFF](?![\uDC00-\uDFFF])|(?<![\uD800-\uDBFF])[\uDC00-\uDFFF]/g

/** Escaping cannot produce either of these. */
const HASHED = '%#'
const CUT_OFF = '%…'

/** In code units. Even if JSON needs six bytes for each, it fits into the metadata of a lease. */
const MAX_KEPT = 2_400
