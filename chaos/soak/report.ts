import type { Verdict } from './judge.ts'
import type { Resources } from './process-state.ts'
import type { Soaked, SoakOptions } from './run-soak.ts'
import { median, type Trend } from './trend.ts'

export type Report = ReturnType<typeof reportOf>

export function reportOf(options: SoakOptions, soaked: Soaked, verdict: Verdict) {
  const { driver, seed, seconds, leases, longestTtlSeconds, sampleEverySeconds, cutEverySeconds } = options
  const { samples, after, before } = soaked
  const held = samples.map(({ client }) => client.done.leases)
  // Without the start, in which the leases are taken for the first time.
  const settled = samples.filter(({ atSeconds }) => atSeconds > Math.min(longestTtlSeconds, seconds / 4))
  return {
    run: { driver, seed, seconds, leases, longestTtlSeconds, sampleEverySeconds, cutEverySeconds },
    versions: soaked.versions,
    grants: after.done.grants,
    grantsPerSecond: (samples.at(-1)?.client.done.grants ?? 0) / seconds,
    leasesAtATime: {
      least: Math.min(...settled.map(({ client }) => client.done.leases)),
      median: median(held),
      most: Math.max(...held),
    },
    done: after.done,
    cuts: soaked.cuts,
    load: soaked.load,
    loopDelayMs: {
      p99: median(samples.map(({ client }) => client.p99Ms)),
      worst: Math.max(...samples.map(({ client }) => client.worstMs)),
    },
    ...verdict,
    process: { before: before.resources, after: after.resources },
    memory: {
      before: soaked.before.heapBytes,
      warm: soaked.warm.heapBytes,
      after: after.heapBytes,
      storeBefore: soaked.storeBefore.bytes,
      storeAfter: soaked.storeAfter.bytes,
    },
    left: soaked.left,
    samples: samples.map(({ atSeconds, client: { done, ...client }, store }) => {
      return { atSeconds, ...client, leases: done.leases, pending: done.pending, grants: done.grants, store }
    }),
  }
}

/** 0: nothing grew and nothing was left. 1: something did. 2: the run proves nothing. */
export function exitCodeOf({ violations, problems }: Pick<Report, 'violations' | 'problems'>): 0 | 1 | 2 {
  if (violations.length > 0) return 1
  return problems.length > 0 ? 2 : 0
}

export function tableOf(report: Report): string {
  const { run, done, leasesAtATime: held, load, loopDelayMs: delay, left, memory } = report
  const percent = (share: number): string => `${Math.round(share * 100)} %`
  const lines: (readonly [string, string])[] = [
    [
      'run',
      `${run.driver}, seed ${run.seed}, ${run.seconds} s, ${run.leases} leases, TTL up to ${run.longestTtlSeconds} s`,
    ],
    ['versions', listed(report.versions)],
    ['grants', `${report.grants}, ${report.grantsPerSecond.toFixed(0)} a second: ${listed(done.grantsByKind)}`],
    ['leases at a time', `${held.median}, from ${held.least} to ${held.most}`],
    ['ends', listed(done.ends)],
    [
      'other',
      `${done.extended} extended, ${done.refused} refused, ${done.rateSteps} rate steps, ${done.instances} instances`,
    ],
    ['cuts', listed(report.cuts)],
    ['errors', listed(done.errors)],
    ['load', `client ${percent(load.client)}, store ${percent(load.store)} of one core`],
    ['event loop', `late by ${delay.p99.toFixed(1)} ms (p99), at worst ${delay.worst.toFixed(1)} ms`],
    ...report.trends.map((trend, at) => [at === 0 ? 'trends' : '', trendText(trend)] as const),
    [
      'heap',
      `${mib(memory.before)} before, ${mib(memory.warm)} after one use of everything, ${mib(memory.after)} at the end`,
    ],
    ['store', `${mib(memory.storeBefore)} before, ${mib(memory.storeAfter)} at the end`],
    ['process before', resourcesText(report.process.before)],
    ['process after', resourcesText(report.process.after)],
    ['left in store', left.wrong.length === 0 ? 'nothing' : left.wrong.join(', ')],
    ['stays in store', left.stays.join(', ') || 'nothing'],
    ['violations', String(report.violations.length)],
    ['problems', String(report.problems.length)],
  ]
  return [
    ...lines.map(([name, text]) => `${name.padEnd(18)}${text}`),
    ...report.violations.map((text) => `violation: ${text}`),
    ...report.problems.map((text) => `problem: ${text}`),
    '',
  ].join('\n')
}

function trendText({ name, unit, second, last, course, growth, most }: Trend): string {
  const shown = (value: number): string => (unit === 'bytes' ? mib(value) : String(value))
  const bound = most === undefined ? 'not judged in so short a run' : `${shown(Math.round(most))} are allowed`
  const sign = growth > 0 ? '+' : ''
  const values = `${shown(second)} → ${shown(last)}: ${sign}${shown(growth)}, ${bound}`
  return `${name.padEnd(27)}${values} (${course.map(shown).join(', ')})`
}

export const mib = (bytes: number): string => `${(bytes / 2 ** 20).toFixed(2)} MiB`

const resourcesText = ({ handles, descriptors, ...counts }: Resources): string =>
  `${listed(counts)} (${listed(descriptors)}); ${listed(handles)}`

function listed(entries: Readonly<Record<string, string | number>>): string {
  const all = Object.entries(entries).map(([name, value]) => `${name} ${value}`)
  return all.length === 0 ? 'none' : all.join(', ')
}
