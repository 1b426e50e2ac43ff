import { WHOLE } from './configurations.ts'
import { type Exploration, explore } from './explore.ts'
import { MUTANTS, RARE_MUTANTS } from './mutants.ts'
import { RULES } from './rules.ts'

/** Explores every configuration, then every mutant. Returns the exit code. */
export function main(args: readonly string[]): number {
  const [unknown] = args.filter((arg) => !['--json', '--mutants'].includes(arg))
  if (unknown !== undefined) {
    console.error(`unknown argument ${unknown}: use --mutants or --json`)
    return 2
  }
  const configurations = args.includes('--mutants') ? [] : WHOLE
  const found = configurations.map(({ name, bounds }) => shown(name, explore({ bounds, rules: RULES })))
  const mutants = [...MUTANTS, ...RARE_MUTANTS].map(({ name, ...options }) =>
    shown(`mutant: ${name}`, explore(options)),
  )
  const sum = (of: (each: Exploration) => number): number => found.reduce((total, each) => total + of(each), 0)
  const escaped = mutants.filter(({ violation }) => violation === undefined).length
  const report = {
    states: sum(({ states }) => states),
    steps: sum(({ steps }) => steps),
    depth: Math.max(0, ...found.map(({ depth }) => depth)),
    seconds: round(sum(({ seconds }) => seconds)),
    violations: found.filter(({ violation }) => violation !== undefined).length,
    mutants: mutants.length,
    mutantsFound: mutants.length - escaped,
    peakMegabytes: Math.round(process.resourceUsage().maxRSS / 1_024),
  }
  console.log(args.includes('--json') ? JSON.stringify(report) : tableOf(report))
  return report.violations + escaped + found.filter(({ isComplete }) => !isComplete).length === 0 ? 0 : 1
}

function shown(name: string, result: Exploration): Exploration {
  const { states, steps, depth, seconds, violation } = result
  const figures = `${grouped(states)} states, ${grouped(steps)} steps, depth ${depth}, ${round(seconds)} s`
  console.log(`${name}: ${figures}${violation === undefined ? '' : `\n  ${violation.rule}`}`)
  for (const [at, step] of (violation?.steps ?? []).entries()) console.log(`    ${at + 1}. ${step}`)
  return result
}

const tableOf = (report: Readonly<Record<string, number>>): string =>
  Object.entries(report)
    .map(([name, value]) => `${name.padEnd(14)} ${grouped(value)}`)
    .join('\n')

const grouped = (value: number): string => value.toLocaleString('en-US')
const round = (seconds: number): number => Math.round(seconds * 10) / 10
