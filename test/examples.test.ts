import { mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { compileExamples, exampleNames } from '../scripts/example.mjs'
import { run } from '../scripts/support/command.mjs'

const root = join(import.meta.dirname, '..')

/** The same in every framework. */
const DASHBOARD = ['without a user: 401', 'for ada: 200, text/html; charset=utf-8', 'order:123 is held by instance-1']

/** The output of each example, line by line. */
const outputs: Record<string, string[]> = {
  payment: ['instance-2 skipped order 123: instance-1 is processing it', 'instance-1 charged the card for order 123'],
  'daily-report': ['the report has 12 pages', 'failed: the printer is on fire', 'another instance is writing it'],
  'long-job': [
    'job:import:1: 90 s of work done on leases of 60 s, extended by hand, still held: true',
    'job:import:2: 90 s of work done on leases of 60 s, kept by the heartbeat, still held: true',
  ],
  'scheduled-task': [
    '5 instances, 1 ran the clean-up',
    'clock in time: ran true',
    'clock 10 s late: ran true',
    'clock in time: ran true',
    'clock 10 s late, lock kept for 60 s: ran false',
  ],
  names: [
    'job:export:7 is held by instance-1 ',
    'job:import:2026-01 is held by instance-1 { rows: 5000 }',
    '5 locks are held: cron:daily-cleanup, job:export:7, job:import:2026-01, lock:user:42:profile-update, ' +
      'singleton:mail-queue',
  ],
  'await-using': [
    'held, with a fencing token: true',
    'held, with a fencing token: true',
    'failed: the disk is full',
    'free again: true',
  ],
  're-entry': [
    'another task gets it meanwhile: false',
    'booked the debit, held: true',
    'booked the fee, held: true',
    'transfer done, still held: true',
    'booked the interest, held: true',
  ],
  'leader-election': [
    'instance-1 leads, at 10.0.0.1:8080',
    'instance-1 leads no more',
    'instance-2 leads, at 10.0.0.2:8080',
    'instance-2 leads no more',
    'instance-3 leads, at 10.0.0.3:8080',
    'instance-3 leads no more',
  ],
  once: [
    'failed: the mail server is busy',
    'mail to ada, sent at try 2 by instance-2',
    'mail to ada, sent at try 2 by instance-2',
    'mail to ada, sent at try 2 by instance-2',
    '3 instances, 1 cleaned up',
  ],
  fencing: ['refused: true', 'report of instance-2'],
  'web-locks': [
    'another instance synchronises, synchronised',
    'written, done',
    'import is held by instance-2',
    'taken over',
    'the other instance: AbortError',
  ],
  'rate-limiter': [
    '3 of 6 sent at once',
    'retry within 0.1 s: true',
    '5 more, one every 0.1 s: true',
    'refused with RATE_LIMITED, and nothing was taken',
  ],
  'rate-limit-http': [
    'ann: 200, r=2',
    'ann: 200, r=1',
    'ann: 200, r=0',
    'ann: 429, r=0, with Retry-After',
    'bob: 200, r=2',
  ],
  'dashboard-hono': DASHBOARD,
  'dashboard-express': DASHBOARD,
  'dashboard-fastify': DASHBOARD,
  'dashboard-next': [...DASHBOARD, 'actions are not allowed: 403'],
  nestjs: [
    '409 {"error":"busy","lockName":"order:1"}',
    '201 order 2 shipped under order:2',
    '{"status":"up"}',
    'order 3 shipped under order:3',
  ],
  fastify: [
    '409 order 1 is being shipped',
    '200 order 2 shipped',
    'health: 200',
    'after the shutdown: order 3 shipped',
  ],
  express: ['200 {"status":"up"}', 'order 7 shipped - closed: true'],
  hono: ['200 {"status":"up"}', 'order 7 shipped - closed: true'],
  'several-locks': [
    '40 transfers done: ann 60, ben 140',
    'the first: done',
    'the second: waits for account:ann, which bank-1 holds; waits for account:ben, which bank-1 holds',
  ],
  'read-write-lock': [
    'ann reads "Harbours", 2 inside',
    'ben reads "Harbours", 2 inside',
    'written',
    'cem reads "Harbours and piers", 1 inside',
    'refused: true',
  ],
  semaphore: [
    '6 exports done, at most 3 permits taken at once',
    'another instance meanwhile: false, held: true',
    'released: true, and again: false',
  ],
  prometheus: [
    'holdfast_lock_hold_duration_seconds_count{lock="order:{id}",outcome="released"} 1',
    'holdfast_lock_hold_duration_seconds_count{lock="other",outcome="released"} 1',
    'holdfast_lock_refusals_total{lock="order:{id}"} 1',
    'holdfast_lock_refusals_total{lock="other"} 0',
    'holdfast_lock_held{lock="order:{id}"} 1',
    'holdfast_lock_held{lock="other"} 0',
  ],
  opentelemetry: [
    'ship > acquire order:{id}',
    'ship > locked order:{id}',
    'ship',
    'invoice > acquire order:{id}, waited for locked order:{id}',
    'invoice > locked order:{id}',
    'invoice',
  ],
  abort: ['gave up: the user has gone, long before 60 s: true', 'stopped: the lease was lost: true, still held: false'],
}

let folder: string

beforeAll(async () => {
  mkdirSync(join(root, '.cache'), { recursive: true })
  folder = mkdtempSync(join(root, '.cache/examples-'))
  const { code, output } = await compileExamples(folder)
  expect(output).toBe('')
  expect(code).toBe(0)
})

afterAll(() => rmSync(folder, { recursive: true, force: true }))

test('every example is run here, and is listed in examples/README.md', () => {
  expect(Object.keys(outputs).sort()).toEqual(exampleNames)
  const list = readFileSync(join(root, 'examples/README.md'), 'utf8')
  expect(exampleNames.filter((name) => !list.includes(`(${name}.ts)`))).toEqual([])
})

test.concurrent.each(Object.entries(outputs))('the example %s prints its output', async (name, lines) => {
  // 30 times faster than real time: a lease of 60 s becomes one of 2 s, long enough for a busy machine.
  const env = { ...process.env, EXAMPLE_SPEED: '30', NO_COLOR: '1', HOLDFAST_URL: 'memory:' }
  const { code, stdout, output } = await run(process.execPath, [join(folder, `${name}.js`)], { env })
  const printed = stdout.trimEnd().split('\n')
  expect(comparable(name, printed), output).toEqual(comparable(name, lines))
  expect(code).toBe(0)
})

/** In `once`, any of the three instances may be the first. */
function comparable(name: string, lines: readonly string[]): string[] {
  const trimmed = lines.map((line) => line.trimEnd())
  return name === 'once' ? trimmed.map((line) => line.replace(/instance-\d/, 'an instance')).sort() : trimmed
}
