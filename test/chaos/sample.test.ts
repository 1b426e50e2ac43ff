import { spawn } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Report } from '../../chaos/report.ts'
import { reapProcess } from '../harness/reaper.ts'

const root = join(import.meta.dirname, '../..')
let folder: string

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'holdfast-chaos-test-'))
})
afterAll(() => rmSync(folder, { recursive: true, force: true }))

/**
 * Checks only invariants, because the number of grants depends on the machine. The exit code is 0 only if there are
 * some grants, and most of the planned kinds of faults.
 */
describe.concurrent('a sample of chaos', { timeout: 180_000 }, () => {
  const SAMPLE = ['--seed', '1', '--seconds', '6', '--fault-every', '500', '--clients', '4', '--tasks', '2']

  test.each([
    ['redis'],
    // Two holders in commit 6a38be4.
    ['redlock'],
    ['cluster'],
    ['postgres'],
    ['advisory'],
    ['sqlite'],
  ])('%s: no check finds anything', async (driver) => {
    const { code, output, report } = await runChaos(['--driver', driver, ...SAMPLE])
    expect(report, output).toMatchObject({ violations: [], problems: [], unexpectedErrors: [] })
    expect(code, output).toBe(0)
    expect(report.grants).toBeGreaterThan(0)
    expect(report.faults).toBeGreaterThan(0)
  })

  test('memory: a lock that each process has for itself is found', async () => {
    const args = ['--driver', 'memory', '--seed', '1', '--seconds', '2', '--clients', '2', '--fault-every', '500']
    const { code, output, report } = await runChaos(args)
    expect(code, output).toBe(1)
    expect(report.overlaps).toBeGreaterThan(0)
    expect(report.violations[0]).toMatchObject({ what: 'exclusion', leases: expect.arrayContaining([]) })
    expect(output).toMatch(/exclusion in episode 1\/1: .* both held "order:\d" for /)
  })

  test('a lock whose tokens fall is found', async () => {
    const dist = join(import.meta.dirname, 'fixtures/careless')
    const args = ['--driver', 'memory', '--dist', dist, '--seed', '1', '--seconds', '2', '--clients', '2']
    const { code, output, report } = await runChaos([...args, '--fault-every', '300', '--faults', 'loop-blocked'])
    expect(code, output).toBe(1)
    expect(report.fallingTokens).toBeGreaterThan(0)
    // The other checks find something in a longer run, too: see chaos/checks/README.md.
    expect(report.checks).toMatchObject({ 'left in the store': 1 })
  })

  test('an unknown driver or fault is rejected', async () => {
    const { code, output } = await runChaos(['--driver', 'flood'], { isReported: false })
    expect(code).toBe(2)
    expect(output).toContain('--driver must be one of redis, redlock, cluster, postgres, advisory, sqlite, memory')
  })
})

async function runChaos(args: string[], { isReported = true } = {}) {
  const out = mkdtempSync(join(folder, 'run-'))
  const child = spawn(process.execPath, [join(root, 'chaos/run.mjs'), ...args, '--out', out], {
    cwd: root,
    env: { ...process.env, NODE_OPTIONS: '' },
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
