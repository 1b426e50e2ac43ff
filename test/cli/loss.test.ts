import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync, writeFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { describe, expect, test } from 'vitest'
import { createStore, gone, type Run, SLOW, type Store, UNTIL_CLOSED } from '../harness/cli.ts'
import { isAlive, until } from '../harness/processes.ts'
import { reapProcess } from '../harness/reaper.ts'

/**
 * A command that ignores SIGTERM, as do its child and its grandchild. The grandchild records when it got SIGTERM, and
 * when it was last alive.
 */
const stubborn = ({ folder }: Store): string[] => {
  const grandchild = fileURLToPath(new URL('fixtures/stubborn.mjs', import.meta.url))
  const child = 'echo "child is $$"; "$@" & wait'
  const command = `trap "" TERM; echo "command is $$"; sh -c '${child}' child "$@" & wait`
  return ['sh', '-c', command, 'command', process.execPath, grandchild, folder]
}

/** Long enough that a busy machine starts the command before the lease ends. */
const TTL = '4'

describe.concurrent('the lease of a running command is lost', SLOW, () => {
  test('failure 33: no renewal comes through: the process group is ended before the lease ends', async () => {
    await using store = createStore()
    // A tenth of the TTL lies between SIGKILL and the end of the lease: long enough for a busy machine.
    const run = store.start(['run', 'job', '--ttl', TTL, '--', ...stubborn(store)])
    const pids = await family(run)
    await store.driver() // Opening it writes.
    await using hog = await keepFromWriting(store)
    // From here on no process can renew it, so this end is final.
    const { expiresAtMs = 0 } = await store.lease('job')
    await Promise.all(pids.map(gone))
    expect(await run.exited).toBe(76)
    expect(run.stderr).toBe('holdfast: the lease on "job" could not be renewed, and the command was ended\n')
    const lastAlive = times(store, 'alive').at(-1)
    expect(times(store, 'terminated')).toEqual([expect.any(Number)])
    expect(times(store, 'terminated')[0]).toBeLessThan(lastAlive ?? 0)
    expect(lastAlive).toBeLessThan(expiresAtMs)
    expect(hog.alive).toBe(true)
  })

  test('another client ends it in the store: the process group is killed', async () => {
    await using store = createStore()
    const run = store.start(['run', 'job', '--ttl', TTL, '--', ...stubborn(store)])
    const pids = await family(run)
    const driver = await store.driver()
    const { lockName, claimId, fencingToken } = await store.lease('job')
    expect(await driver.release([{ lockName, claimId, fencingToken }])).toEqual([true])
    await Promise.all(pids.map(gone))
    expect(await run.exited).toBe(76)
  })

  test('it ended in the store between two heartbeats: the release after the command finds out', async () => {
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

  test('the command runs for longer than --max-hold', async () => {
    await using store = createStore()
    const run = store.start(['run', 'job', '--ttl', '1', '--max-hold', '0.5', '--', ...UNTIL_CLOSED])
    await run.says(/up/)
    expect(await run.exited).toBe(76)
    expect(run.stdout).not.toContain('over')
    expect(await store.run(['run', 'job', '--wait', '15', '--', 'true'])).toMatchObject({ code: 0 })
  })
})

describe.concurrent('holdfast run itself', SLOW, () => {
  test('is killed with SIGKILL: its command and all children are ended, and the next runs after the TTL', async () => {
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

  test('is stopped past its TTL and continued: its command is ended, and the exit code is 76', async () => {
    await using store = createStore()
    const first = store.start(['run', 'job', '--ttl', '3', '--', ...ticking(store)])
    const [pid = ''] = await first.says(/up (\d+)/)
    first.signal('SIGSTOP')
    const second = store.start(['run', 'job', '--', ...UNTIL_CLOSED])
    await second.says(/up/)
    // The limit that docs/reference/cli.md describes: no process could end the command meanwhile.
    expect(isAlive(Number(pid))).toBe(true)
    first.signal('SIGCONT')
    expect(await first.exited).toBe(76)
    await gone(pid)
    // The successor's lease was not touched.
    expect(await second.end()).toBe(0)
  })

  test('is stopped past its TTL, and its command ends meanwhile: the exit code is 76, too', async () => {
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
    expect(first.stderr).toMatch(/the lease on "job" (?:had ended|could not be renewed)/)
  })

  test('is suspended with Ctrl-Z: the command is suspended, and continues with it if the lease is valid', async () => {
    await using store = createStore()
    const first = store.start(['run', 'job', '--', ...UNTIL_CLOSED])
    await first.says(/up/)
    await until(() => pressCtrlZ(first), { timeoutMs: 15_000, everyMs: 250, failure: () => 'it did not stop' })
    const finished = first.end()
    first.signal('SIGCONT')
    expect(await finished).toBe(0)
    expect(first.stdout).toContain('over')
  })

  test('is suspended with Ctrl-Z past its TTL: the command never runs beside the next one, and is ended', async () => {
    await using store = createStore()
    const first = store.start(['run', 'job', '--ttl', TTL, '--', ...ticking(store)])
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

/** Presses it again if nothing happened, as a person does. */
function pressCtrlZ(run: Run): boolean {
  if (isStopped(run.pid)) return true
  run.signal('SIGTSTP')
  return false
}

/**
 * A command that writes to a file all the time. It starts no processes: a shell that is suspended while it forks shows
 * as sleeping, not as stopped.
 */
const ticking = ({ folder }: Store): string[] => {
  const script = `
    const tick = () => fs.appendFileSync('${folder}/ticks', 'tick\\n')
    tick()
    setInterval(tick, 50)
    console.log('up', process.pid)`
  return [process.execPath, '-e', script]
}

/** The process ids of the stubborn command, its child and its grandchild, when all three run. */
async function family(run: Run): Promise<number[]> {
  const pids: number[] = []
  for (const name of ['command', 'child', 'grandchild']) {
    const [pid] = await run.says(new RegExp(`^${name} is (\\d+)\n`, 'm'))
    pids.push(Number(pid))
  }
  return pids
}

function times({ folder }: Store, what: 'terminated' | 'alive'): number[] {
  return readFileSync(`${folder}/${what}`, 'utf8').trimEnd().split('\n').map(Number)
}

function isStopped(pid: number): boolean {
  return /\) T/.test(readFileSync(`/proc/${pid}/stat`, 'utf8'))
}

/** Another program that keeps the database's write lock, so that every renewal fails with "busy". */
async function keepFromWriting({ path }: Store): Promise<AsyncDisposable & { readonly alive: boolean }> {
  const source = `
    import Database from 'libsql'
    const database = new Database(process.argv[1])
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
