import { existsSync, mkdirSync, writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { chartOf } from './chart.ts'
import { judge } from './judge.ts'
import { exitCodeOf, mib, reportOf, tableOf } from './report.ts'
import { runSoak, type Sample, type SoakOptions } from './run-soak.ts'

const USAGE = `npm run soak -- --driver NAME [options]

  --driver NAME              redis, postgres
  --minutes N, --seconds N   how long leases come and go (default: 30 minutes)
  --leases N                 how many are held at a time (default: 10000)
  --seed TEXT                decides every random choice (default: 1)
  --longest-ttl SECONDS      TTL of the longest lease (default: 120)
  --sample-every SECONDS     (default: 10)
  --cut-every SECONDS        average time between two cut connections (default: 20)
  --dist PATH                the built package under test (default: dist of this repository)
  --out FOLDER               folder of the report (default: .cache/soak/DRIVER-SEED)
`

/** Returns the exit code. `root` is the folder of the repository. */
export async function main(args: string[], root: string): Promise<number> {
  let options: SoakOptions & { out: string }
  try {
    options = readOptions(args, root)
  } catch (error) {
    process.stderr.write(`${(error as Error).message}\n\n${USAGE}`)
    return 2
  }
  const { out } = options
  mkdirSync(out, { recursive: true })
  let soaked: Awaited<ReturnType<typeof runSoak>>
  try {
    soaked = await runSoak({ ...options, onSample: printSample })
  } catch (error) {
    process.stdout.write(`the run failed: ${error instanceof Error ? error.stack : error}\n`)
    return 1
  }
  const report = reportOf(options, soaked, judge(options, soaked))
  writeFileSync(join(out, 'report.json'), `${JSON.stringify(report, undefined, 1)}\n`)
  writeFileSync(join(out, 'chart.svg'), chartOf(report))
  process.stdout.write(`\n${tableOf(report)}report            ${join(out, 'report.json')}\n`)
  return exitCodeOf(report)
}

function printSample({ atSeconds, client, store }: Sample): void {
  const { leases, pending, grants } = client.done
  const { timers, sockets } = client.resources
  process.stdout.write(
    `${atSeconds.toFixed(0).padStart(5)} s: ${leases} leases, ${pending} pending, ${grants} grants; ` +
      `heap ${mib(client.heapBytes)}, RSS ${mib(client.rssBytes)}, ${timers} timers, ${sockets} sockets, ` +
      `loop ${client.worstMs.toFixed(0)} ms; store ${mib(store.bytes)}, ${store.entries} entries, ${store.dead} dead\n`,
  )
}

function readOptions(args: string[], root: string): SoakOptions & { out: string } {
  const { values } = parseArgs({
    args,
    options: {
      driver: { type: 'string', default: '' },
      minutes: { type: 'string' },
      seconds: { type: 'string' },
      leases: { type: 'string', default: '10000' },
      seed: { type: 'string', default: '1' },
      'longest-ttl': { type: 'string', default: '120' },
      'sample-every': { type: 'string', default: '10' },
      'cut-every': { type: 'string', default: '20' },
      dist: { type: 'string', default: root },
      out: { type: 'string' },
    },
  })
  const { driver, seed } = values
  if (driver !== 'redis' && driver !== 'postgres') {
    throw new RangeError(`--driver must be one of redis, postgres, but is ${JSON.stringify(driver)}`)
  }
  return {
    driver,
    seed,
    seconds:
      values.seconds === undefined
        ? numberOf('minutes', values.minutes ?? '30') * 60
        : numberOf('seconds', values.seconds),
    leases: Math.round(numberOf('leases', values.leases)),
    longestTtlSeconds: numberOf('longest-ttl', values['longest-ttl']),
    sampleEverySeconds: numberOf('sample-every', values['sample-every']),
    cutEverySeconds: numberOf('cut-every', values['cut-every']),
    dist: distAt(values.dist),
    out: resolve(values.out ?? join(root, '.cache', 'soak', `${driver}-${seed}`)),
  }
}

function numberOf(option: string, text: string): number {
  const number = Number(text)
  if (!(number > 0)) throw new RangeError(`--${option} must be a number above 0, but is ${JSON.stringify(text)}`)
  return number
}

/** Accepts the folder of a package, or its dist. */
function distAt(path: string): string {
  const found = [join(path, 'dist'), path].find((folder) => existsSync(join(folder, 'index.js')))
  if (found === undefined) throw new RangeError(`no built package at ${path}: run "npm run build" there`)
  return resolve(found)
}
