// @ts-check
// Writes the tables and sentences of docs/performance.md from the figures of a run of the benchmarks.
//
//   npm run bench -- --json figures.json --chart docs/images/performance/ratios.svg
//   node scripts/performance.mjs figures.json
import { readFileSync, writeFileSync } from 'node:fs'
import { slopeInWords } from '../bench/support/slope.mjs'
import { markdown, printTable } from '../bench/support/table.mjs'
import { printTargets } from '../bench/support/targets.mjs'
import { root } from './support/command.mjs'

/** @import { Plot, Table } from '../bench/types.d.ts' */

const PAGE = `${root}docs/performance.md`

const [file] = process.argv.slice(2)
if (file === undefined) {
  process.stderr.write('usage: node scripts/performance.mjs FIGURES.json\n')
  process.exit(2)
}
/** @type {{ machine: { cpu: string, node: string, loadBefore: number }, tables: Table[], plots: Plot[] }} */
const { machine, tables, plots } = JSON.parse(readFileSync(file, 'utf8'))

let page = readFileSync(PAGE, 'utf8')
write(
  'machine',
  `Measured with Node ${machine.node} on ${machine.cpu}, load ${machine.loadBefore.toFixed(1)} before it.`,
)
write('targets', printTargets(tables, { all: true }).trimEnd())
for (const scenario of new Set(tables.map(({ id }) => scenarioOf(id)))) {
  const own = tables.filter(({ id }) => scenarioOf(id) === scenario)
  write(scenario, own.map((table) => printTable(table).trimEnd()).join('\n\n'))
}
for (const plot of plots) {
  write(
    `plot-${plot.id}`,
    markdown(
      ['', 'how the cost grows'],
      plot.lines.map((line) => [line.title, slopeInWords(plot, line)]),
    ),
  )
}
writeFileSync(PAGE, page)

/** @param {string} id */
function scenarioOf(id) {
  return id.slice(0, id.indexOf('/'))
}

/**
 * A block that the page does not have is left out.
 *
 * @param {string} name
 * @param {string} text
 */
function write(name, text) {
  const [begin, end] = [`<!-- ${name}:begin -->`, `<!-- ${name}:end -->`]
  const [from, to] = [page.indexOf(begin), page.indexOf(end)]
  if (from === -1 || to === -1) return
  page = `${page.slice(0, from + begin.length)}\n\n${text}\n\n${page.slice(to)}`
}
