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
