// @ts-check
// Writes the tables of docs/evidence.md from the reports of runs, and copies their charts to docs/images/evidence.
//
//   node scripts/evidence.mjs FOLDER
//
// The folder has what the runs have written with --out or --json. What is missing leaves its table as it is:
//
//   chaos-DRIVER/report.json, chart.svg   npm run chaos -- --driver DRIVER --minutes 20 --out FOLDER/chaos-DRIVER
//   explore.json                          npm run explore -- --json FOLDER/explore.json
//   model.json                            npm run model -- --json | tail -1 > FOLDER/model.json
//   mutants.json                          npm run mutants -- --out FOLDER/mutants.json
import { copyFileSync, existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { root } from './support/command.mjs'

const PAGE = `${root}docs/evidence.md`
const IMAGES = `${root}docs/images/evidence`
const DRIVERS = ['redis', 'redlock', 'cluster', 'postgres', 'advisory', 'sqlite']

const [folder] = process.argv.slice(2)
if (folder === undefined || !existsSync(folder)) {
  process.stderr.write('usage: node scripts/evidence.mjs FOLDER\n')
  process.exit(2)
}

/** @type {{ driver: string, report: import('../chaos/report.ts').Report }[]} */
const chaos = DRIVERS.flatMap((driver) => {
  const report = json(`chaos-${driver}/report.json`)
  return report === undefined ? [] : [{ driver, report }]
})
const [explored, model, mutants] = ['explore.json', 'model.json', 'mutants.json'].map(json)
let page = readFileSync(PAGE, 'utf8')
if (chaos.length > 0) {
  write('chaos', chaosTable())
  write('losses', lossTable())
  write('faults', faultTable())
  copyCharts()
}
if (explored) write('explore', exploreTable(explored))
if (model) write('model', modelTable(model))
if (mutants) write('mutants', mutantTable(mutants))
writeFileSync(PAGE, page)

/** @param {string} name */
function json(name) {
  const file = join(folder ?? '', name)
  return existsSync(file) ? JSON.parse(readFileSync(file, 'utf8')) : undefined
}

/**
 * @param {string} name
 * @param {string} table
 */
function write(name, table) {
  const [begin, end] = [`<!-- ${name}:begin -->`, `<!-- ${name}:end -->`]
  const [from, to] = [page.indexOf(begin), page.indexOf(end)]
  if (from === -1 || to === -1) throw new Error(`${PAGE} has no table "${name}"`)
  page = `${page.slice(0, from + begin.length)}\n${table}\n${page.slice(to)}`
}

function chaosTable() {
  return rows(['', ...chaos.map(({ driver }) => driver)], (add) => {
    add('minutes under faults', (report) => (report.seconds / 60).toFixed(1))
    add('claims', ({ claims }) => count(claims))
    add('grants', ({ grants }) => count(grants))
    add('faults', ({ faults }) => count(faults))
    add('kinds of faults', ({ faultsByKind }) => count(Object.keys(faultsByKind).length))
    add('updates with the token check', ({ writes }) => count(writes))
    add('lost of these', ({ lostUpdates }) => `**${count(lostUpdates.length)}**`)
    add('updates without it', ({ unchecked }) => count(unchecked.writes))
    add('lost of these', ({ unchecked }) => `**${count(unchecked.lost)}**`)
    add('lost right after `held` was true', ({ unchecked }) => count(unchecked.lostAfterCheck))
    add('two holders that the store’s loss explains', ({ excused }) => count(excused['exclusion'] ?? 0))
    add('pairs of waiters in order', ({ orderedPairs }) => count(orderedPairs))
    add('operations checked for linearizability', ({ linear }) => count(linear.operations))
    add('violations of any check', ({ checks }) => `**${count(sum(Object.values(checks)))}**`)
  })
}

function lossTable() {
  const ms = (/** @type {number | undefined} */ value) => (value === undefined ? '' : `${value.toFixed(1)} ms`)
  return rows(['from the deadline to the signal', ...chaos.map(({ driver }) => driver)], (add) => {
    add('losses', ({ signals }) => count(signals.running.count))
    for (const which of /** @type {const} */ (['p50', 'p99', 'worst'])) {
      add(which, ({ signals }) => ms(signals.running[which]))
    }
    add('losses in stalled processes', ({ signals }) => count(signals.stalled.count))
  })
}

function faultTable() {
  const kinds = [...new Set(chaos.flatMap(({ report }) => Object.keys(report.faultsByKind)))].sort()
  return rows(['fault', ...chaos.map(({ driver }) => driver)], (add) => {
    for (const kind of kinds)
      add(`\`${kind}\``, ({ faultsByKind }) => (kind in faultsByKind ? count(faultsByKind[kind]) : ''))
  })
}

function copyCharts() {
  mkdirSync(IMAGES, { recursive: true })
  for (const { driver } of chaos) {
    const chart = join(folder ?? '', `chaos-${driver}/chart.svg`)
    if (existsSync(chart)) copyFileSync(chart, join(IMAGES, `${driver}.svg`))
  }
}

/** @param {import('../chaos/wire/report.ts').Figures} explored */
function exploreTable({ rows: all, seconds, violations, unrepeated }) {
  const stores = [...new Set(all.map(({ store }) => store))].sort()
  const columns = /** @type {const} */ (['messages', 'faults', 'majorities', 'pairs', 'missed', 'grants'])
  const line = (/** @type {string} */ name, /** @type {typeof all} */ some) =>
    cells([name, count(some.length), ...columns.map((key) => count(sum(some.map((row) => row[key]))))])
  const heads = ['messages', 'messages × faults', 'on two nodes', 'pairs of faults', 'missed', 'grants']
  return [
    cells(['store', 'scenes', ...heads]),
    cells(Array.from({ length: 2 + heads.length }, () => '---')),
    ...stores.map((store) =>
      line(
        store,
        all.filter((row) => row.store === store),
      ),
    ),
    line('all', all),
    '',
    `${Math.round(seconds / 60)} minutes, ${violations.length} violations. ` +
      `${count(unrepeated)} cases were slow once, and not again.`,
  ].join('\n')
}

/** @param {Record<string, number>} model */
function modelTable({ states, steps, depth, seconds, violations, mutants, mutantsFound }) {
  return [
    cells(['states', 'steps', 'depth', 'seconds', 'violations', 'mutants found']),
    cells(Array.from({ length: 6 }, () => '---')),
    cells([
      count(states),
      count(steps),
      count(depth),
      count(seconds),
      count(violations),
      `${mutantsFound} of ${mutants}`,
    ]),
  ].join('\n')
}

/** @param {{ mutant: string, breaks: string, caughtBy?: string, seconds: number }[]} mutants */
function mutantTable(mutants) {
  const caught = mutants.filter(({ caughtBy }) => caughtBy !== undefined).length
  return [
    `${caught} of ${mutants.length} were caught.`,
    '',
    cells(['mutant', 'what it breaks', 'caught by', 'after']),
    cells(Array.from({ length: 4 }, () => '---')),
    ...mutants.map(({ mutant, breaks, caughtBy = 'nothing', seconds }) =>
      cells([`\`${mutant}\``, breaks, caughtBy.replaceAll('|', '\\|'), `${seconds.toFixed(1)} s`]),
    ),
  ].join('\n')
}

/**
 * @param {string[]} head
 * @param {(add: (name: string, of: (report: import('../chaos/report.ts').Report) => string) => void) => void} fill
 */
function rows(head, fill) {
  const lines = [cells(head), cells(head.map(() => '---'))]
  fill((name, of) => lines.push(cells([name, ...chaos.map(({ report }) => of(report))])))
  return lines.join('\n')
}

/** @param {string[]} texts */
function cells(texts) {
  return `| ${texts.join(' | ')} |`
}

/** @param {number | undefined} value */
function count(value) {
  return (value ?? 0).toLocaleString('en-US')
}

/** @param {number[]} numbers */
function sum(numbers) {
  return numbers.reduce((total, each) => total + each, 0)
}
