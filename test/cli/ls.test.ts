import { describe, expect, test } from 'vitest'
import type { Claim, Driver } from '../../src/core/driver.ts'
import { newCall } from '../../src/testing/conformance/driver-calls.ts'
import { createStore, SLOW, type Store, UNTIL_CLOSED } from '../harness/cli.ts'

describe.concurrent('holdfast ls', SLOW, () => {
  test('says so when no locks are held', async () => {
    await using store = createStore()
    expect(await store.run(['ls'])).toEqual({ code: 0, stdout: 'no locks are held\n', stderr: '' })
    expect(await store.run(['ls', '--json'])).toEqual({ code: 0, stdout: '', stderr: '' })
  })

  test('shows a line for each lock that is held', async () => {
    await using store = createStore()
    const { holder } = await busy(store)
    const { code, stdout } = await store.run(['ls'])
    expect(code).toBe(0)
    expect(stdout.trimEnd().split('\n')).toEqual([
      expect.stringMatching(/^LOCK +MODE +HOLDER +AGE +LEFT +WAITERS$/),
      expect.stringMatching(new RegExp(String.raw`^cron:a +exclusive +\S+:${holder.pid} +\d+s +\d+s +1$`)),
      expect.stringMatching(/^report +shared +\S+ +\d+s +\d+s +0$/),
    ])
  })

  test('cuts long names to fit 80 columns', async () => {
    await using store = createStore()
    const driver = await store.driver()
    await hold(driver, [`cache:${'x'.repeat(200)}`], { holderId: `pod-${'y'.repeat(200)}` })
    const { stdout } = await store.run(['ls'])
    const [head = '', row = ''] = stdout.split('\n')
    expect(head).toHaveLength(80)
    expect(row).toMatch(/^cache:x+… +exclusive +pod-y+… +\d+s +\S+ \S+ +0$/)
    expect(row.length).toBeLessThanOrEqual(80)
    expect((await store.run(['ls', '--wide'])).stdout).toContain(`cache:${'x'.repeat(200)}  holds`)
  })

  test('sorts by age and by waiters, and shows only old leases', async () => {
    await using store = createStore()
    const driver = await store.driver()
    await hold(driver, ['b'])
    await new Promise((resolve) => setTimeout(resolve, 1_100))
    await hold(driver, ['a', 'c'], { holderId: 'other' })
    const waiting = { mode: 'exclusive', permits: 1, ttlMs: 600_000, waiterTtlMs: 600_000 } as const
    await driver.acquire([{ lockName: 'c', claimId: 'w', holderId: 'waiter', ...waiting }], newCall())
    const names = async (...args: string[]) =>
      (await store.run(['ls', '--json', ...args])).stdout
        .trimEnd()
        .split('\n')
        .map((line) => JSON.parse(line) as { state: string; lockName: string })
        .filter(({ state }) => state === 'holds')
        .map(({ lockName }) => lockName)
    expect(await names()).toEqual(['a', 'b', 'c'])
    expect(await names('--sort', 'age')).toEqual(['b', 'a', 'c'])
    expect(await names('--sort', 'waiters')).toEqual(['c', 'a', 'b'])
    expect(await names('--held-longer-than', '1s')).toContain('b')
    expect((await store.run(['ls', '--held-longer-than', '1h'])).stdout).toBe('no locks are held\n')
  })

  test('shows bookkeeping only with --all', async () => {
    await using store = createStore()
    await hold(await store.driver(), ['once:invoice:done', 'job'])
    expect((await store.run(['ls'])).stdout).not.toContain('once:')
    expect((await store.run(['ls', '--all'])).stdout).toContain('once:invoice:done')
  })

  test('shows it again every second with --watch', async () => {
    await using store = createStore()
    const run = store.start(['ls', '--watch'])
    await run.says(/no locks are held/)
    await hold(await store.driver(), ['job'])
    await run.says(/job +exclusive/)
    run.signal('SIGINT')
    expect(await run.exited).toBe('SIGINT')
  })

  test('shows holders and waiters in a wide table', async () => {
    await using store = createStore()
    const { holder, waiter } = await busy(store)
    const { code, stdout } = await store.run(['ls', '--wide'])
    expect(code).toBe(0)
    const time = String.raw`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z`
    const [head = '', ...rows] = stdout.trimEnd().split('\n')
    expect(head).toMatch(/^LOCK +MODE +HOLDER +SINCE +EXPIRES +TOKEN$/)
    expect(rows).toEqual([
      expect.stringMatching(
        new RegExp(String.raw`^cron:a +holds +exclusive +\S+:${holder.pid} +${time} +${time} +\d+$`),
      ),
      expect.stringMatching(new RegExp(String.raw`^cron:a +waits +exclusive +\S+:${waiter.pid} +${time}$`)),
      expect.stringMatching(/^report +holds +shared /),
    ])
    // Every column begins where its head does.
    for (const row of rows) expect(row.slice(head.indexOf('MODE'))).toMatch(/^(?:exclusive|shared)/)
  })

  test('shows the same as JSON, one object per line', async () => {
    await using store = createStore()
    const { holder, waiter } = await busy(store)
    const { code, stdout } = await store.run(['ls', '--json'])
    expect(code).toBe(0)
    const lines = stdout
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line) as Record<string, unknown>)
    const lease = await store.lease('cron:a')
    expect(lines).toEqual([
      expect.objectContaining({
        state: 'holds',
        lockName: 'cron:a',
        holderId: lease.holderId,
        mode: 'exclusive',
        fencingToken: lease.fencingToken,
        acquiredAt: new Date(lease.acquiredAtMs).toISOString(),
        metadata: { command: 'sh', pid: holder.pid },
      }),
      expect.objectContaining({ state: 'holds', lockName: 'report', mode: 'shared' }),
      expect.objectContaining({
        state: 'waits',
        lockName: 'cron:a',
        holderId: expect.stringMatching(new RegExp(`:${waiter.pid}$`)),
      }),
    ])
    for (const line of lines) {
      const times = line['state'] === 'holds' ? ['acquiredAt', 'expiresAt'] : ['waitingSince']
      for (const time of times) expect(new Date(String(line[time])).toISOString()).toBe(line[time])
    }
  })

  test('shows only the locks whose names begin with the prefix', async () => {
    await using store = createStore()
    await busy(store)
    const { stdout } = await store.run(['ls', 'rep', '--json'])
    expect(
      stdout
        .trimEnd()
        .split('\n')
        .map((line) => JSON.parse(line).lockName),
    ).toEqual(['report'])
    const nothing = 'no locks are held whose names begin with "nothing"\n'
    expect(await store.run(['ls', 'nothing'])).toMatchObject({ code: 0, stdout: nothing })
  })

  test('the table says that it shows only some locks', async () => {
    await using store = createStore()
    await hold(await store.driver(), ['cron:a', 'report'])
    const { stdout } = await store.run(['ls', 'cron:'])
    expect(stdout).toMatch(/^cron:a /m)
    expect(stdout).not.toContain('report')
    expect(stdout).toMatch(/\n\nOnly locks whose names begin with "cron:" are shown.\n$/)
    expect((await store.run(['ls'])).stdout).not.toContain('Only')
  })

  test('text of other clients cannot control the terminal, in the table or as JSON', async () => {
    await using store = createStore()
    const driver = await store.driver()
    await hold(driver, [EVIL], { holderId: EVIL, metadata: { text: EVIL, [EVIL]: 1 } })
    const commands = [
      ['ls', '--wide'],
      ['ls', EVIL.slice(0, 3), '--wide'],
      ['ls', '--json'],
      ['show', EVIL],
      ['run', EVIL, '--no-wait', '--', 'true'],
    ]
    for (const args of commands) {
      const { stdout, stderr } = await store.run(args)
      expect(stdout + stderr).toContain('\\u001b[2J\\u009b31m\\u202e')
      // biome-ignore lint/suspicious/noControlCharactersInRegex: it looks for control characters
      expect((stdout + stderr).replaceAll('\n', '')).not.toMatch(/[\u0000-\u001f\u007f-\u009f\u202e\u2028]/)
    }
    // The escaped output is still JSON with the original text.
    const [line = ''] = (await store.run(['ls', '--json'])).stdout.split('\n')
    expect(JSON.parse(line)).toMatchObject({ lockName: EVIL, holderId: EVIL, metadata: { text: EVIL, [EVIL]: 1 } })
  })

  test('shows more locks than one page of the store’s answers holds', async () => {
    await using store = createStore()
    const driver = await store.driver()
    const names = Array.from({ length: 250 }, (_, index) => `job:${String(index).padStart(3, '0')}`)
    await hold(driver, names)
    const { stdout } = await store.run(['ls', '--json'])
    expect(
      stdout
        .trimEnd()
        .split('\n')
        .map((line) => JSON.parse(line).lockName),
    ).toEqual(names)
  })

  test('ends quietly when its output is closed, as in holdfast ls | head -1', async () => {
    await using store = createStore()
    await busy(store)
    const run = store.start(['ls'])
    run.stopReading('stdout')
    expect(await run.exited).toBe(0)
    expect(run.stderr).toBe('')
  })
})

/** Clears the screen, changes the colour with an 8-bit sequence, reverses the direction, and begins a line. */
const EVIL = 'a\u001b[2J\u009b31m\u202e\u007f\u2028\r\nb'

async function hold(driver: Driver, names: readonly string[], changes: Partial<Claim> = {}): Promise<void> {
  const plain = { holderId: 'test', mode: 'exclusive', permits: 1, ttlMs: 600_000, waiterTtlMs: 0 } as const
  await driver.acquire(
    names.map((lockName, index) => ({ lockName, claimId: `claim ${index}`, ...plain, ...changes })),
    newCall(),
  )
}

/** A holder, a waiter for the same lock, and a shared holder of another lock. */
async function busy(store: Store) {
  const holder = store.start(['run', 'cron:a', '--', ...UNTIL_CLOSED])
  const shared = store.start(['run', 'report', '--shared', '--', ...UNTIL_CLOSED])
  await holder.says(/up/)
  await shared.says(/up/)
  const waiter = store.start(['run', 'cron:a', '--', 'true'])
  await store.waiting('cron:a', 1)
  return { holder, waiter }
}
