// @ts-check
// Draws lines of a terminal as SVG, with colours for light and dark pages.

const CELL = { width: 8.4, height: 19 }
const PADDING = 18

/** The colours of the terminal, for a light and for a dark page. */
const colours = /** @type {const} */ ({
  text: ['#1f2328', '#e6edf3'],
  dim: ['#6e7781', '#8b949e'],
  green: ['#1a7f37', '#3fb950'],
  yellow: ['#9a6700', '#d29922'],
  magenta: ['#8250df', '#bc8cff'],
  red: ['#cf222e', '#ff7b72'],
  cyan: ['#1b7c83', '#39c5cf'],
  page: ['#f6f8fa', '#0d1117'],
})

/** @type {Record<string, string>} ANSI codes that begin a style */
const styles = { 1: 'bold', 2: 'dim', 7: 'reverse', 31: 'red', 32: 'green', 33: 'yellow', 35: 'magenta', 36: 'cyan' }
/** The default colours, which tmux sets beside a style. They end no style. */
const defaults = ['39', '49']

const ESCAPE = '\u001b'
/** A change of style, or text between two of them. */
const STYLED = new RegExp(`${ESCAPE}\\[([\\d;]*)m|([^${ESCAPE}]+)`, 'g')

/** @typedef {{ column: number, text: string, style: string }} Run text of one style */

/**
 * @param {readonly string[]} lines with ANSI codes
 * @param {{ title: string, columns: number }} options
 */
export function terminalPicture(lines, { title, columns }) {
  const width = Math.ceil(columns * CELL.width + 2 * PADDING)
  const height = lines.length * CELL.height + 2 * PADDING
  const texts = lines.flatMap((line, row) => runs(line).flatMap((each) => elements(each, row)))
  const size = `viewBox="0 0 ${width} ${height}" width="${width}" height="${height}"`
  return `<svg xmlns="http://www.w3.org/2000/svg" ${size} role="img">
<title>${escaped(title)}</title>
<style>
${css(0)}
@media (prefers-color-scheme: dark) {
${css(1)}
}
text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre }
.bold { font-weight: bold }
</style>
<rect class="page" width="100%" height="100%" rx="8"/>
${texts.join('\n')}
</svg>
`
}

/** @param {0 | 1} theme */
const css = (theme) =>
  Object.entries(colours)
    .map(([name, pair]) => `.${name}${aliases[name] ?? ''} { fill: ${pair[theme]} }`)
    .join('\n')

/** @type {Record<string, string>} */
const aliases = { text: ', .bold', page: ', .reverse' }

/**
 * Each run has its own place and length, so that columns stay aligned in a font whose signs have another width.
 *
 * @param {Run} run
 * @param {number} row
 */
function elements({ column, text, style }, row) {
  const x = (PADDING + column * CELL.width).toFixed(1)
  const top = PADDING + row * CELL.height
  const width = ([...text].length * CELL.width).toFixed(1)
  const length = `textLength="${width}" lengthAdjust="spacingAndGlyphs"`
  const written = `<text class="${style}" x="${x}" y="${top + 14}" ${length}>${escaped(text)}</text>`
  if (style !== 'reverse') return [written]
  return [`<rect class="text" x="${x}" y="${top - 1}" width="${width}" height="${CELL.height}"/>`, written]
}

/**
 * @param {string} line
 * @returns {Run[]}
 */
function runs(line) {
  let style = 'text'
  let column = 0
  /** @type {Run[]} */
  const found = []
  for (const [, codes, text = ''] of line.matchAll(STYLED)) {
    if (codes !== undefined) {
      for (const code of codes.split(';')) if (!defaults.includes(code)) style = styles[code] ?? 'text'
      continue
    }
    // Space between words of one line is drawn by the place of the next run, unless it has a colour of its own.
    const parts = style === 'reverse' ? [{ index: 0, 0: text }] : text.matchAll(/\S+(?: \S+)*/g)
    for (const part of parts) {
      found.push({ column: column + [...text.slice(0, part.index)].length, text: part[0], style })
    }
    column += [...text].length
  }
  return found
}

/** @param {string} text */
const escaped = (text) => text.replaceAll('&', '&amp;').replaceAll('<', '&lt;')
