import { spawn } from 'node:child_process'
import { existsSync, mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { claims, type DemoEvent, tally } from '../examples/demo/tally.mjs'
import { isAlive, until, waitForExit } from './harness/processes.ts'
import { reapProcess } from './harness/reaper.ts'

const root = join(import.meta.dirname, '..')

/** The parent of the demos' folders, so that the tests see what they leave behind. */
let temporary: string

beforeAll(() => {
  temporary = mkdtempSync(join(tmpdir(), 'holdfast-demo-test-'))
})

afterAll(() => rmSync(temporary, { recursive: true, force: true }))

describe.concurrent('the demo', { timeout: 90_000 }, () => {
  test('shows what it claims, prints the counts, and leaves nothing behind', async () => {
    const demo = startDemo('whole')
    expect(await demo.exited, demo.output()).toBe(0)
    const output = demo.output()
    // 5 processes race three times each. One is killed, and two follow it. One is paused, and one follows it.
    expect(output).toMatch(/\nprocesses 5, grants 20, rising tokens 20, overlaps 0, takeovers 2, refusals 1\n$/)
    expect(output).not.toContain('NOT SHOWN')
    expect(output.match(/^ {2}✓ /gm)).toHaveLength(6)
    // No colours, because this is not a terminal.
    expect(output).not.toContain('\x1b')
    const wide = output.split('\n').filter((line) => line.length > 80 && !line.startsWith('store:'))
    expect(wide).toEqual([])
    await demo.leavesNothing()
  })

  test('cleans up when it is interrupted while one of its processes is paused', async () => {
    const demo = startDemo('interrupted')
    await demo.says('SIGSTOP')
    demo.signal('SIGINT')
    expect(await demo.exited).toBe(130)
    await demo.leavesNothing()
  })

  test.each(['holds', 'like a closed laptop'])(
    'its processes end when it is killed after it has printed "%s"',
    async (said) => {
      const demo = startDemo(`killed-${said.length}`)
      await demo.says(said)
      demo.signal('SIGKILL')
      expect(await demo.exited).toBe('SIGKILL')
      for (const pid of demo.processes()) await waitForExit(pid)
    },
  )
})

describe('the claims of the demo are counted, not known beforehand', () => {
  const wellDone: DemoEvent[] = [
    ...['ada', 'bob'].map((who) => ({ at: 0, who, what: 'starts' })),
    { at: 1, who: 'ada', what: 'holds', token: 10 },
    { at: 2, who: 'ada', what: 'lets go' },
    { at: 3, who: 'bob', what: 'holds', token: 11 },
    { at: 4, who: 'bob', what: 'lets go' },
    { at: 5, who: 'file', what: 'counts', counted: 2, expected: 2 },
    { at: 6, who: 'ada', what: 'holds', token: 12 },
    { at: 7, who: 'ada', what: 'is killed', ttlMs: 100 },
    { at: 90, who: 'bob', what: 'holds', token: 13 },
    { at: 91, who: 'bob', what: 'is paused', ttlMs: 100 },
    { at: 180, who: 'cyd', what: 'holds', token: 14 },
    { at: 200, who: 'bob', what: 'wakes', held: false },
    { at: 201, who: 'bob', what: 'writes', token: 13, accepted: false, acceptedWithoutCheck: true },
  ]
  /** The claims that the events do not show if one of them is changed or missing. */
  const missing = (at: number, change?: Partial<DemoEvent>): number[] =>
    claims(wellDone.flatMap((event) => (event.at !== at ? [event] : change ? [{ ...event, ...change }] : []))).flatMap(
      ({ shown }, index) => (shown ? [] : [index]),
    )

  test('all claims are shown by the right events', () => {
    expect(missing(Number.NaN)).toEqual([])
  })

  test.each([
    ['a token that does not rise', missing(3, { token: 10 }), [0]],
    ['a lock that is acquired before it is released', missing(2, { at: 3.5 }), [1]],
    ['a holder that never releases the lock', missing(4), [1]],
    ['an addition that was lost', missing(5, { counted: 1 }), [2]],
    ['a late takeover', missing(7, { ttlMs: -2_000 }), [3]],
    ['a process that believes after its pause that it holds the lock', missing(200, { held: true }), [4]],
    ['a late write that is accepted', missing(201, { accepted: true }), [5]],
    ['no late write', missing(201), [5]],
  ])('%s is noticed', (_, found, expected) => {
    expect(found).toEqual(expected)
  })

  test('an overlap is counted once for each pair', () => {
    const holds = [1, 2, 3].map((at) => ({ at, who: `p${at}`, what: 'holds', token: at }))
    expect(tally(holds).overlaps).toBe(3)
  })
})

function startDemo(name: string) {
  const folder = join(temporary, name)
  const child = spawn(process.execPath, [join(root, 'examples/demo/main.mjs')], {
    cwd: root,
    env: {
      ...process.env,
      NODE_OPTIONS: '',
      FORCE_COLOR: '',
      TMPDIR: mkdtempSync(`${folder}-`),
      HOLDFAST_DEMO_SPEED: '6',
    },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  const pid = child.pid ?? 0
  const forget = reapProcess(pid)
  let output = ''
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text: string) => {
      output += text
    })
  }
  const exited = new Promise<number | NodeJS.Signals>((resolve) => {
    child.once('exit', (code, signal) => {
      forget()
      resolve(signal ?? code ?? 0)
    })
  })
  const processes = (): number[] => {
    const [, list = ''] = /^processes: (.*)$/m.exec(output) ?? []
    return [...list.matchAll(/\d+/g)].map(Number)
  }
  const store = (): string => /^store: +an SQLite file in (.*)$/m.exec(output)?.[1] ?? ''
  return {
    exited,
    output: () => output,
    processes,
    signal: (signal: NodeJS.Signals) => process.kill(pid, signal),
    says: (text: string) =>
      until(() => output.includes(text), {
        timeoutMs: 60_000,
        failure: () => `it did not print ${text}, but:\n${output}`,
      }),
    async leavesNothing() {
      expect(processes()).toHaveLength(5)
      for (const each of processes()) await waitForExit(each)
      expect(processes().filter(isAlive)).toEqual([])
      expect(store()).toContain(temporary)
      expect(existsSync(store())).toBe(false)
      expect(readdirSync(join(store(), '..'))).toEqual([])
    },
  }
}
