import assert from 'node:assert/strict'
import { ReadWriteLock } from '../../../primitives/lock/read-write-lock.ts'
import { leaseOn, waitersOn } from '../driver-calls.ts'
import type { Group } from '../runner.ts'
import { type PrimitiveProcess, type TestContext, WAITS } from '../test-context.ts'
import { BRIEF_SECONDS, deferred, LONG_MS, timersRun, until, within } from '../timing.ts'

/** What `ReadWriteLock` makes of shared and exclusive claims, across processes. */
export const readersAndWriters: Group = (test) => {
  test('a writer is always alone, and readers share the lock', async (context) => {
    const processes = [await open(context), await open(context), await open(context)]
    const inside = { readers: 0, writers: 0 }
    const look = () => new Promise(setImmediate) // lets another holder run, if there is one
    const work = async ({ primitive }: Process, writes: boolean): Promise<void> => {
      for (let round = 0; round < 3; round += 1) {
        if (writes) {
          await primitive.withWrite(
            context.lockName,
            async () => {
              inside.writers += 1
              await look()
              assert.deepEqual([inside.writers, inside.readers], [1, 0])
              inside.writers -= 1
            },
            WAITING,
          )
        } else {
          await primitive.withRead(
            context.lockName,
            async () => {
              inside.readers += 1
              await look()
              assert.equal(inside.writers, 0)
              inside.readers -= 1
            },
            WAITING,
          )
        }
      }
    }
    await within(
      'all to have their turns',
      Promise.all(processes.flatMap((each) => [work(each, true), work(each, false)])),
    )
    // Explicitly, because the store chooses the order above.
    const [a, b] = processes as [Process, Process]
    const leases = await Promise.all([a, b].map(({ primitive }) => primitive.holdRead(context.lockName, WAITING)))
    assert.ok(leases.every((lease) => lease.held))
  })

  test('rule 10: readers that come later do not overtake a waiting writer', ['queue'], async (context) => {
    const [a, b] = [await open(context), await open(context)]
    const order: string[] = []
    const reader = await a.primitive.holdRead(context.lockName)
    const turn = (what: string, taken: Promise<AsyncDisposable>) =>
      taken.then(async (lease) => {
        order.push(what)
        await lease[Symbol.asyncDispose]()
      })
    const turns = [turn('writer', b.primitive.holdWrite(context.lockName, WAITING))]
    await waitersAre(context, a, 1)
    turns.push(turn('late reader', a.primitive.holdRead(context.lockName, WAITING)))
    await waitersAre(context, a, 2)
    assert.equal((await b.primitive.acquireRead(context.lockName, { blocking: false })).acquired, false)
    await reader.release()
    await within('both to have their turns', Promise.all(turns))
    assert.deepEqual(order, ['writer', 'late reader'])
  })

  test('a reader that was cut off blocks a writer no longer than its lease', async (context) => {
    const [a, b] = [await open(context), await open(context)]
    await a.primitive.acquireRead(context.lockName, { timeoutSeconds: BRIEF_SECONDS })
    await context.cutOff(a)
    const writer = await within('the writer', b.primitive.holdWrite(context.lockName, WAITING))
    assert.equal((await leaseOn(b.realDriver, context.lockName)).fencingToken, writer.fencingToken)
  })

  test('a DistributedLock is a writer: it and readers exclude each other', async (context) => {
    const [{ lock }, { primitive }] = [await context.lock(), await open(context)]
    const lease = await lock.hold(context.lockName)
    assert.equal((await primitive.acquireRead(context.lockName, { blocking: false })).acquired, false)
    await lease.release()
    await primitive.holdRead(context.lockName)
    assert.equal((await lock.acquire(context.lockName, { blocking: false })).acquired, false)
  })

  test('inside its own callbacks a reader reads again, and a writer reads and writes again', async (context) => {
    const { primitive, network } = await open(context)
    const { lockName } = context
    const sendsNothing = async (enter: () => Promise<number>, token: number): Promise<void> => {
      const before = network.counts.acquire.requests
      assert.equal(await enter(), token)
      assert.equal(network.counts.acquire.requests, before)
    }
    const read = () => primitive.withRead(lockName, ({ fencingToken }) => fencingToken)
    const write = () => primitive.withWrite(lockName, ({ fencingToken }) => fencingToken)
    await primitive.withRead(lockName, ({ fencingToken }) => sendsNothing(read, fencingToken))
    await primitive.withWrite(lockName, async ({ fencingToken }) => {
      await sendsNothing(read, fencingToken)
      await sendsNothing(write, fencingToken)
      await sendsNothing(() => primitive.withRead(lockName, write), fencingToken)
    })
  })

  test('an inner read or write keeps the lock from the moment of the call', async (context) => {
    const [{ primitive: a }, { primitive: b }] = [await open(context), await open(context)]
    const { lockName } = context
    type Runs = (job: () => unknown) => Promise<unknown>
    const read: Runs = (job) => a.withRead(lockName, job)
    const write: Runs = (job) => a.withWrite(lockName, job)
    for (const [outer, inner] of [
      [write, write],
      [write, read],
      [read, read],
    ] as const) {
      const entered = deferred()
      let running: Promise<unknown> | undefined
      const whole = outer(() => {
        running = inner(async () => {
          entered.resolve()
          await timersRun()
          return (await b.acquireWrite(lockName, { blocking: false })).acquired
        })
      })
      await entered.promise
      assert.equal(await running, false, 'a writer was let in beside the entry')
      await whole
      const next = await b.acquireWrite(lockName, { blocking: false })
      assert.ok(next.acquired, 'the outer call ended before it released the lock')
      await next.lock.release()
    }
  })

  test('a reader that asks to write is refused at once instead of waiting for itself', async (context) => {
    const { primitive, network } = await open(context)
    await primitive.withRead(context.lockName, async (reader) => {
      const before = network.counts.acquire.requests
      await assert.rejects(primitive.holdWrite(context.lockName, WAITING), {
        code: 'DEADLOCK',
        lockName: context.lockName,
      })
      assert.equal(network.counts.acquire.requests, before, 'nothing was sent for the writer')
      assert.equal(reader.held, true)
    })
  })
}

type Process = PrimitiveProcess<ReadWriteLock>

const open = (context: TestContext): Promise<Process> =>
  context.open((driver) => new ReadWriteLock({ driver, defaults: WAITS }))

const waitersAre = (context: TestContext, { realDriver }: Process, count: number): Promise<unknown> =>
  until(`${count} to wait`, async () => (await waitersOn(realDriver, context.lockName)).length === count)

const WAITING = { blockingTimeoutSeconds: LONG_MS / 1_000 }
