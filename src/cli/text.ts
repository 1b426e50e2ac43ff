import { withoutSecrets } from '../core/secrets.ts'

/** Prints a line on standard error. Text from outside, such as a lock name or a server's error, is made printable. */
export function say(text: string): void {
  process.stderr.write(`holdfast: ${printable(withoutSecrets(text))}\n`)
}

/**
 * Escapes what a terminal would act on. Any client of the store can write lock names, holder ids and metadata.
 * An escape sequence in one could rewrite the lines above it, and a direction mark could make one look like another.
 */
export const printable = (text: string): string => text.replaceAll(UNPRINTABLE, escaped)

/** JSON with the same characters escaped. `JSON.stringify` does not escape DEL, C1 and direction marks. */
export const printableJson = (value: unknown): string => printable(JSON.stringify(value))

/** C0, DEL, C1, line separators, direction marks and characters without width. */
const UNPRINTABLE =
  // biome-ignore lint/suspicious/noControlCharactersInRegex: it looks for control characters
  /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2064\u2066-\u2069\ufeff\ufff9-\ufffb]/g

const escaped = (character: string): string => `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`
