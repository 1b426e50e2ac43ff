import { resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { loadLibrary } from '../wire/library.ts'
import { tooLittle } from './enough.ts'
import { type Finding, type Fuzzed, type FuzzOptions, fuzz, type Row } from './fuzz.ts'
import { TARGETS } from './targets.ts'

/** Returns the exit code: 0 if nothing broke, 1 for a violation, 2 for bad arguments or a run that proves nothing. */
export async function main(args: readonly string[], root: string): Promise<number> {
  let options: FuzzOptions & { dist: string }
  try {
    options = optionsFrom(args, root)
  } catch (error) {
    console.error((error as Error).message)
    return 2
  }
  const { dist, seed } = options
  let printedAt = 0
  const report = (row: Row): void => {
    if (Date.now() - printedAt < 10_000) return
    printedAt = Date.now()
    console.log(`${row.target}: ${row.cases} cases, ${row.calls} calls, ${row.findings} findings`)
  }
  console.log(`seed ${seed}`)
  const ground = { library: await loadLibrary(dist), dist, root, servers: {} }
  const fuzzed = await fuzz(ground, { ...options, report, found: (finding) => printFinding(finding, seed) })
  console.log(tableOf(fuzzed))
  if (fuzzed.findings.length > 0) return 1
  const problems = options.only === undefined ? tooLittle(fuzzed.rows) : []
  for (const text of problems) console.log(`problem: ${text}`)
  return problems.length > 0 ? 2 : 0
}

function optionsFrom(args: readonly string[], root: string): FuzzOptions & { dist: string } {
  const { values } = parseArgs({
    args: [...args],
    options: {
      target: { type: 'string' },
      seconds: { type: 'string', default: '60' },
      seed: { type: 'string', default: `${Date.now()}` },
      only: { type: 'string' },
      dist: { type: 'string', default: `${root}dist` },
    },
  })
  const [onlyTarget, onlySeed, number] = values.only?.split('/') ?? []
  const names = onlyTarget === undefined ? values.target?.split(',') : [onlyTarget]
  const unknown = names?.find((name) => !TARGETS.some((target) => target.name === name))
  if (unknown !== undefined) {
    throw new Error(`--target ${unknown}: it takes some of ${TARGETS.map(({ name }) => name).join(', ')}`)
  }
  const only = number === undefined ? undefined : positive('only', number)
  if (values.only !== undefined && (only === undefined || onlySeed === undefined)) {
    throw new Error(`--only ${values.only}: it takes target/seed/number`)
  }
  return {
    targets: TARGETS.filter(({ name }) => names === undefined || names.includes(name)),
    seconds: positive('seconds', values.seconds),
    judgesHeap: true,
    seed: onlySeed ?? values.seed,
    dist: resolve(values.dist),
    ...(only !== undefined && { only }),
  }
}

function positive(name: string, text: string): number {
  const value = Number(text)
  if (!Number.isFinite(value) || value <= 0) throw new Error(`--${name} ${text}: it takes a number above 0`)
  return value
}

function printFinding({ target, cases, notes, violations }: Finding, seed: string): void {
  console.log(`\nFINDING in ${target} ${cases.join(', ')}`)
  for (const text of [...violations, ...notes]) console.log(`  ${text}`)
  for (const number of cases) console.log(`  npm run fuzz -- --only '${target}/${seed}/${number}'`)
}

function tableOf({ rows, findings }: Fuzzed): string {
  const codes = [...new Set(rows.flatMap(({ outcomes }) => [...outcomes.keys()]))].sort()
  const lines = rows.map(({ target, cases, calls, findings: found, slowOnce, seconds, grownBytes, outcomes }) => {
    const cells = [cases, calls, found, slowOnce, Math.round(seconds), (grownBytes / 1e6).toFixed(1)]
    const ends = codes.flatMap((code) => (outcomes.has(code) ? [`${code} ${outcomes.get(code)}`] : []))
    return `${target.padEnd(10)}${cells.map((cell) => `${cell}`.padStart(10)).join('')}  ${ends.join(', ')}`
  })
  const heads = ['cases', 'calls', 'findings', 'slow once', 'seconds', 'MB grown'].map((head) => head.padStart(10))
  return ['', `${'target'.padEnd(10)}${heads.join('')}  how calls ended`, ...lines, `${findings.length} findings`].join(
    '\n',
  )
}
