import { describe, expect, test } from 'vitest'
import type { Claim, Driver } from '../../src/core/driver.ts'
import { DistributedLock } from '../../src/index.ts'
import { newCall } from '../../src/testing/conformance/driver-calls.ts'
import { createStore, SLOW } from '../harness/cli.ts'

describe.concurrent('holdfast show', SLOW, () => {
  test('shows the holder, its metadata and token, and the queue in its order', async () => {
    await using store = createStore()
    const driver = await store.driver()
    await ask(driver, { lockName: 'order:1', claimId: 'a', holderId: 'web-1', metadata: { pid: 7 } })
    for (const holderId of ['web-2', 'web-3']) {
      await ask(driver, { lockName: 'order:1', claimId: holderId, holderId, waiterTtlMs: 600_000 })
    }
    const { code, stdout } = await store.run(['show', 'order:1'])
    expect(code).toBe(0)
    expect(stdout).toMatch(/^order:1\n\nheld by +web-1 \(exclusive\)\nsince +\d+s \(20.*Z\)\nends in +9m \d+s/)
    expect(stdout).toMatch(/\ntoken +\d{16}\nmetadata +\{"pid":7\}\n/)
    expect(stdout).toMatch(/\nQUEUE +WAITER +MODE +WAITING\n1 +web-2 +exclusive +\d+s\n2 +web-3 +exclusive +\d+s\n$/)
    const json = JSON.parse((await store.run(['show', 'order:1', '--json'])).stdout)
    expect(json).toMatchObject({
      lockName: 'order:1',
      leases: [{ holderId: 'web-1', metadata: { pid: 7 }, waitsFor: [] }],
      waiters: [{ holderId: 'web-2' }, { holderId: 'web-3' }],
      forcedReleases: [],
    })
  })

  test('says that a lock is free', async () => {
    await using store = createStore()
    expect(await store.run(['show', 'free'])).toEqual({ code: 0, stdout: 'free\n\nit is free\n', stderr: '' })
  })

  test('shows what the holder itself waits for, and a deadlock', async () => {
    await using store = createStore()
    const url = `sqlite:${store.path}`
    const options = { url, deadlockAfterSeconds: false as const }
    const [one, two] = [
      new DistributedLock({ ...options, holderId: 'one' }),
      new DistributedLock({ ...options, holderId: 'two' }),
    ]
    const a = await one.hold('a', { timeoutSeconds: 60 })
    const b = await two.hold('b', { timeoutSeconds: 60 })
    const ended = new AbortController()
    const waits = [
      one.acquire('b', { under: a, blocking: true, signal: ended.signal }),
      two.acquire('a', { under: b, blocking: true, signal: ended.signal }),
    ].map((wait) => wait.catch(() => undefined))
    await Promise.all([store.waiting('a', 1), store.waiting('b', 1)])
    const driver = await store.driver()
    for (const { lockName, claimId } of (await driver.inspect({})).waiters) {
      // The mark that deadlock detection would leave.
      const chain = claimId.slice(0, claimId.lastIndexOf('.'))
      await ask(driver, {
        ...{ lockName: `waits:${chain}`, claimId: `${claimId}~1`, holderId: 'x', mode: 'shared' },
        metadata: { waitsFor: lockName },
      })
    }
    const { stdout } = await store.run(['show', 'a'])
    expect(stdout).toMatch(/held by +one \(exclusive\)/)
    expect(stdout).toMatch(/waits for +b, for \d+s/)
    expect(stdout).toMatch(/deadlock: none of these can go on until one gives up\n/)
    expect(stdout).toMatch(/ {2}one waits for b, which is held by two\n/)
    expect(stdout).toMatch(/ {2}two waits for a, which is held by one\n/)
    ended.abort()
    await Promise.all(waits)
    await Promise.all([one.close(), two.close()])
  })
})

describe.concurrent('holdfast wait', SLOW, () => {
  test('ends when the lock is free', async () => {
    await using store = createStore()
    const driver = await store.driver()
    const claim = await ask(driver, { lockName: 'job', claimId: 'a', holderId: 'web-1' })
    const run = store.start(['wait', 'job'])
    await run.reports(/"job" is held by web-1 since/)
    await driver.release([claim])
    expect(await run.exited).toBe(0)
    expect(run.stderr.trimEnd().split('\n')).toHaveLength(1)
  })

  test('gives up after --timeout', async () => {
    await using store = createStore()
    await ask(await store.driver(), { lockName: 'job', claimId: 'a', holderId: 'web-1' })
    expect(await store.run(['wait', 'job', '--timeout', '0.2s'])).toMatchObject({ code: 75 })
  })
})

async function ask(driver: Driver, changes: Pick<Claim, 'lockName' | 'claimId' | 'holderId'> & Partial<Claim>) {
  const claim: Claim = { mode: 'exclusive', permits: 1, ttlMs: 600_000, waiterTtlMs: 0, ...changes }
  await driver.acquire([claim], newCall())
  return claim
}
