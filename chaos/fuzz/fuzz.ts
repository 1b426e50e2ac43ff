import { setTimeout as sleep } from 'node:timers/promises'
import { Draw } from '../draw.ts'
import { pause } from '../wire/play.ts'
import { described, isLate, Judge } from './judge.ts'
import { heapBytes } from './memory.ts'
import type { Ground, Stage, Target } from './target.ts'
import { Watchdog } from './watchdog.ts'

export interface FuzzOptions {
  readonly targets: readonly Target[]
  readonly seed: string
  /** How long each target runs. */
  readonly seconds: number
  /** At most this many cases of each target. */
  readonly cases?: number
  /** Whether the heap is judged. It is not if something else runs in this process. */
  readonly judgesHeap?: boolean
  /** Only the case with this number. */
  readonly only?: number
  found?(finding: Finding): void
  report?(progress: Row): void
}

export interface Row {
  readonly target: string
  cases: number
  /** Calls to the library. */
  calls: number
  findings: number
  /** Cases in which something took too long, but not when they were repeated. */
  slowOnce: number
  seconds: number
  /** How much the heap grew from the tenth of the run on, after a garbage collection. */
  grownBytes: number
  readonly outcomes: Map<string, number>
}

export interface Finding {
  readonly target: string
  /** The numbers of the case, or of all cases that ran when the process failed outside of a call. */
  readonly cases: readonly number[]
  readonly notes: readonly string[]
  readonly violations: readonly string[]
}

export interface Fuzzed {
  readonly rows: readonly Row[]
  readonly findings: readonly Finding[]
}

/** Runs the targets one after the other. The seed and the number of a case decide everything that is drawn in it. */
export async function fuzz(ground: Ground, options: FuzzOptions): Promise<Fuzzed> {
  const rows: Row[] = []
  const findings: Finding[] = []
  for (const target of options.targets) {
    const found = (finding: Finding): void => {
      findings.push(finding)
      options.found?.(finding)
    }
    const stage = await target.open(ground)
    try {
      rows.push(await runTarget(ground, target, stage, { ...options, found }))
    } finally {
      await stage[Symbol.asyncDispose]()
    }
  }
  return { rows, findings }
}

async function runTarget(ground: Ground, target: Target, stage: Stage, options: FuzzOptions): Promise<Row> {
  const { seed, seconds, cases = Number.POSITIVE_INFINITY, only } = options
  const row: Row = {
    target: target.name,
    ...{ cases: 0, calls: 0, findings: 0, slowOnce: 0, seconds: 0, grownBytes: 0 },
    outcomes: new Map(),
  }
  const running = new Map<number, Judge>()
  const found = (finding: Finding): void => {
    row.findings += 1
    options.found?.(finding)
  }
  // An error that no caller gets: it would end the process of a user.
  const crashed = (error: unknown): void =>
    found({
      target: target.name,
      cases: [...running.keys()],
      notes: [...running.values()].flatMap(({ notes }) => notes),
      violations: [`uncaught: ${described(error)}`],
    })
  process.on('uncaughtException', crashed).on('unhandledRejection', crashed)
  const startedAt = performance.now()
  const isOver = (): boolean => performance.now() - startedAt > seconds * 1_000 || row.cases >= cases
  let next = only ?? 1
  let baseBytes: number | undefined
  const runCase = async (number: number, again: string): Promise<Judge> => {
    const judge = new Judge(ground.library, `fuzz:${target.name}:${seed}:${number}${again}`)
    running.set(number, judge)
    const draw = new Draw(`${seed}/${target.name}/${number}`)
    const over = new AbortController()
    await Promise.race([stage.run(draw, judge), hung(judge, over.signal)]).catch((error: unknown) => {
      if (isLate(error)) judge.late.push(`the case could not begin: ${described(error)}`)
      else judge.violation(`the case failed: ${described(error)}`)
    })
    over.abort()
    running.delete(number)
    return judge
  }
  const runNext = async (): Promise<void> => {
    const number = next
    next += 1
    row.cases += 1
    let judge = await runCase(number, '')
    if (judge.violations.length === 0 && judge.late.length > 0) {
      judge = await runCase(number, ' again')
      for (const text of judge.late) judge.violation(text)
      if (judge.late.length === 0) row.slowOnce += 1
    }
    row.calls += judge.outcomes.length
    for (const outcome of judge.outcomes) row.outcomes.set(outcome, (row.outcomes.get(outcome) ?? 0) + 1)
    const { notes, violations } = judge
    if (violations.length > 0) found({ target: target.name, cases: [number], notes, violations })
    if (row.cases % REPORT_EVERY === 0) options.report?.(row)
    row.seconds = (performance.now() - startedAt) / 1_000
  }
  const work = async (): Promise<void> => {
    do await runNext()
    while (only === undefined && !isOver())
  }
  using _watchdog = new Watchdog(() => [...running.keys()].map((each) => `${target.name}/${seed}/${each}`).join(' '))
  const watching = setInterval(() => {
    if (row.seconds > seconds / 10 && row.cases > BASE_CASES) baseBytes ??= heapBytes()
  }, 500)
  await Promise.all(Array.from({ length: only === undefined ? target.jobs : 1 }, work))
  clearInterval(watching)
  // What a case leaves behind may fail later.
  await pause(SETTLE_MS)
  process.off('uncaughtException', crashed).off('unhandledRejection', crashed)
  if (baseBytes !== undefined) row.grownBytes = heapBytes() - baseBytes
  if (options.judgesHeap && row.grownBytes > MAX_GROWN_BYTES) {
    const text = `the heap grew by ${Math.round(row.grownBytes / 1e6)} MB in ${row.cases} cases`
    found({ target: target.name, cases: [], notes: [], violations: [text] })
  }
  return row
}

/** `over` ends the timer, which would keep all that the case has. */
async function hung(judge: Judge, over: AbortSignal): Promise<void> {
  await sleep(MAX_CASE_MS, undefined, { signal: over }).catch(() => {})
  if (!over.aborted) judge.late.push(`the case did not end within ${MAX_CASE_MS} ms`)
}

const REPORT_EVERY = 25
/** All client packages are loaded, and all kinds of calls were made. */
const BASE_CASES = 60
const SETTLE_MS = 700
const MAX_CASE_MS = 90_000
const MAX_GROWN_BYTES = 64_000_000
