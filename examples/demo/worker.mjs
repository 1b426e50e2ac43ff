// @ts-check
// One process of the demo. It carries out the orders of main.mjs, and reports events.
import { readFileSync, writeFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { DistributedLock } from 'holdfast'

/** @typedef {import('./tally.mjs').DemoEvent} DemoEvent */

const { DEMO_NAME: name = '', DEMO_FOLDER: folder = '' } = process.env
const lock = new DistributedLock({ url: `sqlite:${folder}/locks.db`, holderId: name })

/** @typedef {{ rounds?: number, holdMs?: number, ttlSeconds?: number, amount?: number }} Order */
/** @typedef {{ order: string, balance?: number } & Order} Message */

/**
 * The orders. Each ends when the lock has been released or lost.
 *
 * @type {Record<string, (order: Order) => Promise<void>>}
 */
const orders = {
  /**
   * Holds the lock several times. Each time it adds 1 to a number in a file. Two holders at once would lose updates.
   */
  async race({ rounds = 0, holdMs = 0 }) {
    for (let round = 0; round < rounds; round += 1) {
      await underLock(10, async () => {
        const before = Number(readFileSync(`${folder}/counter`, 'utf8'))
        await sleep(holdMs)
        writeFileSync(`${folder}/counter`, String(before + 1))
      })
    }
  },

  /** Holds the lock, with a heartbeat, until the order "let go". */
  async hold({ ttlSeconds = 0 }) {
    await underLock(ttlSeconds, async () => {
      await told('let go')
    })
  },

  /** Acquires the lock, adds to the account's balance, and holds the lock until the order "let go". */
  async deposit({ ttlSeconds = 0, amount = 0 }) {
    await underLock(ttlSeconds, async (fencingToken) => {
      const balance = await readBalance(fencingToken)
      await write(balance + amount, fencingToken)
      await told('let go')
    })
  },

  /**
   * Like `deposit`, but is paused between its read and its write. It writes after the pause, like a program that does
   * not check whether it still holds the lock. It only reports the result of that check.
   */
  async stall({ ttlSeconds = 0, amount = 0 }) {
    tell('asks')
    const lease = await lock.hold('demo', { timeoutSeconds: ttlSeconds, blockingTimeoutSeconds: 60 })
    tell('holds', { token: lease.fencingToken })
    const balance = await readBalance(lease.fencingToken)
    tell('is ready to be paused')
    stallUntilPaused(ttlSeconds * 1_000)
    // The first statement after the pause: no timer and no callback has run yet.
    tell('wakes', { held: lease.held })
    await write(balance + amount, lease.fencingToken)
  },
}

/**
 * @param {number} ttlSeconds
 * @param {(fencingToken: number) => Promise<void>} work
 */
async function underLock(ttlSeconds, work) {
  tell('asks')
  const options = { timeoutSeconds: ttlSeconds, blockingTimeoutSeconds: 60 }
  await lock.withLock(
    'demo',
    async ({ fencingToken }) => {
      tell('holds', { token: fencingToken })
      await work(fencingToken)
      tell('lets go')
    },
    options,
  )
}

const demo = process.ppid

/**
 * Blocks the event loop, so that nothing runs between the pause and the next statement. This is also a safe place for
 * the pause: a process that is stopped inside a transaction would block the others.
 *
 * @param {number} longerThanMs
 */
function stallUntilPaused(longerThanMs) {
  const never = new Int32Array(new SharedArrayBuffer(4))
  for (let last = now(); ; ) {
    Atomics.wait(never, 0, 0, 5)
    // The blocked event loop cannot receive the message that the demo has ended.
    if (process.ppid !== demo) process.exit()
    const gap = now() - last
    if (gap > longerThanMs) return
    last += gap
  }
}

/** @param {number} token presented before the read: see `Account.accept` */
async function readBalance(token) {
  tell('reads', { token })
  return (await told('balance')).balance ?? 0
}

/**
 * @param {number} balance
 * @param {number} token
 */
async function write(balance, token) {
  tell('writes', { balance, token })
  await told('answer')
}

/**
 * @param {string} what
 * @param {Partial<DemoEvent>} [more]
 */
function tell(what, more) {
  process.send?.({ at: now(), who: name, what, ...more })
}

/** @type {Map<string, (message: Message) => void>} */
const expected = new Map()

/**
 * @param {string} word
 * @returns {Promise<Message>}
 */
function told(word) {
  return new Promise((resolve) => expected.set(word, resolve))
}

/** The monotonic clock, which all processes of a machine share, in milliseconds. */
function now() {
  return Number(process.hrtime.bigint()) / 1e6
}

process.on('message', async (/** @type {Message} */ message) => {
  const carryOut = orders[message.order]
  if (carryOut === undefined) {
    expected.get(message.order)?.(message)
    return
  }
  try {
    await carryOut(message)
    tell('is done')
  } catch (error) {
    tell('fails', { error: error instanceof Error ? `${error.name}: ${error.message}` : String(error) })
  }
})
// Its processes end with the demo.
process.on('disconnect', () => process.exit())
