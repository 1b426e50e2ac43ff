import { readFileSync, writeFileSync } from 'node:fs'
import { describe, expect, inject, test } from 'vitest'
import { connect } from '../../src/connect.ts'
import type { Claim, Driver } from '../../src/core/driver.ts'
import { newCall } from '../../src/testing/conformance/driver-calls.ts'
import { createStore, gone, SLOW } from '../harness/cli.ts'
import { processTree } from '../harness/processes.ts'
import { startProxy } from '../harness/proxy.ts'
import { startTerminal } from '../harness/terminal.ts'

const [redis = ''] = inject('servers').redis ?? []

/** Sets the title of the terminal, clears the screen and reverses the direction. */
const EVIL = 'evil\u001b]0;owned\u0007\u001b[2J\u202e'

const GIVEN_BACK = { alternate: false, cursor: true, wrap: true }

describe.concurrent('holdfast in a terminal', SLOW, () => {
  test('top sorts, filters, inspects and quits, and leaves the terminal as it was', async () => {
    await using store = createStore()
    await using terminal = await startTerminal(`sqlite:${store.path}`)
    const driver = await store.driver()
    await ask(driver, { lockName: 'order:東京', holderId: 'web-1', metadata: { pid: 7 } })
    await ask(driver, { lockName: 'report', holderId: 'web-2' })
    await ask(driver, { lockName: EVIL, holderId: EVIL })
    for (const holderId of ['web-3', 'web-4']) await ask(driver, { lockName: 'report', holderId, waiterTtlMs: 600_000 })

    const { title } = await terminal.modes()
    await terminal.record(`${terminal.folder}/sent`)
    await terminal.enter('stty -g > before; holdfast top; echo "code $?"; stty -g > after')
    const first = await terminal.shows(/^3 locks held, 2 waiters, the longest for \d+s/m)
    expect(first).toMatch(/^report .*\n(?:order|evil)/m)
    expect(await terminal.modes()).toEqual({ alternate: true, cursor: false, wrap: false, title })
    // A wide character takes two columns, and the columns behind it begin where the others do.
    const [head = '', order = ''] = ['LOCK', 'order:東京'].map((name) => lineWith(first, name))
    expect(order.indexOf('web-1') + 2).toBe(head.indexOf('HOLDER'))

    await terminal.press('n')
    await terminal.shows(/^evil.*\norder.*\nreport/m)
    await terminal.type('/web-1')
    await terminal.shows(/filter: web-1/)
    await terminal.press('Enter')
    expect(await terminal.shows(/filter "web-1": 1 of 3/)).not.toContain('report')
    await terminal.press('Enter')
    await terminal.shows(/held by +web-1 \(exclusive\)[\s\S]*metadata +\{"pid":7\}/)
    await terminal.type('q')
    await terminal.shows(/filter "web-1"/)
    await terminal.resize(50, 8)
    expect((await terminal.shows(/^\S+ top +sqlite.{0,30}…? +\d\d:\d\d:\d\d$/m)).split('\n')).toHaveLength(8)
    await terminal.resize(80, 24)
    await terminal.type('q')
    await terminal.shows(/^code 0$/m)

    expect(await terminal.modes()).toEqual({ ...GIVEN_BACK, title })
    await terminal.enter('cmp before after && echo same')
    await terminal.shows(/^same$/m)
    expect(readFileSync(`${terminal.folder}/sent`, 'utf8')).not.toContain('\u001b]0;owned')
  })

  test('top gives the terminal back when it is suspended, ended by a signal, or has a bug', async () => {
    await using store = createStore()
    await using terminal = await startTerminal(`sqlite:${store.path}`)
    await terminal.enter('stty -g > before; holdfast top')
    await terminal.shows(/no locks are held.*q quit/s)
    await terminal.press('C-z')
    await terminal.shows(/Stopped/)
    expect(await terminal.modes()).toMatchObject(GIVEN_BACK)
    await terminal.enter('stty -g > after; cmp before after && echo same; fg')
    await terminal.shows(/no locks are held.*q quit/s)
    expect(await terminal.modes()).toMatchObject({ alternate: true, cursor: false })
    await terminal.press('C-z')
    await terminal.shows(/^same$.*Stopped/ms)
    // It gets the signal when it goes on.
    await terminal.enter('clear; kill -TERM %1; fg; echo "code $?"; stty -g > after; cmp before after && echo same')
    await terminal.shows(/^code 143\nsame$/m)
    expect(await terminal.modes()).toMatchObject(GIVEN_BACK)

    writeFileSync(`${terminal.folder}/bug.mjs`, 'setTimeout(() => { throw new Error("a bug") }, 1_000)')
    const withBug = `NODE_OPTIONS=--import='${terminal.folder}/bug.mjs' holdfast top`
    await terminal.enter(`clear; ${withBug}; stty -g > after; cmp before after && echo same`)
    await terminal.shows(/Error: a bug.*^same$/ms)
    expect(await terminal.modes()).toMatchObject(GIVEN_BACK)
  })

  test('top ends quietly when its terminal is closed', async () => {
    await using store = createStore()
    await using terminal = await startTerminal(`sqlite:${store.path}`)
    await terminal.enter('holdfast top 2> errors')
    await terminal.shows(/q quit/)
    const pids = processTree(terminal.shellPid)
    await terminal.hangUp()
    await Promise.all(pids.map(gone))
    expect(readFileSync(`${terminal.folder}/errors`, 'utf8')).toBe('')
  })

  test('top says since when the store does not answer, and goes on when it is back', async () => {
    await using proxy = await startProxy(Number(new URL(redis).port))
    const url = `redis://127.0.0.1:${proxy.port}`
    await using terminal = await startTerminal(url)
    const driver = await connect(redis)
    const held = await ask(driver, { lockName: 'top:outage', holderId: 'web-1' })
    await terminal.enter('holdfast top top:')
    await terminal.shows(/top:outage +web-1/)
    proxy.redirect(1)
    proxy.cut()
    await terminal.shows(/the store does not answer since \d\d:\d\d:\d\d \(\d+s\)[\s\S]*top:outage +web-1/)
    proxy.redirect(Number(new URL(redis).port))
    await terminal.shows(/1 lock held, 0 waiters/)
    await driver.release([held])
    await driver.close()
    await terminal.shows(/no locks are held/)
  })

  test('ls has colours in a terminal, and none with NO_COLOR', async () => {
    await using store = createStore()
    await using terminal = await startTerminal(`sqlite:${store.path}`)
    await ask(await store.driver(), { lockName: 'job', holderId: 'web-1' })
    await terminal.enter('holdfast ls; echo done')
    await terminal.shows(/job .*\ndone/)
    expect(await terminal.styledScreen()).toContain('\u001b[1mLOCK')
    await terminal.enter('clear; NO_COLOR=1 holdfast ls; echo done again')
    await terminal.shows(/job .*\ndone again/)
    expect(await terminal.styledScreen()).not.toContain('\u001b[')
  })

  test('run shows in one line of the terminal for whom it waits, and removes it', async () => {
    await using store = createStore()
    await using terminal = await startTerminal(`sqlite:${store.path}`)
    const driver = await store.driver()
    const held = await ask(driver, { lockName: 'job', holderId: 'web-1' })
    await terminal.enter('clear; holdfast run job -- echo ran')
    await terminal.shows(/^holdfast: waiting [1-9]\d*s for "job", held by web-1 for \d+s$/m)
    await driver.release([held])
    expect(await terminal.shows(/^ran$/m)).not.toContain('waiting')
  })
})

