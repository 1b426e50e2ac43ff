import { spawn } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { exitCodeOf, type Report } from '../../chaos/soak/report.ts'
import { trendOf } from '../../chaos/soak/trend.ts'
import { reapProcess } from '../harness/reaper.ts'

const root = join(import.meta.dirname, '../..')
const SAMPLE = ['--leases', '40', '--sample-every', '0.25', '--cut-every', '1.5', '--seed', '1']
let folder: string
const runs = new Map<string, ReturnType<typeof runSoak>>()

beforeAll(async () => {
  mkdirSync(join(root, '.cache'), { recursive: true })
  // In the repository, so that the compiled program finds its packages.
  folder = mkdtempSync(join(root, '.cache', 'soak-test-'))
  // Compiles the program once, for all runs.
  const { code, output } = await runSoak(['--driver', 'sqlite'], { isReported: false })
  expect(code).toBe(2)
  expect(output).toContain('--driver must be one of redis, postgres')
  const leaky = ['--dist', join(import.meta.dirname, 'fixtures/leaky')]
  // Trends are judged only after five times the longest TTL. A busy machine has others in a few seconds.
  const ttl = (seconds: number): string[] => ['--longest-ttl', String(seconds)]
  runs.set('redis', runSoak(['--driver', 'redis', '--seconds', '6', ...ttl(2), ...SAMPLE]))
  runs.set('postgres', runSoak(['--driver', 'postgres', '--seconds', '6', ...ttl(2), ...SAMPLE]))
  runs.set('leaky', runSoak(['--driver', 'redis', '--seconds', '6', ...ttl(1), ...leaky, ...SAMPLE]))
  const none = { isReported: false }
  runs.set('waiters', runSoak(['--waiters', '200', '--busy', '0', '--seconds', '1'], none))
  runs.set('churn', runSoak(['--churn', '100', '--seconds', '2', '--sample-every', '1'], none))
  // A test that awaits it reports a failure.
  for (const run of runs.values()) run.catch(() => {})
}, 60_000)
afterAll(() => rmSync(folder, { recursive: true, force: true }))

async function resultOf(name: string) {
  const run = runs.get(name)
  if (run === undefined) throw new Error(`${name} was not started`)
  return run
}

describe('a short soak', { timeout: 180_000 }, () => {
  test.each(['redis', 'postgres'])('%s leaves nothing in process and store', async (driver) => {
    const { code, output, report } = await resultOf(driver)
    expect(report.violations, output).toEqual([])
    // Too few grants are the fault of a busy machine.
    expect(code, output).not.toBe(1)
    expect(report.process.after).toEqual(report.process.before)
    expect(report.left.wrong).toEqual([])
    expect(report.grants).toBeGreaterThan(0)
    expect(report.done.instances).toBeGreaterThan(0)
  })

  test('a package that leaks timers, listeners, sockets, memory and keys is found', async () => {
    const { code, output, report } = await resultOf('leaky')
    expect(code, output).toBe(1)
    for (const what of ['timers', 'processListeners', 'signalListeners', 'sockets', 'fileDescriptors']) {
      expect(report.violations, output).toContainEqual(expect.stringContaining(`left in the process: ${what} `))
    }
    expect(report.violations).toContainEqual(expect.stringContaining('left in the store: the key lock:forgotten:'))
    expect(report.violations).toContainEqual(expect.stringMatching(/left in the store: \d+ connections/))
    // It grows while it runs, too.
    expect(report.violations).toContainEqual(expect.stringMatching(/^heap grew from \d+ to \d+, by more than /))
  })
})

describe('other programs', { timeout: 180_000 }, () => {
  test('two hundred waiters of two processes are served in their order', async () => {
    const { output } = await resultOf('waiters')
    expect(output).toContain('200 of 200 are in the queue')
    const found = JSON.parse(output.split('\n').find((line) => line.startsWith('{')) ?? '{}')
    expect(found).toMatchObject({ queued: 200, outOfOrder: 0, unseen: 0, errors: {} })
    expect(found.handOvers, output).toBeGreaterThan(0)
  })

  test('a churn of locks shows the size of every table and index', async () => {
    const { output } = await resultOf('churn')
    for (const name of ['distributed_locks_pkey', 'holdfast_waiters', 'p99 of a lock in ms']) {
      expect(output).toContain(`${name}: `)
    }
    expect(output).toMatch(/^\d\d+ grants, /m)
  })
})

describe('a trend', () => {
  const heap = { name: 'heap', unit: 'bytes', part: 0.05, amount: 10 } as const
  const course = (of: (at: number) => number): number[] => Array.from({ length: 100 }, (_, at) => of(at))

  test('compares the second quarter with the last one, and not the start', () => {
    const growing = trendOf(
      heap,
      course((at) => 1_000 + at),
      60,
    )
    expect(growing).toMatchObject({ second: 1_037, last: 1_087, growth: 50 })
    expect(growing.growth).toBeLessThan(growing.most ?? 0)
    expect(
      trendOf(
        heap,
        course((at) => (at < 25 ? at : 25)),
        60,
      ).growth,
    ).toBe(0)
    const leaking = trendOf(
      heap,
      course((at) => 1_000 + 2 * at),
      60,
    )
    expect(leaking.growth).toBeGreaterThan(leaking.most ?? 0)
  })

  test('ignores a single high sample', () => {
    expect(
      trendOf(
        heap,
        course((at) => (at === 90 ? 5_000 : 1_000)),
        60,
      ).growth,
    ).toBe(0)
  })

  test('is not judged by few samples, nor in a run that is too short for it', () => {
    expect(trendOf(heap, [1, 2, 3], 60).most).toBeUndefined()
    expect(
      trendOf(
        { ...heap, leastSeconds: 600 },
        course(() => 1),
        60,
      ).most,
    ).toBeUndefined()
  })
})

test.each([
  [0, { violations: [], problems: [] }],
  [1, { violations: ['heap grew'], problems: ['too few grants'] }],
  [2, { violations: [], problems: ['too few grants'] }],
] as const)('the exit code %i', (code, { violations, problems }) => {
  expect(exitCodeOf({ violations: [...violations], problems: [...problems] })).toBe(code)
})

async function runSoak(args: string[], { isReported = true } = {}) {
  const out = mkdtempSync(join(folder, 'run-'))
  const child = spawn(process.execPath, [join(root, 'chaos/soak/run.mjs'), ...args, '--out', out], {
    cwd: root,
    env: { ...process.env, NODE_OPTIONS: '', HOLDFAST_CHAOS_COMPILED: join(folder, 'compiled') },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  const forget = reapProcess(child.pid ?? 0)
  let output = ''
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text: string) => {
      output += text
    })
  }
  const code = await new Promise<number | null>((resolve) => child.once('close', resolve))
  forget()
  const file = join(out, 'report.json')
  if (isReported && !existsSync(file)) throw new Error(`the run wrote no report:\n${output}`)
  return { code, output, report: (isReported ? JSON.parse(readFileSync(file, 'utf8')) : {}) as Report }
}
