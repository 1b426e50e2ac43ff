import { existsSync, mkdirSync, writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { chartOf } from './chart.ts'
import { runChurn } from './churn.ts'
import { judge } from './judge.ts'
import { exitCodeOf, mib, reportOf, tableOf } from './report.ts'
import { type RollingOptions, rollRestarts } from './rolling-restart.ts'
import { runSoak, type Sample, type SoakOptions } from './run-soak.ts'
import { runWaiters } from './waiters.ts'

const USAGE = `npm run soak -- --driver NAME [options]
       npm run soak -- --rolling-restart kept|none [--seconds N] [--leases N] [--longest-ttl N] [--restart-every N]
       npm run soak -- --churn N [--seconds N] [--sample-every N]
       npm run soak -- --waiters N [--processes N] [--busy N] [--seconds N]

  --driver NAME              redis, postgres
  --minutes N, --seconds N   how long leases come and go (default: 30 minutes)
  --leases N                 how many are held at a time (default: 10000)
  --seed TEXT                decides every random choice (default: 1)
  --longest-ttl SECONDS      TTL of the longest lease (default: 120)
  --sample-every SECONDS     (default: 10)
  --cut-every SECONDS        average time between two cut connections (default: 20)
  --dist PATH                the built package under test (default: dist of this repository)
  --out FOLDER               folder of the report (default: .cache/soak/DRIVER-SEED)

  --rolling-restart DATA     holds leases on Redlock while its servers restart in turn, with their data (kept) or
                             without (none). Defaults: 5 minutes, 50 leases, a TTL of 10 s
  --restart-every SECONDS    time between two restarts (default: 40)

  --churn N                  acquires and releases N locks a second on PostgreSQL: sizes and times must not grow.
                             Default: 10 minutes
  --waiters N                hands one lock of PostgreSQL over between N waiters, with old statistics. Default: 30 s
  --processes N, --busy N    how many processes wait (default: 2), and how many use the processor (default: 2)
`

/** Returns the exit code. `root` is the folder of the repository. */
export async function main(args: string[], root: string): Promise<number> {
  let options: ReturnType<typeof readOptions>
  try {
    options = readOptions(args, root)
  } catch (error) {
    process.stderr.write(`${(error as Error).message}\n\n${USAGE}`)
    return 2
  }
  if ('mode' in options) return options.mode()
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

/** The exit code is 2 if no server was restarted twice. */
async function roll(options: RollingOptions): Promise<number> {
  const onRestart = (node: number, held: number): void =>
    void process.stdout.write(`${held} leases are held. Server ${node + 1} restarts\n`)
  const { granted, restarts, lost } = await rollRestarts({ ...options, onRestart })
  process.stdout.write(`${lost} of ${granted} leases were lost in ${restarts} restarts (data ${options.data})\n`)
  if (lost > 0) return 1
  return restarts > 3 ? 0 : 2
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

/** Another program of this folder, which returns the exit code. */
interface Mode {
  mode(): Promise<number>
}

function readOptions(args: string[], root: string): (SoakOptions & { out: string }) | Mode {
  const { values } = parseArgs({
    args,
    options: {
      driver: { type: 'string', default: '' },
      minutes: { type: 'string' },
      seconds: { type: 'string' },
      leases: { type: 'string' },
      seed: { type: 'string', default: '1' },
      'longest-ttl': { type: 'string' },
      'rolling-restart': { type: 'string' },
      'restart-every': { type: 'string', default: '40' },
      churn: { type: 'string' },
      waiters: { type: 'string' },
      processes: { type: 'string', default: '2' },
      busy: { type: 'string', default: '2' },
      'sample-every': { type: 'string', default: '10' },
      'cut-every': { type: 'string', default: '20' },
      dist: { type: 'string', default: root },
      out: { type: 'string' },
    },
  })
  const { driver, seed, 'rolling-restart': data } = values
  const secondsOr = (minutes: string): number =>
    values.seconds === undefined
      ? numberOf('minutes', values.minutes ?? minutes) * 60
      : numberOf('seconds', values.seconds)
  if (data !== undefined) {
    if (data !== 'kept' && data !== 'none') {
      throw new RangeError(`--rolling-restart must be kept or none, but is ${JSON.stringify(data)}`)
    }
    const rolling = {
      data,
      seconds: secondsOr('5'),
      leases: Math.round(numberOf('leases', values.leases ?? '50')),
      ttlSeconds: numberOf('longest-ttl', values['longest-ttl'] ?? '10'),
      everySeconds: numberOf('restart-every', values['restart-every']),
      dist: distAt(values.dist),
    } as const
    return { mode: () => roll(rolling) }
  }
  if (values.churn !== undefined) {
    const churning = {
      perSecond: numberOf('churn', values.churn),
      seconds: secondsOr('10'),
      sampleEverySeconds: numberOf('sample-every', values['sample-every']),
      dist: distAt(values.dist),
    }
    return { mode: () => runChurn(churning) }
  }
  if (values.waiters !== undefined) {
    const waiting = {
      waiters: Math.round(numberOf('waiters', values.waiters)),
      processes: Math.round(numberOf('processes', values.processes)),
      busy: Number(values.busy),
      seconds: secondsOr('0.5'),
      dist: distAt(values.dist),
    }
    return { mode: () => runWaiters(waiting) }
  }
  if (driver !== 'redis' && driver !== 'postgres') {
    throw new RangeError(`--driver must be one of redis, postgres, but is ${JSON.stringify(driver)}`)
  }
  return {
    driver,
    seed,
    seconds: secondsOr('30'),
    leases: Math.round(numberOf('leases', values.leases ?? '10000')),
    longestTtlSeconds: numberOf('longest-ttl', values['longest-ttl'] ?? '120'),
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