describe.concurrent('keys that end a command', SLOW, () => {
  test('force-release changes nothing if its question is answered with Ctrl-C or Ctrl-D', async () => {
    await using store = createStore()
    await using terminal = await startTerminal(`sqlite:${store.path}`)
    await ask(await store.driver(), { lockName: 'job', holderId: 'web-1' })
    for (const key of ['C-c', 'C-d']) {
      await terminal.enter('clear; holdfast force-release job --reason stuck; echo "code $?"')
      await terminal.shows(/End it\? \[y\/N\]$/m)
      await terminal.press(key)
      await terminal.shows(/End it\? \[y\/N\]\nholdfast: nothing was changed\ncode 75$/m)
    }
    expect((await store.lease('job')).holderId).toBe('web-1')
  })

  test('Ctrl-C reaches the command of limit once', async () => {
    await using store = createStore()
    await using terminal = await startTerminal(`sqlite:${store.path}`)
    writeFileSync(
      `${terminal.folder}/counting.mjs`,
      `let count = 0
      process.on('SIGINT', () => { count += 1 }).on('SIGUSR1', () => { console.log('SIGINT:', count); process.exit(3) })
      setInterval(() => {}, 60_000)
      console.log('run by', process.ppid)`,
    )
    await terminal.enter(`clear; holdfast limit mail --rate 9/s -- '${process.execPath}' counting.mjs; echo "code $?"`)
    const [, parent] = /^run by (\d+)$/m.exec(await terminal.shows(/^run by \d+$/m)) ?? []
    await terminal.press('C-c')
    await terminal.shows(/\^C/)
    // Passed on in its turn, so that a SIGINT that was passed on has come before it.
    process.kill(Number(parent), 'SIGUSR1')
    await terminal.shows(/SIGINT: 1\ncode 3$/m)
  })
})

const lineWith = (screen: string, text: string): string => screen.split('\n').find((line) => line.includes(text)) ?? ''

async function ask(driver: Driver, changes: Pick<Claim, 'lockName' | 'holderId'> & Partial<Claim>): Promise<Claim> {
  const rest = { mode: 'exclusive', permits: 1, ttlMs: 600_000, waiterTtlMs: 0 } as const
  const claim: Claim = { claimId: `${changes.lockName}-${changes.holderId}`.slice(0, 60), ...rest, ...changes }
  await driver.acquire([claim], newCall())
  return claim
}
