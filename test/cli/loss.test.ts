import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync, writeFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { describe, expect, test } from 'vitest'
import { isAlive, until } from '../harness/processes.ts'
import { reapProcess } from '../harness/reaper.ts'
import { createStore, gone, type Run, SLOW, type Store, UNTIL_CLOSED } from './holdfast.ts'

/**
 * A command that ignores SIGTERM, as do its child and its grandchild. The grandchild writes down when it was asked to end, and when it was
 * last alive.
 */
const stubborn = ({ folder }: Store): string[] => {
  const grandchild = fileURLToPath(new URL('fixtures/stubborn.mjs', import.meta.url))
  const child = 'echo "child is $$"; "$@" & wait'
  const command = `trap "" TERM; echo "command is $$"; sh -c '${child}' child "$@" & wait`
  return ['sh', '-c', command, 'command', process.execPath, grandchild, folder]
}

/** For a machine that is busy: how long a lease must be that is not to be lost before its command is up. */
const TTL = '4'

describe.concurrent('the lease of a running command is lost', SLOW, () => {
  test('when the store cannot be written: the whole process group gets SIGTERM, then SIGKILL, and is gone before the lease ends (failure 33)', async () => {
    await using store = createStore()
    // A tenth of it is what lies between SIGKILL and the end: long enough for a machine that is busy.
    const run = store.start(['run', 'job', '--ttl', TTL, '--', ...stubborn(store)])
    const pids = await family(run)
    await store.driver() // Opening it writes.
    await using hog = await keepFromWriting(store)
    // From here on nobody can renew it: this is its end.
    const { expiresAtMs = 0 } = await store.lease('job')
    await Promise.all(pids.map(gone))
    expect(await run.exited).toBe(76)
    expect(run.stderr).toBe('holdfast: the lease on "job" could not be kept, and the command was ended\n')
    const lastAlive = times(store, 'alive').at(-1)
    expect(times(store, 'asked')).toEqual([expect.any(Number)])
    expect(times(store, 'asked')[0]).toBeLessThan(lastAlive ?? 0)
    expect(lastAlive).toBeLessThan(expiresAtMs)
    expect(hog.alive).toBe(true)
  })

  test('when somebody else has ended it in the store: the whole process group is killed', async () => {
    await using store = createStore()
    const run = store.start(['run', 'job', '--ttl', TTL, '--', ...stubborn(store)])
    const pids = await family(run)
    const driver = await store.driver()
    const { lockName, claimId, fencingToken } = await store.lease('job')
    expect(await driver.release([{ lockName, claimId, fencingToken }])).toEqual([true])
    await Promise.all(pids.map(gone))
    expect(await run.exited).toBe(76)
  })

  test('when it was ended in the store between two heartbeats, as the release finds out after the command', async () => {
    await using store = createStore()
    const run = store.start(['run', 'job', '--ttl', '600', '--', ...UNTIL_CLOSED])
    await run.says(/up/)
    const driver = await store.driver()
    const { lockName, claimId, fencingToken } = await store.lease('job')
    expect(await driver.release([{ lockName, claimId, fencingToken }])).toEqual([true])
    expect(await run.end()).toBe(76)
    expect(run.stdout).toContain('over')
    expect(run.stderr).toBe('holdfast: the lease on "job" had ended before the command did\n')
  })

  test('when it runs for longer than --max-hold', async () => {
    await using store = createStore()
    const run = store.start(['run', 'job', '--ttl', '1', '--max-hold', '0.5', '--', ...UNTIL_CLOSED])
    await run.says(/up/)
    expect(await run.exited).toBe(76)
    expect(run.stdout).not.toContain('over')
    expect(await store.run(['run', 'job', '--wait', '15', '--', 'true'])).toMatchObject({ code: 0 })
  })
})

