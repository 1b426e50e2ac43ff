import { existsSync } from 'node:fs'
import { describe, expect, test } from 'vitest'
import { createStore, SLOW, UNTIL_CLOSED } from '../harness/cli.ts'
import { until } from '../harness/processes.ts'

describe.concurrent('the exit code of holdfast run', SLOW, () => {
  test.each([
    ['a command that succeeds', ['true'], 0],
    ['a command that fails', ['sh', '-c', 'exit 7'], 7],
    ['a command that a signal ends: 128 + its number', ['sh', '-c', 'kill -KILL $$'], 137],
    ['a command that does not exist', ['/no/such/command'], 127],
    ['a command that cannot be executed', ['/'], 126],
  ] as const)('is that of %s', async (_, command, expected) => {
    await using store = createStore()
    expect(await store.run(['run', 'job', '--', ...command])).toMatchObject({ code: expected })
    // The lock has been released in each case.
    expect(await store.run(['run', 'job', '--no-wait', '--', 'true'])).toMatchObject({ code: 0 })
  })

  test('goes on if nothing reads what it says', async () => {
    await using store = createStore()
    const first = store.start(['run', 'job', '--', ...UNTIL_CLOSED])
    await first.says(/up/)
    const second = store.start(['run', 'job', '--ttl', '1', '--max-hold', '0.5', '--', ...UNTIL_CLOSED])
    second.stopReading('stderr')
    await store.waiting('job', 1)
    await first.end()
    await second.says(/up/)
    // The lease ends after half a second. It cannot say so, but its exit code does.
    expect(await second.exited).toBe(76)
  })

  test('says that it waits, and for whom', async () => {
    await using store = createStore()
    const holder = store.start(['run', 'job', '--', ...UNTIL_CLOSED])
    await holder.says(/up/)
    const waiter = store.start(['run', 'job', '--', 'true'])
    await waiter.reports(
      new RegExp(String.raw`holdfast: waiting for "job", which is held by \S+:${holder.pid} since 20`),
    )
    await holder.end()
    expect(await waiter.exited).toBe(0)
  })

  test('is 75 if the lock is held, with its holder and time on standard error', async () => {
    await using store = createStore()
    const first = store.start(['run', 'job', '--', ...UNTIL_CLOSED])
    await first.says(/up/)
    const { holderId, acquiredAtMs } = await store.lease('job')
    const refused = await store.run(['run', 'job', '--no-wait', '--', 'touch', `${store.folder}/ran`])
    expect(refused).toEqual({
      code: 75,
      stdout: '',
      stderr: `holdfast: "job" is held by ${holderId} since ${new Date(acquiredAtMs).toISOString()}\n`,
    })
    expect(holderId).toContain(`:${first.pid}`)
    expect(existsSync(`${store.folder}/ran`)).toBe(false)
  })

  test.each([
    ['-E', '3'],
    ['--conflict-exit-code', '0'],
  ])('is that of %s if the lock is held', async (option, code) => {
    await using store = createStore()
    const first = store.start(['run', 'job', '--', ...UNTIL_CLOSED])
    await first.says(/up/)
    expect(await store.run(['run', 'job', '--no-wait', option, code, '--', 'true'])).toMatchObject({
      code: Number(code),
      stderr: expect.stringContaining('is held by'),
    })
  })
})

describe.concurrent('two runs at once', SLOW, () => {
  test('one runs, and the other waits until the first has ended', async () => {
    await using store = createStore()
    const first = store.start(['run', 'job', '--', ...UNTIL_CLOSED])
    await first.says(/up/)
    const second = store.start(['run', 'job', '--', 'sh', '-c', 'echo mine'])
    await store.waiting('job', 1)
    expect(second.stdout).toBe('')
    expect(await first.end()).toBe(0)
    expect(await second.exited).toBe(0)
    expect(second.stdout).toBe('mine\n')
  })

  test('with --no-wait, and after --wait, the other ends without running its command', async () => {
    await using store = createStore()
    const first = store.start(['run', 'job', '--', ...UNTIL_CLOSED])
    await first.says(/up/)
    for (const waiting of [['--no-wait'], ['--wait', '1.5'], ['--wait=0']]) {
      const refused = await store.run(['run', 'job', ...waiting, '--', 'touch', `${store.folder}/ran`])
      expect(refused, waiting.join(' ')).toMatchObject({ code: 75 })
    }
    expect(existsSync(`${store.folder}/ran`)).toBe(false)
    expect(await first.end()).toBe(0)
  })

  test('locks with different names are independent', async () => {
    await using store = createStore()
    const first = store.start(['run', 'job:1', '--', ...UNTIL_CLOSED])
    await first.says(/up/)
    expect(await store.run(['run', 'job:2', '--no-wait', '--', 'true'])).toMatchObject({ code: 0 })
  })

  test('--shared runs beside --shared, but not beside an exclusive run, in either order', async () => {
    await using store = createStore()
    const reader = store.start(['run', 'job', '--shared', '--', ...UNTIL_CLOSED])
    await reader.says(/up/)
    expect(await store.run(['run', 'job', '--shared', '--no-wait', '--', 'true'])).toMatchObject({ code: 0 })
    expect(await store.run(['run', 'job', '--no-wait', '--', 'true'])).toMatchObject({ code: 75 })
    expect(await reader.end()).toBe(0)

    const writer = store.start(['run', 'job', '--', ...UNTIL_CLOSED])
    await writer.says(/up/)
    expect(await store.run(['run', 'job', '--shared', '--no-wait', '--', 'true'])).toMatchObject({ code: 75 })
  })
})

