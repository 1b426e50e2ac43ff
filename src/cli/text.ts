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

/** How a part of the output is drawn on a terminal. */
export type Style = keyof typeof CODES

export type Paint = (style: Style, text: string) => string

/** Colours for a terminal, and the text as it is for everything else. See no-color.org. */
export function paintFor(stream: { readonly isTTY?: boolean }): Paint {
  const { NO_COLOR = '', TERM } = process.env
  return stream.isTTY === true && NO_COLOR === '' && TERM !== 'dumb' ? colourful : plain
}

export const colourful: Paint = (style, text) => (text === '' ? '' : `\u001b[${CODES[style]}m${text}\u001b[0m`)

export const plain: Paint = (_, text) => text

const CODES = { bold: 1, dim: 2, red: 31, green: 32, yellow: 33, cyan: 36 }

/** How many columns of a terminal a text takes. Control characters must be escaped before: see `printable`. */
export function textWidth(text: string): number {
  if (isNarrow(text)) return text.length
  let width = 0
  for (const character of text) width += widthOf(character)
  return width
}

/** The beginning of a text that fits `width` columns, with an ellipsis if it is cut. */
export function cutText(text: string, width: number): string {
  if (textWidth(text) <= width) return text
  return width < 1 ? '' : `${beginning(text, width - 1)}…`
}

/** A text of exactly `width` columns. */
export function padText(text: string, width: number): string {
  const fitting = cutText(text, width)
  return fitting + ' '.repeat(width - textWidth(fitting))
}

/** A text in lines of at most `width` columns. */
export function wrapText(text: string, width: number): string[] {
  const lines: string[] = []
  let rest = text
  while (textWidth(rest) > width) {
    // At least one character, also where a wide one does not fit.
    const line = beginning(rest, width) || [...rest].slice(0, 1).join('')
    lines.push(line)
    rest = rest.slice(line.length)
  }
  return rest === '' && lines.length > 0 ? lines : [...lines, rest]
}

function beginning(text: string, width: number): string {
  let left = width
  let end = 0
  for (const character of text) {
    left -= widthOf(character)
    if (left < 0) break
    end += character.length
  }
  return text.slice(0, end)
}

const widthOf = (character: string): number => (ZERO.test(character) ? 0 : WIDE.test(character) ? 2 : 1)

/** Most names are plain ASCII. */
const isNarrow = (text: string): boolean => /^[ -~]*$/.test(text)

/** Marks that are drawn over the character before them. */
const ZERO = /[\p{Mn}\p{Me}\u1160-\u11ff]/u

/** East Asian wide and fullwidth characters, and emoji. */
const WIDE = new RegExp(
  '[\\u1100-\\u115f\\u2e80-\\u303e\\u3041-\\ua4cf\\ua960-\\ua97c\\uac00-\\ud7a3\\uf900-\\ufaff\\ufe30-\\ufe6f' +
    '\\uff01-\\uff60\\uffe0-\\uffe6\\u{16fe0}-\\u{18d08}\\u{1aff0}-\\u{1b2fb}\\u{1f200}-\\u{1f265}' +
    '\\u{20000}-\\u{3fffd}\\p{Emoji_Presentation}]',
  'u',
)

export const compareTexts = (a: string, b: string): number => (a < b ? -1 : a > b ? 1 : 0)