describe.concurrent('holdfast run itself', SLOW, () => {
  test('is killed with SIGKILL: its command and all that it started are ended, and the next one runs after the ttl', async () => {
    await using store = createStore()
    const first = store.start(['run', 'job', '--ttl', TTL, '--', ...stubborn(store)])
    const pids = await family(first)
    const second = store.start(['run', 'job', '--', process.execPath, '-e', "console.log('began', Date.now())"])
    await store.waiting('job', 1)
    first.signal('SIGKILL')
    expect(await first.exited).toBe('SIGKILL')
    const { expiresAtMs = 0 } = await store.lease('job')
    await Promise.all(pids.map(gone))
    expect(await second.exited).toBe(0)
    const [began] = (await second.says(/began (\d+)/)).map(Number)
    expect(began).toBeGreaterThanOrEqual(expiresAtMs)
    expect(times(store, 'alive').at(-1)).toBeLessThan(began ?? 0)
  })

  test('is stopped past its ttl and goes on: its command is ended, and the exit code is 76', async () => {
    await using store = createStore()
    const first = store.start(['run', 'job', '--ttl', '3', '--', ...ticking(store)])
    const [pid = ''] = await first.says(/up (\d+)/)
    first.signal('SIGSTOP')
    const second = store.start(['run', 'job', '--', ...UNTIL_CLOSED])
    await second.says(/up/)
    // The limit that docs/reference/cli.md tells of: nobody could end the command meanwhile.
    expect(isAlive(Number(pid))).toBe(true)
    first.signal('SIGCONT')
    expect(await first.exited).toBe(76)
    await gone(pid)
    // The successor's lease was not touched.
    expect(await second.end()).toBe(0)
  })

  test('is stopped past its ttl, and its command ends meanwhile: the exit code is 76 all the same', async () => {
    await using store = createStore()
    const script = `echo "up $$"; while [ ! -e ${store.folder}/go ]; do sleep 0.05; done`
    const first = store.start(['run', 'job', '--ttl', '3', '--', 'sh', '-c', script])
    const [pid = ''] = await first.says(/up (\d+)/)
    first.signal('SIGSTOP')
    const second = store.start(['run', 'job', '--', ...UNTIL_CLOSED])
    await second.says(/up/)
    writeFileSync(`${store.folder}/go`, '')
    await gone(pid)
    first.signal('SIGCONT')
    expect(await first.exited).toBe(76)
    expect(first.stderr).toMatch(/the lease on "job" (?:had ended|could not be kept)/)
  })

  test('is suspended with Ctrl-Z: the command stands still too, and goes on with it while the lease is good', async () => {
    await using store = createStore()
    const first = store.start(['run', 'job', '--', ...UNTIL_CLOSED])
    await first.says(/up/)
    await until(() => pressCtrlZ(first), { timeoutMs: 15_000, everyMs: 250, failure: () => 'it did not stop' })
    const finished = first.end()
    first.signal('SIGCONT')
    expect(await finished).toBe(0)
    expect(first.stdout).toContain('over')
  })

  test('is suspended with Ctrl-Z past its ttl: the command never runs beside the next one, and is ended', async () => {
    await using store = createStore()
    const first = store.start(['run', 'job', '--ttl', '3', '--', ...ticking(store)])
    const [pid = ''] = await first.says(/up (\d+)/)
    await until(() => pressCtrlZ(first) && isStopped(Number(pid)), {
      timeoutMs: 15_000,
      everyMs: 250,
      failure: () => `it did not stop: ${first.stderr}`,
    })
    const ticks = readFileSync(`${store.folder}/ticks`, 'utf8')
    expect(await store.run(['run', 'job', '--', 'true'])).toMatchObject({ code: 0 })
    first.signal('SIGCONT')
    expect(await first.exited).toBe(76)
    await gone(pid)
    expect(readFileSync(`${store.folder}/ticks`, 'utf8')).toBe(ticks)
  })
})

/** As a person does: again, if nothing happens. */
function pressCtrlZ(run: Run): boolean {
  if (isStopped(run.pid)) return true
  run.signal('SIGTSTP')
  return false
}

/** A command that writes something down all the time. */
const ticking = ({ folder }: Store): string[] => [
  'sh',
  '-c',
  `while echo tick >> ${folder}/ticks; do [ -n "$up" ] || echo "up $$"; up=yes; sleep 0.05; done`,
]

/** The ids of the stubborn command, its child and its grandchild, once all are up. */
async function family(run: Run): Promise<number[]> {
  const pids: number[] = []
  for (const name of ['command', 'child', 'grandchild']) {
    const [pid] = await run.says(new RegExp(`^${name} is (\\d+)\n`, 'm'))
    pids.push(Number(pid))
  }
  return pids
}

function times({ folder }: Store, what: 'asked' | 'alive'): number[] {
  return readFileSync(`${folder}/${what}`, 'utf8').trimEnd().split('\n').map(Number)
}

function isStopped(pid: number): boolean {
  return /\) T/.test(readFileSync(`/proc/${pid}/stat`, 'utf8'))
}

/** Another program that has the database's write lock and does not give it back: the renewals get no answer but "busy". */
async function keepFromWriting({ path }: Store): Promise<AsyncDisposable & { readonly alive: boolean }> {
  const source = `
    import { openDatabase } from '${new URL('../../dist/drivers/sqlite/client.js', import.meta.url).href}'
    const database = await openDatabase(process.argv[1])
    database.exec('PRAGMA busy_timeout = 5000')
    database.exec('BEGIN IMMEDIATE')
    console.log('has it')
    setInterval(() => {}, 1000)
  `
  const child = spawn(process.execPath, ['--input-type=module', '--eval', source, path], {
    env: { ...process.env, NODE_OPTIONS: '' },
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const forget = reapProcess(child.pid ?? 0)
  const ended = once(child, 'exit')
  await Promise.race([once(child.stdout, 'data'), ended])
  return {
    get alive() {
      return child.exitCode === null && child.signalCode === null
    },
    async [Symbol.asyncDispose]() {
      child.kill('SIGKILL')
      await ended
      forget()
    },
  }
}
