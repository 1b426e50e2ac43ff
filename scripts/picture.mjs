// @ts-check
// Draws docs/images/demo.svg from a real run of the demo, with colours for light and dark pages: npm run picture
import { mkdirSync, writeFileSync } from 'node:fs'
import { stripVTControlCharacters as plain } from 'node:util'
import { isMain, root, run } from './support/command.mjs'

const file = 'docs/images/demo.svg'

/** The picture leaves out the race, which is long, and the header, which names a folder of this machine. */
const from = '2  The holder dies'
const until = /^processes \d+, grants/

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
const styles = { 1: 'bold', 2: 'dim', 31: 'red', 32: 'green', 33: 'yellow', 35: 'magenta', 36: 'cyan' }

const ESCAPE = '\u001b'
/** A change of style, or text between two of them. */
const STYLED = new RegExp(`${ESCAPE}\\[(\\d*)m|([^${ESCAPE}]+)`, 'g')

/** @typedef {{ column: number, text: string, style: string }} Run text of one style */

/**
 * @param {string} output of the demo, with ANSI codes
 */
export function picture(output) {
  const lines = output.split('\n')
  const legend = lines.find((line) => plain(line).includes('holds   ')) ?? ''
  const start = lines.findIndex((line) => plain(line).startsWith(from))
  const end = lines.findIndex((line) => until.test(plain(line)))
  if (start === -1 || end === -1) throw new Error(`The demo did not run to its end:\n${output}`)
  const shown = [`${ESCAPE}[1m$ npm run demo${ESCAPE}[22m`, legend, '', ...lines.slice(start, end)]
  while (plain(shown.at(-1) ?? '').trim() === '') shown.pop()
  const columns = Math.max(...shown.map((line) => [...plain(line)].length))
  const width = Math.ceil(columns * CELL.width + 2 * PADDING)
  const height = shown.length * CELL.height + 2 * PADDING
  const texts = shown.flatMap((line, row) => runs(line).map((each) => textElement(each, row)))
  const size = `viewBox="0 0 ${width} ${height}" width="${width}" height="${height}"`
  return `<svg xmlns="http://www.w3.org/2000/svg" ${size} role="img">
<title>npm run demo: a killed holder is followed after its lease, and a paused holder's late write is refused</title>
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
    .map(([name, pair]) => `.${name}${name === 'text' ? ', .bold' : ''} { fill: ${pair[theme]} }`)
    .join('\n')

/**
 * Each run has its own place and length, so that columns stay aligned in a font whose signs have another width.
 *
 * @param {Run} run
 * @param {number} row
 */
function textElement({ column, text, style }, row) {
  const x = (PADDING + column * CELL.width).toFixed(1)
  const y = PADDING + row * CELL.height + 14
  const length = `textLength="${([...text].length * CELL.width).toFixed(1)}" lengthAdjust="spacingAndGlyphs"`
  return `<text class="${style}" x="${x}" y="${y}" ${length}>${escaped(text)}</text>`
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
  for (const [, code, text = ''] of line.matchAll(STYLED)) {
    if (code !== undefined) {
      style = styles[code] ?? 'text'
      continue
    }
    // Space between words of one line is drawn by the place of the next run.
    for (const part of text.matchAll(/\S+(?: \S+)*/g)) {
      found.push({ column: column + [...text.slice(0, part.index)].length, text: part[0], style })
    }
    column += [...text].length
  }
  return found
}

/** @param {string} text */
const escaped = (text) => text.replaceAll('&', '&amp;').replaceAll('<', '&lt;')

if (isMain(import.meta.url)) {
  const env = { ...process.env, FORCE_COLOR: '1' }
  const { code, stdout, output } = await run(process.execPath, ['examples/demo/main.mjs'], { env })
  if (code !== 0) throw new Error(`The demo failed:\n${output}`)
  mkdirSync(`${root}docs/images`, { recursive: true })
  writeFileSync(`${root}${file}`, picture(stdout))
}
