import { spawn } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Report } from '../../chaos/report.ts'
import { reapProcess } from '../harness/reaper.ts'

const root = join(import.meta.dirname, '../..')
let folder: string

beforeAll(async () => {
  mkdirSync(join(root, '.cache'), { recursive: true })
  // In the repository, so that the compiled harness finds its packages.
  folder = mkdtempSync(join(root, '.cache', 'chaos-test-'))
  // Compiles the harness once, for all runs.
  const { code, output } = await runChaos(['--driver', 'flood'], { isReported: false })
  expect(code).toBe(2)
  expect(output).toContain('--driver must be one of redis, redlock, cluster, postgres, advisory, sqlite, memory')
  startAll()
}, 60_000)
afterAll(() => rmSync(folder, { recursive: true, force: true }))

const SAMPLE = ['--seed', '1', '--seconds', '5', '--fault-every', '700', '--clients', '3', '--tasks', '2']
const CARELESS = ['--dist', join(import.meta.dirname, 'fixtures/careless'), '--faults', 'loop-blocked']
const DRIVERS = ['postgres', 'advisory', 'cluster', 'redis', 'redlock', 'sqlite', 'memory'] as const

/** All begin at once: Vitest itself runs only a few tests at a time. */
const runs = new Map<string, ReturnType<typeof runChaos>>()

function startAll(): void {
  for (const driver of DRIVERS) runs.set(driver, runChaos(['--driver', driver, ...SAMPLE]))
  runs.set('careless', runChaos(['--driver', 'memory', ...SAMPLE, ...CARELESS]))
  // A test that awaits it reports a failure.
  for (const run of runs.values()) run.catch(() => {})
}

async function resultOf(name: string) {
  const run = runs.get(name)
  if (run === undefined) throw new Error(`${name} was not started`)
  return run
}

/**
 * Checks only invariants, because the number of grants depends on the machine: a run with too few of them proves
 * little, but it is no failure here.
 */
describe('a sample of chaos', { timeout: 180_000 }, () => {
  test.each(DRIVERS.filter((driver) => driver !== 'memory'))('%s keeps every promise', async (driver) => {
    const { code, output, report } = await resultOf(driver)
    expect(Object.values(report.checks), output).toEqual(Object.values(report.checks).map(() => 0))
    expect(report.problems.filter((problem) => !problem.startsWith('too few'))).toEqual([])
    expect(report.unexpectedErrors).toEqual([])
    expect(code, output).not.toBe(1)
    expect(report.faults).toBeGreaterThan(0)
  })

  test('memory: a lock that each process has for itself is found', async () => {
    const { code, output, report } = await resultOf('memory')
    expect(code, output).toBe(1)
    expect(report.overlaps).toBeGreaterThan(0)
    expect(report.violations[0]).toMatchObject({ what: 'exclusion', leases: expect.arrayContaining([]) })
    expect(output).toMatch(/exclusion in episode 1\/1: .* both held ".*" for /)
  })

  test('a lock whose tokens do not rise is found', async () => {
    const { code, output, report } = await resultOf('careless')
    expect(code, output).toBe(1)
    expect(report.fallingTokens).toBeGreaterThan(0)
    // The other checks find something in a longer run, too: see chaos/checks/README.md.
    expect(report.checks).toMatchObject({ 'left in the store': 1 })
    expect(report.checks['errors']).toBeGreaterThan(0)
  })
})

async function runChaos(args: string[], { isReported = true } = {}) {
  const out = mkdtempSync(join(folder, 'run-'))
  const child = spawn(process.execPath, [join(root, 'chaos/run.mjs'), ...args, '--out', out], {
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
