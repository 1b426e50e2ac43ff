import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { type Episode, planEpisode, runEpisode } from './episode.ts'
import { LoadMeter } from './load.ts'
import { exitCodeOf, type Report, Tally, tableOf } from './report.ts'
import { mixed } from './scenarios/mixed.ts'
import { redisFailover } from './scenarios/redis-failover.ts'
import { redlock } from './scenarios/redlock.ts'
import type { Scenario } from './stage.ts'

const SCENARIOS: Readonly<Record<string, Scenario>> = {
  redlock,
  'redis-failover': redisFailover,
  'mixed-redis': mixed('redis'),
  'mixed-redlock': mixed('redlock'),
  'mixed-postgres': mixed('postgres'),
  'mixed-sqlite': mixed('sqlite'),
}

const USAGE = `node chaos/run.mjs --scenario NAME [options]

  --scenario NAME            ${Object.keys(SCENARIOS).join(', ')}
  --minutes N, --seconds N   time under faults (default: 60 seconds)
  --seed TEXT                decides every random choice (default: the time)
  --episode N                run only this episode of the seed
  --episode-seconds N        length of an episode (default: 60)
  --dist PATH                the built package under test (default: dist of this repository)
  --faults a,b,c             only these kinds of faults
  --fault-every MS           average time between two faults (default: 1200)
  --clients N                client processes (default: 5; mixed: 6, half of them in Python)
  --tasks N                  tasks in each of them (default: 4; mixed: 2)
  --names N                  lock names that they contend for (default: 4; mixed: 1)
  --longest-ttl SECONDS      TTL of the longest lease (default: 8; redlock draws 3 or 8; mixed 2)
  --lossy                    redis-failover: also kill masters that have not replicated
  --plan                     print the settings and faults, and run nothing
  --out FOLDER               folder of the report (default: .cache/chaos/SCENARIO-SEED)
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
  const { scenario, seed, dist, out, episodes, meter } = options
  const planned = episodes.map(({ number, seconds }) => ({ ...options, seconds, seed: `${seed}/${number}` }))
  if (options.isPlan) {
    for (const each of planned) process.stdout.write(`${JSON.stringify({ seed: each.seed, ...planEpisode(each) })}\n`)
    return 0
  }
  const tally = new Tally(options.name, seed, { holdfast: versionAt(dist), dist, node: process.versions.node })
  const startedMs = performance.now()
  mkdirSync(out, { recursive: true })
  const finish = (): Report => {
    const { user, system } = process.cpuUsage()
    const cpuSeconds = { harness: (user + system) / 1e6, ...meter.seconds }
    const report = tally.finish(cpuSeconds, (performance.now() - startedMs) / 1_000)
    writeFileSync(join(out, 'report.json'), `${JSON.stringify(report, undefined, 2)}\n`)
    return report
  }
  for (const [at, each] of planned.entries()) {
    try {
      const episode = await runEpisode({ ...each, scenario })
      tally.add(episode)
      if (isWorthKeeping(episode)) keep(episode, join(out, `episode-${episodes[at]?.number}.json`))
    } catch (error) {
      tally.failed(each.seed, error)
    }
    // After each episode, so that an interrupted run leaves a report.
    const { overlaps, fallingTokens, grants, faults } = finish()
    const found = `${overlaps} overlaps, ${fallingTokens} falling tokens`
    process.stdout.write(
      `episode ${at + 1} of ${planned.length}: ${grants} grants, ${faults} faults so far; ${found}\n`,
    )
  }
  const report = finish()
  process.stdout.write(`\n${tableOf(report)}report          ${join(out, 'report.json')}\n`)
  return exitCodeOf(report)
}

const isWorthKeeping = ({ verdict, resurrected }: Episode): boolean =>
  verdict.overlaps.length + verdict.falling.length + verdict.excused.length + resurrected.length > 0

function keep({ seed, setting, done, leases, verdict, resurrected }: Episode, file: string): void {
  writeFileSync(file, JSON.stringify({ seed, setting, done, leases, verdict, resurrected }))
}

type Options = ReturnType<typeof readOptions>

function readOptions(args: string[], root: string) {
  const { values } = parseArgs({
    args,
    options: {
      scenario: { type: 'string', default: '' },
      minutes: { type: 'string' },
      seconds: { type: 'string' },
      seed: { type: 'string', default: String(Date.now()) },
      episode: { type: 'string' },
      'episode-seconds': { type: 'string', default: '60' },
      dist: { type: 'string', default: root },
      faults: { type: 'string' },
      'fault-every': { type: 'string', default: '1200' },
      clients: { type: 'string' },
      tasks: { type: 'string' },
      names: { type: 'string' },
      'longest-ttl': { type: 'string' },
      lossy: { type: 'boolean', default: false },
      plan: { type: 'boolean', default: false },
      out: { type: 'string' },
    },
  })
  const scenario = SCENARIOS[values.scenario]
  if (scenario === undefined) {
    const known = Object.keys(SCENARIOS).join(', ')
    throw new RangeError(`--scenario must be one of ${known}, but is ${JSON.stringify(values.scenario)}`)
  }
  const isMixed = values.scenario.startsWith('mixed-')
  const seconds = values.minutes === undefined ? numberOf('seconds', values.seconds ?? '60') : minutesOf(values.minutes)
  const episodeSeconds = numberOf('episode-seconds', values['episode-seconds'])
  const longestTtl = values['longest-ttl']
  return {
    scenario,
    name: values.scenario,
    seed: values.seed,
    episodes: episodesOf(seconds, episodeSeconds, values.episode),
    dist: distAt(values.dist),
    pythonWorker: join(root, 'chaos', 'worker.py'),
    faults: values.faults?.split(','),
    faultEveryMs: numberOf('fault-every', values['fault-every']),
    // Mixed: three processes of each language on one record.
    clients: numberOf('clients', values.clients ?? (isMixed ? '6' : '5')),
    tasks: numberOf('tasks', values.tasks ?? (isMixed ? '2' : '4')),
    names: numberOf('names', values.names ?? (isMixed ? '1' : '4')),
    longestTtlSeconds: longestTtl === undefined ? undefined : numberOf('longest-ttl', longestTtl),
    isLossy: values.lossy,
    isPlan: values.plan,
    out: resolve(values.out ?? join(root, '.cache', 'chaos', `${values.scenario}-${values.seed}`)),
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
