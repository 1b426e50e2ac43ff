import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { BestChart } from './chart/best-chart.ts'
import type { Finding } from './checks/run.ts'
import { tooLittle } from './enough.ts'
import { type Episode, planEpisode, runEpisode } from './episode.ts'
import { LoadMeter } from './load.ts'
import { chosen } from './plan.ts'
import { Progress } from './progress.ts'
import { exitCodeOf, type Report, Tally, tableOf } from './report.ts'
import { DRIVERS } from './scenarios/drivers.ts'

const USAGE = `npm run chaos -- --driver NAME [options]

  --driver NAME              ${Object.keys(DRIVERS).join(', ')}
  --minutes N, --seconds N   time under faults (default: 60 seconds)
  --seed TEXT                decides every random choice (default: the time)
  --faults a,b,c             only these kinds of faults
  --fault-every MS           average time between two faults (default: 1200)
  --clients N                client processes (default: 5; with --mixed 6)
  --tasks N                  tasks in each of them (default: 3)
  --names N                  lock names that they contend for (default: 3)
  --longest-ttl SECONDS      TTL of the longest lease (default: 2)
  --mixed                    every second client is a Python process
  --episode N                run only this episode of the seed
  --episode-seconds N        length of an episode (default: 30)
  --until-violation          end after the first episode in which something broke
  --dist PATH                the built package under test (default: dist of this repository)
  --plan                     print the settings and faults, and run nothing
  --out FOLDER               folder of the report (default: .cache/chaos/DRIVER-SEED)
`

/** Returns the exit code. `root` is the folder of the repository. */
export async function main(args: string[], root: string): Promise<number> {
  let options: Options
  try {
    options = readOptions(args, root)
  } catch (error) {
    process.stderr.write(`${(error as Error).message}\n\n${USAGE}`)
    return 2
  }
  const { name, seed, dist, out, meter } = options
  const episodes = options.episodes.map(({ number, seconds }) => {
    const episode = { ...options, seconds, episode: number, seed: `${seed}/${number}` }
    return { ...episode, plan: planEpisode(episode) }
  })
  const plans = episodes.map(({ seed, plan }) => `${JSON.stringify({ seed, ...plan })}\n`).join('')
  if (options.isPlan) {
    process.stdout.write(plans)
    return 0
  }
  const tally = new Tally(name, seed, { holdfast: versionAt(dist), dist, node: process.versions.node })
  const progress = new Progress(process.stdout, episodes.length)
  const chart = new BestChart(join(out, 'chart.svg'), name)
  const startedMs = performance.now()
  mkdirSync(out, { recursive: true })
  writeFileSync(join(out, 'plan.jsonl'), plans)
  const finish = (): Report => {
    const { user, system } = process.cpuUsage()
    const cpuSeconds = { harness: (user + system) / 1e6, ...meter.seconds }
    const report = tally.finish(cpuSeconds, (performance.now() - startedMs) / 1_000)
    writeFileSync(join(out, 'report.json'), `${JSON.stringify(report, undefined, 2)}\n`)
    return report
  }
  for (const [at, options] of episodes.entries()) {
    progress.begin(at + 1, options.seconds)
    try {
      const episode = await runEpisode({ ...options, onFault: (fault) => progress.fault(fault) })
      const findings = tally.add(episode)
      chart.add(episode)
      if (findings.length > 0) keep(episode, findings, join(out, `episode-${options.episode}.json`))
    } catch (error) {
      tally.failed(options.seed, error)
    }
    // After each episode, so that an interrupted run leaves a report.
    const report = finish()
    const { checks, grants, faults } = report
    const found = `${Object.values(checks).reduce((sum, count) => sum + count, 0)} violations`
    progress.end(`episode ${at + 1} of ${episodes.length}: ${grants} grants, ${faults} faults so far; ${found}`)
    if (options.isUntilViolation && exitCodeOf(report) === 1) break
  }
  const kinds = [...new Set(episodes.flatMap(({ plan }) => plan.faults.map(({ kind }) => kind)))]
  tally.report.problems.push(...tooLittle(tally.report, { clients: options.clients, kinds }))
  const report = finish()
  process.stdout.write(`\n${tableOf(report)}report          ${join(out, 'report.json')}\n`)
  return exitCodeOf(report)
}

function keep({ seed, setting, done, losses, histories }: Episode, findings: readonly Finding[], file: string): void {
  writeFileSync(file, JSON.stringify({ seed, setting, findings, done, losses, histories }))
}

type Options = ReturnType<typeof readOptions>

function readOptions(args: string[], root: string) {
  const { values } = parseArgs({
    args,
    options: {
      driver: { type: 'string', default: '' },
      minutes: { type: 'string' },
      seconds: { type: 'string' },
      seed: { type: 'string', default: String(Date.now()) },
      episode: { type: 'string' },
      'episode-seconds': { type: 'string', default: '30' },
      dist: { type: 'string', default: root },
      faults: { type: 'string' },
      'fault-every': { type: 'string', default: '1200' },
      clients: { type: 'string' },
      tasks: { type: 'string' },
      names: { type: 'string' },
      'longest-ttl': { type: 'string' },
      mixed: { type: 'boolean', default: false },
      'until-violation': { type: 'boolean', default: false },
      plan: { type: 'boolean', default: false },
      out: { type: 'string' },
    },
  })
  const name = values.driver
  const scenario = DRIVERS[name]
  if (scenario === undefined) {
    const known = Object.keys(DRIVERS).join(', ')
    throw new RangeError(`--driver must be one of ${known}, but is ${JSON.stringify(name)}`)
  }
  if (values.mixed && !scenario.isMixable) throw new RangeError(`--mixed is not possible with --driver ${name}`)
  const faults = values.faults?.split(',')
  // Before anything is started.
  chosen([], faults, scenario.faultNames)
  const seconds = values.minutes === undefined ? numberOf('seconds', values.seconds ?? '60') : minutesOf(values.minutes)
  const episodeSeconds = numberOf('episode-seconds', values['episode-seconds'])
  return {
    scenario,
    name,
    seed: values.seed,
    episodes: episodesOf(seconds, episodeSeconds, values.episode),
    dist: distAt(values.dist),
    pythonWorker: join(root, 'chaos', 'worker.py'),
    faults,
    faultEveryMs: numberOf('fault-every', values['fault-every']),
    // Mixed: three processes of each language.
    clients: numberOf('clients', values.clients ?? (values.mixed ? '6' : '5')),
    tasks: numberOf('tasks', values.tasks ?? '3'),
    names: numberOf('names', values.names ?? '3'),
    longestTtlSeconds: numberOf('longest-ttl', values['longest-ttl'] ?? '2'),
    isMixed: values.mixed,
    isUntilViolation: values['until-violation'],
    isPlan: values.plan,
    out: resolve(values.out ?? join(root, '.cache', 'chaos', `${name}-${values.seed}`)),
    meter: new LoadMeter(),
  }
}

/** Episodes of equal length, as close to `episodeSeconds` as possible. */
function episodesOf(seconds: number, episodeSeconds: number, only: string | undefined) {
  const count = Math.max(1, Math.round(seconds / episodeSeconds))
  if (only !== undefined) return [{ number: numberOf('episode', only), seconds: seconds / count }]
  return Array.from({ length: count }, (_, at) => ({ number: at + 1, seconds: seconds / count }))
}

const minutesOf = (text: string): number => numberOf('minutes', text) * 60

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

function versionAt(dist: string): string {
  const file = join(dist, '..', 'package.json')
  return existsSync(file) ? String(JSON.parse(readFileSync(file, 'utf8')).version) : 'unknown'
}
