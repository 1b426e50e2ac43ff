// @ts-check
// Measures Holdfast next to its peers and to the bare store: see README.md.
//
//   npm run bench -- --quick
//   npm run bench -- --scenario acquire,hand-offs --driver redis
import { writeFileSync } from 'node:fs'
import { availableParallelism, cpus, loadavg } from 'node:os'
import { resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { scenarios } from './scenarios/index.mjs'
import { drawPlot, drawRatios } from './support/chart.mjs'
import { installPeers } from './support/peers.mjs'
import { slopeInWords } from './support/slope.mjs'
import { openStage } from './support/stage.mjs'
import { printTable } from './support/table.mjs'
import { printTargets } from './support/targets.mjs'

/** @import { DriverName, Plot, Regime, Table } from './types.d.ts' */

const HELP = `npm run bench -- [options]
  --scenario a,b   only these: ${scenarios.map(({ id }) => id).join(', ')}
  --driver a,b     only these: redis, node-redis, postgres, advisory, sqlite, memory, redlock
  --quick          shorter slices, fewer contestants, no growth: about a minute
  --regime short   only short slices, or only steady
  --rounds N       that many rounds in every scenario
  --dist DIR       also measures the build in DIR
  --no-fsync       PostgreSQL does not wait for the disk
  --targets        prints only the table of targets
  --json FILE      writes every figure
  --chart FILE     writes a chart of the ratios as SVG, and a plot beside it for each growth
`

const { values } = parseArgs({
  options: {
    scenario: { type: 'string' },
    driver: { type: 'string' },
    quick: { type: 'boolean', default: false },
    regime: { type: 'string' },
    rounds: { type: 'string' },
    dist: { type: 'string' },
    'no-fsync': { type: 'boolean', default: false },
    targets: { type: 'boolean', default: false },
    json: { type: 'string' },
    chart: { type: 'string' },
    help: { type: 'boolean', default: false },
  },
})
if (values.help) process.stdout.write(HELP)
else await main()

async function main() {
  const selected = choose()
  await installPeers()
  const regimes = /** @type {Regime[]} */ (
    values.regime?.split(',') ?? (values.quick ? ['short'] : ['short', 'steady'])
  )
  const settings = {
    quick: values.quick,
    regimes,
    drivers: /** @type {DriverName[] | undefined} */ (values.driver?.split(',')),
    otherDist: values.dist === undefined ? undefined : resolve(values.dist),
    rounds: values.rounds === undefined ? undefined : Number(values.rounds),
    fsync: !values['no-fsync'],
  }
  /** @type {Table[]} */
  const tables = []
  /** @type {Plot[]} */
  const plots = []
  const machine = {
    cpu: `${availableParallelism()} × ${cpus()[0]?.model}`,
    node: process.version,
    loadBefore: loadavg()[0],
  }
  say(`Node ${machine.node}, ${machine.cpu}, load ${machine.loadBefore?.toFixed(1)}${values.quick ? ', quick' : ''}\n`)
  const stage = openStage(settings, {
    onTable(table) {
      tables.push(table)
      say(printTable(table))
    },
    onPlot(plot) {
      plots.push(plot)
      for (const line of plot.lines) say(`${plot.title}, ${line.title}: ${slopeInWords(plot, line)}`)
      say('')
    },
  })
  // The harness ends the servers when this process ends.
  for (const signal of /** @type {const} */ (['SIGINT', 'SIGTERM', 'SIGHUP'])) process.on(signal, () => process.exit(1))
  try {
    for (const scenario of selected) {
      // The others are still measured.
      await scenario.run(stage).catch((error) => {
        process.exitCode = 1
        process.stderr.write(`${scenario.id} failed: ${error instanceof Error ? error.stack : error}\n\n`)
      })
      // After each, because a run takes long and may be ended before its end.
      if (values.json) {
        writeFileSync(values.json, `${JSON.stringify({ machine, settings, tables, plots }, null, 1)}\n`)
      }
    }
  } finally {
    await stage[Symbol.asyncDispose]()
  }
  const all = values.scenario === undefined && values.driver === undefined
  process.stdout.write(printTargets(tables, { all }))
  if (values.chart) {
    writeFileSync(values.chart, drawRatios(tables))
    for (const plot of plots) writeFileSync(values.chart.replace(/(\.svg)?$/, `-${plot.id}.svg`), drawPlot(plot))
  }
}

function choose() {
  // These take minutes, so a quick run has them only on request.
  const wanted = values.scenario?.split(',')
  if (wanted === undefined) return scenarios.filter(({ id }) => !(values.quick && /^growth|^capacity/.test(id)))
  const unknown = wanted.find((id) => !scenarios.some((each) => each.id === id))
  if (unknown !== undefined) throw new Error(`unknown scenario ${unknown}\n${HELP}`)
  return scenarios.filter(({ id }) => wanted.includes(id))
}

/** @param {string} text */
function say(text) {
  if (!values.targets) process.stdout.write(`${text}\n`)
}
