// @ts-check
// Draws docs/images/demo.svg from a real run of the demo, with colours for light and dark pages: npm run picture
import { mkdirSync, writeFileSync } from 'node:fs'
import { stripVTControlCharacters as plain } from 'node:util'
import { isMain, root, run } from './support/command.mjs'
import { terminalPicture } from './support/terminal-picture.mjs'

const file = 'docs/images/demo.svg'

/** The picture leaves out the race, which is long, and the header, which names a folder of this machine. */
const from = '2  The holder dies'
const until = /^processes \d+, grants/

const ESCAPE = '\u001b'

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
  const title = "npm run demo: a killed holder is followed after its lease, and a paused holder's late write is refused"
  return terminalPicture(shown, { title, columns })
}

if (isMain(import.meta.url)) {
  const env = { ...process.env, FORCE_COLOR: '1' }
  const { code, stdout, output } = await run(process.execPath, ['examples/demo/main.mjs'], { env })
  if (code !== 0) throw new Error(`The demo failed:\n${output}`)
  mkdirSync(`${root}docs/images`, { recursive: true })
  writeFileSync(`${root}${file}`, picture(stdout))
}
