import { describe, expect, test } from 'vitest'
import type { Claim, Driver } from '../../src/core/driver.ts'
import { createStore, SLOW, type Store, UNTIL_CLOSED } from './holdfast.ts'

describe.concurrent('holdfast ls', SLOW, () => {
  test('says so when nobody holds a lock', async () => {
    await using store = createStore()
    expect(await store.run(['ls'])).toEqual({ code: 0, stdout: 'nobody holds a lock\n', stderr: '' })
    expect(await store.run(['ls', '--json'])).toEqual({ code: 0, stdout: '', stderr: '' })
  })

  test('shows who holds and who waits, as a table', async () => {
    await using store = createStore()
    const { holder, waiter } = await busy(store)
    const { code, stdout } = await store.run(['ls'])
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

  test('shows the same as JSON, one line each', async () => {
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

  test('shows only what begins with a prefix', async () => {
    await using store = createStore()
    await busy(store)
    const { stdout } = await store.run(['ls', 'rep', '--json'])
    expect(
      stdout
        .trimEnd()
        .split('\n')
        .map((line) => JSON.parse(line).lockName),
    ).toEqual(['report'])
    const nothing = 'nobody holds a lock whose name begins with "nothing"\n'
    expect(await store.run(['ls', 'nothing'])).toMatchObject({ code: 0, stdout: nothing })
  })

  test('a table says what it leaves out', async () => {
    await using store = createStore()
    await hold(await store.driver(), ['cron:a', 'report'])
    const { stdout } = await store.run(['ls', 'cron:'])
    expect(stdout).toMatch(/^cron:a /m)
    expect(stdout).not.toContain('report')
    expect(stdout).toMatch(/\n\nShown: only locks whose name begins with "cron:".\n$/)
    expect((await store.run(['ls'])).stdout).not.toContain('Shown')
  })

  test('what other clients wrote cannot steer the terminal, in a table or as JSON', async () => {
    await using store = createStore()
    const driver = await store.driver()
    await hold(driver, [EVIL], { holderId: EVIL, metadata: { text: EVIL, [EVIL]: 1 } })
    const commands = [['ls'], ['ls', EVIL.slice(0, 3)], ['ls', '--json'], ['run', EVIL, '--no-wait', '--', 'true']]
    for (const args of commands) {
      const { stdout, stderr } = await store.run(args)
      expect(stdout + stderr).toContain('\\u001b[2J\\u009b31m\\u202e')
      // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what it looks for
      expect((stdout + stderr).replaceAll('\n', '')).not.toMatch(/[\u0000-\u001f\u007f-\u009f\u202e\u2028]/)
    }
    // It is JSON all the same, and means what was written.
    const [line = ''] = (await store.run(['ls', '--json'])).stdout.split('\n')
    expect(JSON.parse(line)).toMatchObject({ lockName: EVIL, holderId: EVIL, metadata: { text: EVIL, [EVIL]: 1 } })
  })

  test('shows more names than fit on one page of the store’s answers', async () => {
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

  test('ends quietly when nobody reads on, as in holdfast ls | head -1', async () => {
    await using store = createStore()
    await busy(store)
    const run = store.start(['ls'])
    run.deafen()
    expect(await run.exited).toBe(0)
    expect(run.stderr).toBe('')
  })
})

/** Clears the screen, changes the colour by an 8-bit sequence, turns the direction round, and begins a line. */
const EVIL = 'a\u001b[2J\u009b31m\u202e\u007f\u2028\r\nb'

async function hold(driver: Driver, names: readonly string[], changes: Partial<Claim> = {}): Promise<void> {
  const plain = { holderId: 'test', mode: 'exclusive', permits: 1, ttlMs: 600_000, waitMs: 0 } as const
  await driver.acquire(names.map((lockName, index) => ({ lockName, claimId: `claim ${index}`, ...plain, ...changes })))
}

/** One that holds, one that waits for it, and a shared one on another name. */
async function busy(store: Store) {
  const holder = store.start(['run', 'cron:a', '--', ...UNTIL_CLOSED])
  const shared = store.start(['run', 'report', '--shared', '--', ...UNTIL_CLOSED])
  await holder.says(/up/)
  await shared.says(/up/)
  const waiter = store.start(['run', 'cron:a', '--', 'true'])
  await store.waiting('cron:a', 1)
  return { holder, waiter }
}
