// @ts-check
// Five real processes, one lock, no server: npm run demo
//
// HOLDFAST_DEMO_SPEED=4 makes it faster, for the test. With NO_COLOR or in a pipe it prints no colours.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { Account, CarelessAccount } from './account.mjs'
import { now, startCast } from './cast.mjs'
import { createScreen, paint, short } from './screen.mjs'
import { claims, seconds, tally } from './tally.mjs'

/** @typedef {import('./tally.mjs').DemoEvent} DemoEvent */

const speed = Math.min(10, Math.max(1, Number(process.env['HOLDFAST_DEMO_SPEED'] ?? 1) || 1))
const names = ['ada', 'bob', 'cyd', 'dee', 'eve']
const rounds = 3
const holdMs = Math.max(100, 300 / speed)
/** Not much shorter: on a busy machine, a process must not lose its lease by accident. */
const ttlMs = speed > 1 ? 2_000 : 3_000
const ttlSeconds = ttlMs / 1_000

const folder = mkdtempSync(join(tmpdir(), 'holdfast-demo-'))
writeFileSync(join(folder, 'counter'), '0')
/** @type {DemoEvent[]} */
const events = []
const screen = createScreen({ cast: names, events, startedAt: now() })
const account = new Account()
const careless = new CarelessAccount()
const cast = startCast({ names, folder, events, onEvent: react })

function cleanUp() {
  cast.end()
  rmSync(folder, { recursive: true, force: true, maxRetries: 5, retryDelay: 50 })
}
process.on('exit', cleanUp)
for (const [signal, code] of /** @type {const} */ ([
  ['SIGINT', 130],
  ['SIGTERM', 143],
  ['SIGHUP', 129],
])) {
  process.on(signal, () => {
    screen.print(`\n${signal}: ended the processes and removed ${folder}`)
    process.exit(code)
  })
}

try {
  screen.print(paint('bold', `Holdfast: ${names.length} processes, one lock, no server`))
  screen.print(paint('dim', `processes: ${names.map((name) => `${name} ${cast.pidOf(name)}`).join(', ')}`))
  screen.print(paint('dim', `store:     an SQLite file in ${folder}`))
  screen.print(paint('dim', 'tokens:    long numbers; the last nine digits are shown'))
  screen.print(screen.legend)
  await race()
  await killTheHolder()
  await pauseTheHolder()
  process.exitCode = close()
} catch (error) {
  screen.print(`\nThe demo failed. ${error instanceof Error ? error.message : error}`)
  process.exitCode = 1
}
// The other processes are alive, and would keep this one alive, too.
process.exit()

async function race() {
  screen.act(
    '1  A race',
    `Each process acquires the lock ${rounds} times. The holder reads a number from a file,
waits, and writes it back plus 1: two holders at once would lose an addition.`,
  )
  await timeToRead()
  for (const name of names) cast.tell(name, 'race', { rounds, holdMs })
  await Promise.all(names.map((name) => cast.until(`${name} ends the race`, of(name, 'is done'))))
  const counted = Number(readFileSync(join(folder, 'counter'), 'utf8'))
  const expected = rounds * names.length
  cast.record({ at: now(), who: 'the file', what: 'counts', counted, expected })
  screen.line(now(), `after ${expected} additions the number in the file is ${paint('bold', String(counted))}`)
}

async function killTheHolder() {
  const [victim = '', ...others] = names.slice(0, 3)
  screen.act(
    '2  The holder dies',
    `${victim} gets SIGKILL while it holds the lock. It can no longer release it, but its
lease expires: it is not renewed, and its time to live is ${ttlSeconds} s.`,
  )
  await timeToRead()
  const from = now()
  cast.tell(victim, 'hold', { ttlSeconds })
  await cast.until(`${victim} holds`, of(victim, 'holds', from))
  for (const name of others) cast.tell(name, 'hold', { ttlSeconds })
  for (const name of others) await cast.until(`${name} waits`, of(name, 'asks', from))
  await sleep(1_200 / speed)
  const killed = await cast.kill(victim, ttlMs)
  screen.line(killed.at, `${paint('red', 'kill -9')} to ${victim}, process ${killed.pid}`)
  const taken = await takeover(killed.at, `${victim}'s lease expires`)
  screen.line(now(), `${seconds(taken.at - killed.at)} after the kill, with a TTL of ${seconds(ttlMs)}`)
  await timeToRead()
  for (let last = killed.at, left = others.length; left > 0; left -= 1) {
    const next = await cast.until('the next process holds', ({ what, at }) => what === 'holds' && at > last)
    await sleep(400 / speed)
    cast.tell(next.who, 'let go')
    await cast.until(`${next.who} lets go`, of(next.who, 'is done', next.at))
    last = next.at
  }
}

