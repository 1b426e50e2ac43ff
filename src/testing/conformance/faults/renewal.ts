import assert from 'node:assert/strict'
import { LeaseLostError } from '../../../core/errors.ts'
import { type Clock, systemClock } from '../../../core/time/clock.ts'
import { fails, holdReply, losesReply } from '../faulty-network.ts'
import type { Group } from '../runner.ts'
import { BRIEF_SECONDS, KEPT_SECONDS, monotonicMs, sleep, timersRun, until, within } from '../timing.ts'

/** What can go wrong while a lease is renewed. */
export const renewalFaults: Group = (test) => {
  for (const how of ['hangs', 'is down'] as const) {
    test(`rule 3: when the store ${how}, the signal comes no later than the lease ends`, ['ttl'], async (context) => {
      const [a, b] = [await context.lock(), await context.lock()]
      const lease = await a.lock.hold(context.lockName, { timeoutSeconds: BRIEF_SECONDS })
      const { signal } = lease
      const fault = how === 'hangs' ? a.network.hangs : fails
      for (const method of ['acquire', 'renew', 'release'] as const) a.network.always(method, fault)
      await within('the rival to take over', b.lock.hold(context.lockName, { blockingTimeoutSeconds: 30 }))
      await timersRun()
      assert.equal(signal.aborted, true, 'a rival had the lock before the holder was notified')
      assert.ok(signal.reason instanceof LeaseLostError)
      assert.throws(() => lease.assertHeld(), LeaseLostError)
    })
  }

  test('fault: a job under withLock is notified when the store hangs, and withLock rejects', async (context) => {
    const { lock, network } = await context.lock({ callTimeoutSeconds: 0.1 })
    let told: unknown
    const run = lock.withLock(
      context.lockName,
      async ({ signal }) => {
        network.cut()
        await until('the job to be notified', () => signal.aborted)
        told = signal.reason
      },
      { timeoutSeconds: BRIEF_SECONDS },
    )
    await assert.rejects(within('withLock to end', run), LeaseLostError)
    assert.ok(told instanceof LeaseLostError)
  })

  test('fault: one renewal that fails does not end a healthy lease', async (context) => {
    const { lock, network } = await context.lock()
    network.once('renew', fails)
    const lease = await lock.hold(context.lockName, { timeoutSeconds: KEPT_SECONDS })
    const { signal } = lease
    await until('a renewal after the one that failed', () => network.counts.renew.answered >= 1)
    assert.equal(network.counts.renew.calls >= 2, true)
    assert.equal(lease.held, true)
    assert.equal(signal.aborted, false)
    assert.equal(await lease.release(), true)
  })

  test('one renewal whose reply is lost does not end a healthy lease', async (context) => {
    const { lock, network } = await context.lock()
    network.once('renew', losesReply)
    const lease = await lock.hold(context.lockName, { timeoutSeconds: KEPT_SECONDS })
    await until('a renewal after the one that was lost', () => network.counts.renew.answered >= 2)
    assert.equal(lease.held, true)
    assert.equal(await lease.release(), true)
  })

  test('rule 3: a renewal that hangs does not use up the lease: the next one is sent beside it', async (context) => {
    // A call may take longer than the lease lasts.
    const { lock, network } = await context.lock({ callTimeoutSeconds: 5 })
    const startedMs = monotonicMs()
    network.once('renew', network.hangs)
    const lease = await lock.hold(context.lockName, { timeoutSeconds: KEPT_SECONDS })
    await until('more than the time to live', () => monotonicMs() - startedMs > KEPT_SECONDS * 1_100)
    assert.equal(lease.held, true)
    assert.equal(await lease.release(), true)
  })

  test('rule 3: an unanswered extension to a short TTL does not end a lease with a heartbeat', async (context) => {
    const { lock, network } = await context.lock({ callTimeoutSeconds: 5 })
    const lease = await lock.hold(context.lockName, { timeoutSeconds: 30 })
    network.once('renew', network.hangs)
    const extended = lease.extend(KEPT_SECONDS).catch(() => undefined)
    await until('a renewal beside it', () => network.counts.renew.answered > 0 || !lease.held)
    assert.equal(lease.held, true)
    // The extension may still arrive and set the end of the lease.
    assert.ok(lease.remainingSeconds <= KEPT_SECONDS, `${lease.remainingSeconds}`)
    network.heal()
    await extended
    assert.equal(await lease.release(), true)
  })

  test('rule 2: a renewal that is answered after the deadline does not revive the lease', async (context) => {
    const [a, b] = [await context.lock(), await context.lock()]
    const result = await a.lock.acquire(context.lockName, { timeoutSeconds: BRIEF_SECONDS })
    assert.ok(result.acquired)
    const reply = holdReply()
    a.network.always('renew', reply.fault)
    const extended = result.lock.extend(60)
    await until('the deadline', () => !result.lock.held)
    reply.resume()
    assert.equal(await extended, false)
    assert.equal(result.lock.held, false)
    await until('the store to be rid of what the renewal left there', async () => {
      return (await b.lock.acquire(context.lockName, { blocking: false })).acquired
    })
  })

  test('rule 2: a renewal answered after a stall does not revive the lease before timers run', async (context) => {
    const shifted = shiftedClock({ monotonic: true, wall: true })
    const { lock, network } = await context.lock({ clock: shifted.clock })
    const lease = await lock.hold(context.lockName, { timeoutSeconds: 30 })
    const reply = holdReply()
    network.once('renew', reply.fault)
    const extended = lease.extend(60)
    await reply.reached
    shifted.shift(30_000)
    reply.resume()
    assert.equal(await extended, false)
    assert.equal(lease.held, false)
    assert.ok(lease.signal.reason instanceof LeaseLostError)
  })

  for (const [what, clocks] of [
    ['the process stood still', { monotonic: true, wall: true }],
    ['the machine was suspended and only the wall clock went on', { monotonic: false, wall: true }],
    ['the wall clock was set back', { monotonic: true, wall: false }],
  ] as const) {
    test(`rule 2: held is false in the first statement after ${what} for a time to live`, async (context) => {
      const shifted = shiftedClock(clocks)
      const { lock, network } = await context.lock({ clock: shifted.clock })
      const lease = await lock.hold(context.lockName, { timeoutSeconds: 30 })
      const { signal } = lease
      assert.equal(lease.held, true)
      shifted.shift(30_000)
      assert.equal(lease.held, false)
      assert.equal(signal.aborted, true)
      assert.equal(await lease.extend(30), false)
      assert.equal(network.counts.renew.calls, 0, 'a lease past its deadline must not be renewed')
    })
  }

  test('fault: a renewal that times out causes no unhandled rejection', async (context) => {
    const unhandled: unknown[] = []
    const note = (reason: unknown) => unhandled.push(reason)
    process.on('unhandledRejection', note)
    try {
      const { lock, network } = await context.lock({ callTimeoutSeconds: 0.05 })
      const { signal } = await lock.hold(context.lockName, { timeoutSeconds: BRIEF_SECONDS })
      network.cut()
      await until('the loss', () => signal.aborted)
      await sleep(100) // until the calls in flight have timed out, too
      assert.deepEqual(unhandled, [])
    } finally {
      process.off('unhandledRejection', note)
    }
  })

  test('fault: a short TTL does not make the heartbeat a hot loop', async (context) => {
    const { lock, network } = await context.lock()
    const ttlMs = 60
    const startedMs = monotonicMs()
    // A machine under load may lose so short a lease. The test is about how often the store was asked.
    const lease = await until('a lease', () =>
      lock.hold(context.lockName, { timeoutSeconds: ttlMs / 1_000 }).catch(() => undefined),
    )
    await until('half a second or the loss', () => monotonicMs() - startedMs > 500 || !lease.held)
    const most = 2 + (monotonicMs() - startedMs) / (ttlMs / 10)
    assert.ok(network.counts.renew.calls <= most, `${network.counts.renew.calls} renewals, at most ${most}`)
  })

  test('fault: renewals that fail are not repeated in a hot loop', async (context) => {
    const { lock, network } = await context.lock()
    network.always('renew', fails)
    const { signal } = await lock.hold(context.lockName, { timeoutSeconds: BRIEF_SECONDS })
    await until('the loss', () => signal.aborted)
    assert.ok(network.counts.renew.calls <= 10, `${network.counts.renew.calls} renewals`)
  })
}

/** The system clock until it is shifted. Its timers do not notice, as after a stall in which no timer could run. */
function shiftedClock(which: { readonly monotonic: boolean; readonly wall: boolean }) {
  let shiftMs = 0
  const clock: Clock = {
    now() {
      const { monotonicMs: monotonic, wallMs } = systemClock.now()
      return {
        monotonicMs: monotonic + (which.monotonic ? shiftMs : 0),
        wallMs: wallMs + (which.wall ? shiftMs : 0),
      }
    },
    setTimer: systemClock.setTimer,
  }
  return {
    clock,
    shift(ms: number) {
      shiftMs += ms
    },
  }
}
