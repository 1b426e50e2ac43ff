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

  test('ends with the command’s own exit code, also if that is the one of a lost lease', async () => {
    await using store = createStore()
    const { code, stdout, stderr } = await store.run(['elect', 'scheduler', '--', 'sh', '-c', 'echo up; exit 76'])
    expect({ code, stdout, stderr }).toEqual({ code: 76, stdout: 'up\n', stderr: '' })
  })

  test('ends at a SIGTERM that comes between two terms', async () => {
    await using store = createStore()
    const run = store.start(['elect', 'scheduler', '--ttl', '3', '--', ...UNTIL_CLOSED])
    await run.says(/up/)
    await (await store.driver()).release([await store.lease('scheduler')])
    await run.reports(/campaigning again/)
    run.signal('SIGTERM')
    // On a busy machine, the signal may come when the next term has begun. Then it ends the command.
    expect(['SIGTERM', 143]).toContain(await run.exited)
  })

  test('begins no other term after a SIGTERM that its command has ignored, but does after a SIGHUP', async () => {
    await using store = createStore()
    const script = 'trap "echo hup" HUP; trap "echo term" TERM; echo up; while :; do sleep 0.05; done'
    const run = store.start(['elect', 'scheduler', '--ttl', '3', '--', 'sh', '-c', script])
    await run.says(/up/)
    const lose = async () => (await store.driver()).release([await store.lease('scheduler')])
    run.signal('SIGHUP')
    await run.says(/hup/)
    await lose()
    await run.says(/up\s+hup\s+up/)
    run.signal('SIGTERM')
    await run.says(/term/)
    await lose()
    expect(await run.exited).toBe(143)
    expect(run.stderr.match(/campaigning again/g)).toHaveLength(1)
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
