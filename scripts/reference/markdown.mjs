// @ts-check
// Markdown of the generated pages: sentences, table cells, and lines of at most 120 columns.

const COLUMNS = 120

/**
 * Up to the first period that ends a sentence, and not one inside of code or brackets.
 *
 * @param {string} text
 */
export function firstSentence(text) {
  let inCode = false
  let depth = 0
  for (const [index, char] of [...text].entries()) {
    if (char === '`') inCode = !inCode
    if (!inCode && char === '(') depth += 1
    if (!inCode && char === ')') depth -= 1
    const ends = char === '.' && !inCode && depth === 0 && /^(?:\s|$)/.test(text.slice(index + 1))
    if (ends) return text.slice(0, index + 1)
    if (text.startsWith('\n\n', index)) return text.slice(0, index)
  }
  return text
}

/**
 * The anchor that code hosts make from a heading.
 *
 * @param {string} heading
 */
export const slug = (heading) =>
  heading
    .toLowerCase()
    .replaceAll(/[^\w\s-]/g, '')
    .replaceAll(/\s/g, '-')

/** @param {string} text */
export const cell = (text) => text.replaceAll(/\s+/g, ' ').replaceAll('|', '\\|').trim()

/** @param {string} text paragraphs with an empty line between them */
export const paragraph = (text) =>
  text
    .split('\n\n')
    .map((each) => wrapped(each, ''))
    .join('\n\n')

/** @param {string} text */
export const bullet = (text) => `- ${wrapped(text, '  ')}`

/**
 * Breaks between words, and inside of code only where that alone is longer than a line.
 *
 * @param {string} text
 * @param {string} indent of all lines but the first
 */
function wrapped(text, indent) {
  /** @type {string[]} */
  const lines = []
  const words = (text.match(/(?:`[^`]*`|\S)+/g) ?? []).flatMap((word) =>
    word.length > COLUMNS - 4 ? word.split(' ') : [word],
  )
  for (const word of words) {
    const last = lines.at(-1)
    if (last === undefined) lines.push(word)
    else if (last.length + word.length + 1 + 2 > COLUMNS) lines.push(indent + word)
    else lines[lines.length - 1] = `${last} ${word}`
  }
  return lines.join('\n')
}
