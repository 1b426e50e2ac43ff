import assert from 'node:assert/strict'
import { DeadlockError } from '../../../core/errors.ts'
import { waitersOn } from '../driver-calls.ts'
import type { Group } from '../runner.ts'
import type { LockProcess } from '../test-context.ts'
import { deferred, LONG_MS, until, within } from '../timing.ts'

/** Claims that wait for each other. */
export const deadlocks: Group = (test) => {
  test('of two claims in a deadlock the younger fails, with the names, and the older goes on', async (context) => {
    const [a, b] = [await context.lock({ holderId: 'a' }), await context.lock({ holderId: 'b' })]
    const [x, y] = ['x', 'y'].map(context.name) as [string, string]
    const bothHold = deferred()
    const done: string[] = []
    const older = a.lock.withLock(x, async () => {
      await bothHold.promise
      await a.lock.withLock(y, () => done.push('a'), WAITING)
    })
    const younger = b.lock.withLock(y, async () => {
      bothHold.resolve()
      await waitersAre(a, y, 1)
      await b.lock.withLock(x, () => done.push('b'), WAITING)
    })
    const error = await within(
      'the deadlock to be noticed',
      younger.then(
        () => undefined,
        (reason: unknown) => reason,
      ),
    )
    assert.ok(error instanceof DeadlockError, `${error}`)
    assert.equal(error.lockName, x)
    assert.deepEqual(error.cycle, [
      { holderId: 'b', lockName: x, heldBy: 'a' },
      { holderId: 'a', lockName: y, heldBy: 'b' },
    ])
    await within('the other to go on', older)
    assert.deepEqual(done, ['a'])
  })

  test('failure 50: tasks of two instances that wait without a cycle are left alone', async (context) => {
    // Instance a holds x and waits for y, and instance b holds y and waits for x. But the tasks that wait are not the
    // tasks that hold.
    const [a, b] = [
      await context.lock({ deadlockAfterSeconds: 0.2 }),
      await context.lock({ deadlockAfterSeconds: 0.2 }),
    ]
    const [x, y, own] = ['x', 'y', 'own'].map(context.name) as [string, string, string]
    const holders = [await a.lock.hold(x), await b.lock.hold(y)]
    const waiting = [
      a.lock.withLock(`${own}:a`, () => a.lock.withLock(y, () => 'a', WAITING)),
      b.lock.withLock(`${own}:b`, () => b.lock.withLock(x, () => 'b', WAITING)),
    ]
    await waitersAre(a, x, 1)
    await waitersAre(a, y, 1)
    const looks = () => [a, b].map(({ network }) => network.counts.inspect.answered)
    await until('both to have looked, twice', () => looks().every((count) => count >= 2))
    for (const lease of holders) await lease.release()
    assert.deepEqual(await within('both to go on', Promise.all(waiting)), ['a', 'b'])
  })
}

const waitersAre = ({ realDriver }: LockProcess, lockName: string, count: number): Promise<unknown> =>
  until(`${count} to wait for it`, async () => (await waitersOn(realDriver, lockName)).length === count)

const WAITING = { blockingTimeoutSeconds: LONG_MS / 1_000 }
