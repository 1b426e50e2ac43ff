import { describe, expect, test } from 'vitest'
import { createStore, SLOW, UNTIL_CLOSED } from '../harness/cli.ts'

describe.concurrent('holdfast elect', SLOW, () => {
  test('runs the command on one leader at a time', async () => {
    await using store = createStore()
    const first = store.start(['elect', 'scheduler', '--', ...UNTIL_CLOSED])
    await first.says(/up/)
    const second = store.start(['elect', 'scheduler', '--', ...UNTIL_CLOSED])
    await store.waiting('scheduler', 1)
    expect(second.stdout).toBe('')
    // A command that ends by itself ends the election of its process.
    expect(await first.end()).toBe(0)
    await second.says(/up/)
    expect(await second.end()).toBe(0)
  })

  test('starts the command again in the next term after a loss', async () => {
    await using store = createStore()
    const run = store.start(['elect', 'scheduler', '--ttl', '3', '--', ...UNTIL_CLOSED])
    await run.says(/up/)
    const lease = await store.lease('scheduler')
    await (await store.driver()).release([lease])
    await run.reports(/no longer the leader of "scheduler"; campaigning again/)
    await run.says(/up\s+up/)
    expect((await store.lease('scheduler')).fencingToken).toBeGreaterThan(lease.fencingToken)
    expect(await run.end()).toBe(0)
  })
})

describe.concurrent('holdfast limit', SLOW, () => {
  test('runs the command as often as the limit allows', async () => {
    await using store = createStore()
    const once = () => store.run(['limit', 'mail', '--rate', '2/h', '--no-wait', '--', 'echo', 'sent'])
    expect(await once()).toMatchObject({ code: 0, stdout: 'sent\n' })
    expect(await once()).toMatchObject({ code: 0, stdout: 'sent\n' })
    expect(await once()).toMatchObject({ code: 75, stdout: '', stderr: expect.stringMatching(/over its rate limit/) })
  })

  test('waits until it may, and passes the exit code on', async () => {
    await using store = createStore()
    const run = () => store.run(['limit', 'mail', '--rate', '1/s', '--burst', '1', '--', 'sh', '-c', 'exit 3'])
    const started = performance.now()
    expect([(await run()).code, (await run()).code]).toEqual([3, 3])
    expect(performance.now() - started).toBeGreaterThan(950)
  })
})