async function pauseTheHolder() {
  const [sleeper = '', heir = ''] = names.slice(3)
  screen.act(
    '3  The holder is paused',
    `${sleeper} reads a balance, is stopped for longer than its lease, and then writes as if
nothing had happened. The account rejects a token smaller than one it has seen.`,
  )
  await timeToRead()
  const from = now()
  cast.tell(sleeper, 'stall', { ttlSeconds, amount: 50 })
  await cast.until(`${sleeper} holds`, of(sleeper, 'is ready to be paused', from))
  cast.tell(heir, 'deposit', { ttlSeconds, amount: 30 })
  await cast.until(`${heir} waits`, of(heir, 'asks', from))
  await sleep(300 / speed)
  const { at } = cast.pause(sleeper, ttlMs)
  screen.line(at, `${paint('magenta', 'SIGSTOP')} to ${sleeper}, like a closed laptop`)
  await takeover(at, `${sleeper}'s lease expires`)
  await cast.until(`${heir} writes`, of(heir, 'writes', at))
  await sleep(Math.max(1_000 / speed, at + ttlMs + 500 - now()))
  const resumed = cast.resume(sleeper)
  screen.line(resumed.at, `${paint('magenta', 'SIGCONT')} to ${sleeper}`)
  await cast.until(`${sleeper} writes`, of(sleeper, 'is done', resumed.at))
  await timeToRead()
  cast.tell(heir, 'let go')
  await cast.until(`${heir} lets go`, of(heir, 'is done', resumed.at))
}

/** Prints the results, and returns the exit code. */
function close() {
  const said = claims(events)
  const { grants, processes, risingTokens, overlaps, takeovers, refusedWrites } = tally(events)
  screen.print()
  screen.print(paint('bold', 'What you have seen'))
  for (const { shown, text } of said) {
    screen.print(shown ? `  ${paint('green', '✓')} ${text}` : `  ${paint('red', '✗')} NOT SHOWN: ${text}`)
  }
  const counts = {
    processes,
    grants,
    'rising tokens': risingTokens,
    overlaps,
    takeovers: takeovers.length,
    refusals: refusedWrites.length,
  }
  screen.print()
  screen.print(
    Object.entries(counts)
      .map(([what, count]) => `${what} ${count}`)
      .join(', '),
  )
  return said.every(({ shown }) => shown) ? 0 : 1
}

/**
 * Answers the processes' reads and writes of the account, and shows their events.
 *
 * @param {DemoEvent} event
 */
function react(event) {
  const { at, who, what, token = 0, balance = 0 } = event
  if (what === 'holds') screen.line(at, `${paint('green', who)} holds, token ${short(token)}`)
  if (what === 'wakes') {
    const resumedAt = events.findLast(of(who, 'is resumed'))?.at ?? at
    screen.line(
      at,
      `${who} checks ${(at - resumedAt).toFixed(1)} ms later: held is ${paint('bold', String(event.held))}`,
    )
  }
  if (what === 'reads') {
    account.accept(token)
    screen.line(at, `${who} presents its token and reads the balance: ${account.balance}`)
    cast.tell(who, 'balance', { balance: account.balance })
  }
  if (what === 'writes') {
    event.accepted = account.write(balance, token)
    event.acceptedWithoutCheck = careless.write(balance)
    const answer = event.accepted ? paint('green', 'accepted') : paint(['bold', 'red'], 'REJECTED')
    screen.line(at, `${who} writes ${balance}, token ${short(token)}: ${answer}`)
    if (!event.accepted) {
      screen.line(at, `so the balance stays ${account.balance}`)
      screen.line(at, `an account without the check now has ${careless.balance}`)
    }
    cast.tell(who, 'answer')
  }
}

/**
 * @param {number} since
 * @param {string} text
 */
async function takeover(since, text) {
  const end = screen.countdown(text, since, ttlMs)
  try {
    return await cast.until('another process takes over', ({ what, at }) => what === 'holds' && at > since)
  } finally {
    end()
  }
}

/**
 * @param {string} name
 * @param {string} word
 * @param {number} [since]
 * @returns {(event: DemoEvent) => boolean}
 */
function of(name, word, since = 0) {
  return ({ who, what, at }) => who === name && what === word && at >= since
}

/** Time to read a sentence. */
function timeToRead() {
  return sleep(1_000 / speed)
}