describe.concurrent('how long the lock is kept', SLOW, () => {
  test('--min-hold keeps it for that time after a quick command, and no longer', async () => {
    await using store = createStore()
    expect(await store.run(['run', 'cron:long', '--min-hold', '60', '--', 'true'])).toMatchObject({ code: 0 })
    expect(await store.run(['run', 'cron:long', '--no-wait', '--', 'true'])).toMatchObject({ code: 75 })

    expect(await store.run(['run', 'cron:short', '--min-hold', '0.5', '--', 'true'])).toMatchObject({ code: 0 })
    expect(await store.run(['run', 'cron:short', '--wait', '15', '--', 'true'])).toMatchObject({ code: 0 })
  })

  test('it is renewed while the command runs', async () => {
    await using store = createStore()
    const first = store.start(['run', 'job', '--ttl', '9', '--', ...UNTIL_CLOSED])
    await first.says(/up/)
    const before = await store.lease('job')
    const renewed = async () => ((await store.lease('job')).expiresAtMs ?? 0) > (before.expiresAtMs ?? 0)
    await until(renewed, { timeoutMs: 30_000, failure: () => 'it was never renewed' })
    expect((await store.lease('job')).fencingToken).toBe(before.fencingToken)
    expect(await first.end()).toBe(0)
  })
})

describe.concurrent('what the command gets', SLOW, () => {
  test('the lock name, the holder and the fencing token, which rises from run to run', async () => {
    await using store = createStore()
    const print = ['sh', '-c', 'echo "$HOLDFAST_LOCK_NAME $HOLDFAST_HOLDER_ID $HOLDFAST_FENCING_TOKEN"; read -r line']
    const tokens: number[] = []
    for (const _ of [1, 2]) {
      const run = store.start(['run', 'order 7', '--', ...print])
      const [name, holderId, token] = await run.says(/^(.*) (\S+) (\d+)\n/)
      expect(await store.lease('order 7')).toMatchObject({ lockName: name, holderId, fencingToken: Number(token) })
      tokens.push(Number(token))
      await run.end()
    }
    expect(tokens[1]).toBeGreaterThan(tokens[0] ?? 0)
  })

  test('its arguments unchanged, our environment, standard input and output', async () => {
    await using store = createStore()
    const run = store.start(['run', 'job', '--', 'sh', '-c', 'cat; echo "$0 $1 $OWN" >&2', '--ttl', '--'], {
      env: { OWN: 'own' },
      stdin: 'closed',
    })
    expect(await run.exited).toBe(0)
    expect(run.stderr).toBe('--ttl -- own\n')
  })

  test.each(['SIGTERM', 'SIGINT', 'SIGHUP', 'SIGUSR1'] as const)('%s, passed on from us', async (signal) => {
    await using store = createStore()
    const script = `trap 'echo got ${signal}; exit 41' ${signal.slice(3)}; echo up; while :; do sleep 0.05; done`
    const run = store.start(['run', 'job', '--', 'sh', '-c', script])
    await run.says(/up/)
    run.signal(signal)
    expect(await run.exited).toBe(41)
    expect(run.stdout).toContain(`got ${signal}`)
  })

  test('a signal that it does not handle ends it, and the exit code says so', async () => {
    await using store = createStore()
    const run = store.start(['run', 'job', '--', 'sh', '-c', 'echo up; while :; do sleep 0.05; done'])
    await run.says(/up/)
    run.signal('SIGTERM')
    expect(await run.exited).toBe(128 + 15)
    expect(await store.run(['run', 'job', '--no-wait', '--', 'true'])).toMatchObject({ code: 0 })
  })
})

describe.concurrent('a signal while it waits', SLOW, () => {
  test.each([
    ['SIGINT', 130],
    ['SIGTERM', 143],
    ['SIGHUP', 129],
  ] as const)('%s ends the wait: the command does not run, and the queue is empty', async (signal, code) => {
    await using store = createStore()
    const first = store.start(['run', 'job', '--', ...UNTIL_CLOSED])
    await first.says(/up/)
    const second = store.start(['run', 'job', '--', 'touch', `${store.folder}/ran`])
    await store.waiting('job', 1)
    second.signal(signal)
    expect(await second.exited).toBe(code)
    await store.waiting('job', 0)
    expect(existsSync(`${store.folder}/ran`)).toBe(false)
  })
})
