// @ts-check
// Writes the tables, sentences and charts of docs/performance.md and docs/performance-tables.md from the figures of a
// run of the benchmarks.
//
//   npm run bench -- --json figures.json
//   node scripts/performance.mjs figures.json …
//
// The figures may be of several runs. A table of a later one replaces the same table of an earlier one.
import { readFileSync, writeFileSync } from 'node:fs'
import { drawPlot, drawRatios } from '../bench/support/chart.mjs'
import { slopeInWords } from '../bench/support/slope.mjs'
import { markdown, printTable } from '../bench/support/table.mjs'
import { printTargets } from '../bench/support/targets.mjs'
import { root } from './support/command.mjs'

/** @import { Plot, Table } from '../bench/types.d.ts' */

const IMAGES = `${root}docs/images/performance/`
const PAGES = ['docs/performance.md', 'docs/performance-tables.md'].map((page) => root + page)

const files = process.argv.slice(2)
if (files.length === 0) {
  process.stderr.write('usage: node scripts/performance.mjs FIGURES.json …\n')
  process.exit(2)
}
/** @type {{ machine: { cpu: string, node: string, loadBefore: number }, tables: Table[], plots: Plot[] }[]} */
const runs = files.map((file) => JSON.parse(readFileSync(file, 'utf8')))
/** @type {Map<string, Table>} */
const byId = new Map()
for (const table of runs.flatMap((run) => run.tables)) byId.set(`${table.id} ${table.regime}`, table)
const tables = [...byId.values()]
const plots = runs.flatMap((run) => run.plots)

const texts = new Map(PAGES.map((page) => [page, readFileSync(page, 'utf8')]))
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
for (const [page, text] of texts) writeFileSync(page, text)
// Only short slices, or the chart would be twice as long.
const drawn = tables.filter(
  ({ id, regime }) => /^(acquire|hand-offs|waiters|wake-up|rate)/.test(id) && regime !== 'steady',
)
writeFileSync(`${IMAGES}ratios.svg`, drawRatios(drawn))
for (const plot of plots) writeFileSync(`${IMAGES}${plot.id}.svg`, drawPlot(plot))

/** @param {string} id */
function scenarioOf(id) {
  return id.slice(0, id.indexOf('/'))
}

/**
 * Fills a block on every page that has it.
 *
 * @param {string} name
 * @param {string} block
 */
function write(name, block) {
  const [begin, end] = [`<!-- ${name}:begin -->`, `<!-- ${name}:end -->`]
  for (const [page, text] of texts) {
    const [from, to] = [text.indexOf(begin), text.indexOf(end)]
    if (from === -1 || to === -1) continue
    texts.set(page, `${text.slice(0, from + begin.length)}\n\n${block}\n\n${text.slice(to)}`)
  }
}
