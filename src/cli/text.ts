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

/** Control and format characters, line separators, and all characters without width, such as variation selectors. */
const UNPRINTABLE = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]/gu

/** One escape for each UTF-16 unit, as in JSON. */
const escaped = (character: string): string =>
  character
    .split('')
    .map((unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`)
    .join('')
