import { withoutSecrets } from '../core/secrets.ts'

/** One line on standard error. What others wrote, such as a lock name or a server's error, cannot steer the terminal. */
export function say(text: string): void {
  process.stderr.write(`holdfast: ${printable(withoutSecrets(text))}\n`)
}

/**
 * Text as a terminal may show it. Lock names, holder ids and metadata are written by any client of the store: one with
 * an escape sequence in it could rewrite the lines above, and one with a change of direction could pass for another.
 */
export const printable = (text: string): string => text.replaceAll(UNPRINTABLE, escaped)

/** JSON with the same characters escaped: `JSON.stringify` leaves DEL, C1 and the marks of direction as they are. */
export const printableJson = (value: unknown): string => printable(JSON.stringify(value))

/** C0, DEL, C1, separators of lines, marks of direction, and what has no width. */
const UNPRINTABLE =
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what it looks for
  /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2064\u2066-\u2069\ufeff\ufff9-\ufffb]/g

const escaped = (character: string): string => `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`
