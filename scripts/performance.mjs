// @ts-check
// Writes the tables and sentences of docs/performance.md from the figures of a run of the benchmarks.
//
//   npm run bench -- --json figures.json --chart docs/images/performance/ratios.svg
//   node scripts/performance.mjs figures.json …
//
// The figures may be of several runs, with different scenarios.
import { readFileSync, writeFileSync } from 'node:fs'
import { slopeInWords } from '../bench/support/slope.mjs'
import { markdown, printTable } from '../bench/support/table.mjs'
import { printTargets } from '../bench/support/targets.mjs'
import { root } from './support/command.mjs'

/** @import { Plot, Table } from '../bench/types.d.ts' */

const PAGE = `${root}docs/performance.md`

const files = process.argv.slice(2)
if (files.length === 0) {
  process.stderr.write('usage: node scripts/performance.mjs FIGURES.json …\n')
  process.exit(2)
}
/** @type {{ machine: { cpu: string, node: string, loadBefore: number }, tables: Table[], plots: Plot[] }[]} */
const runs = files.map((file) => JSON.parse(readFileSync(file, 'utf8')))
const tables = runs.flatMap((run) => run.tables)
const plots = runs.flatMap((run) => run.plots)

let page = readFileSync(PAGE, 'utf8')
const loads = runs.map(({ machine }) => machine.loadBefore.toFixed(1)).join(' and ')
write(
  'machine',
  `Node ${runs[0]?.machine.node}, ${runs[0]?.machine.cpu}. The load was ${loads} before the measurement.`,
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
