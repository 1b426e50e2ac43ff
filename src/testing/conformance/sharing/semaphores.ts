import assert from 'node:assert/strict'
import { Semaphore } from '../../../primitives/lock/semaphore.ts'
import { leasesOn, waitersOn } from '../driver-calls.ts'
import type { Group } from '../runner.ts'
import { type PrimitiveProcess, type TestContext, WAITS } from '../test-context.ts'
import { BRIEF_SECONDS, LONG_MS, until, within } from '../timing.ts'

/** What `Semaphore` makes of shared claims with a limit, across processes. */
export const semaphores: Group = (test) => {
  test('no more permits are out than the limit, and every claim gets a turn', async (context) => {
    const processes = [await open(context, 3), await open(context, 3), await open(context, 3)]
    let out = 0
    const work = async ({ primitive }: Process, permits: number): Promise<void> => {
      for (let round = 0; round < 4; round += 1) {
        const run = async (): Promise<void> => {
          out += permits
          assert.ok(out <= 3, `${out} of 3 permits are out`)
          await new Promise(setImmediate) // lets another holder run, if there is one
          out -= permits
        }
        await primitive.withPermits(context.lockName, run, { ...WAITING, permits })
      }
    }
    const tasks = processes.flatMap((process) => [work(process, 1), work(process, 2)])
    await within('all to have their turns', Promise.all(tasks))
    assert.deepEqual(await leasesOn((processes[0] as Process).realDriver, context.lockName), [])
  })

  test('all permits can be out at once, and the next claim says who holds one', async (context) => {
    const [a, b] = [await open(context, 2), await open(context, 2)]
    await Promise.all([a, b].map(({ primitive }) => primitive.hold(context.lockName, { blocking: false })))
    const refused = await a.primitive.acquire(context.lockName, { blocking: false })
    assert.ok(!refused.acquired)
    assert.ok([a, b].some(({ primitive }) => primitive.holderId === refused.holder?.holderId))
  })

  test('rule 10: claims for few permits do not overtake a claim for many', ['queue'], async (context) => {
    const [a, b] = [await open(context, 3), await open(context, 3)]
    const [first, second] = [await a.primitive.hold(context.lockName), await a.primitive.hold(context.lockName)]
    const many = b.primitive.hold(context.lockName, { ...WAITING, permits: 3 })
    await until('it to wait', async () => (await waitersOn(a.realDriver, context.lockName)).length === 1)
    assert.equal(
      (await a.primitive.acquire(context.lockName, { blocking: false })).acquired,
      false,
      'one permit is free',
    )
    await first.release()
    await second.release()
    const lease = await within('its turn', many)
    assert.equal((await a.primitive.acquire(context.lockName, { blocking: false })).acquired, false)
    await lease.release()
    assert.equal((await a.primitive.acquire(context.lockName, { blocking: false })).acquired, true)
  })

  test('rule 7: permits are returned once, however often their lease is released', async (context) => {
    const [a, b] = [await open(context, 2), await open(context, 2)]
    const lease = await a.primitive.hold(context.lockName)
    await b.primitive.hold(context.lockName)
    assert.equal(await lease.release(), true)
    assert.equal(await lease.release(), false)
    await a.primitive.hold(context.lockName, { blocking: false })
    assert.equal((await a.primitive.acquire(context.lockName, { blocking: false })).acquired, false)
  })

  test('the permits of a holder that was cut off are free again when its lease ends', async (context) => {
    const [a, b] = [await open(context, 2), await open(context, 2)]
    const stale = await a.primitive.hold(context.lockName, { permits: 2, timeoutSeconds: BRIEF_SECONDS })
    const next = b.primitive.hold(context.lockName, { ...WAITING, permits: 2 })
    await context.cutOff(a)
    const lease = await within('the permits to come back', next)
    assert.ok(lease.held && !stale.held)
  })

  test('inside its own callback more permits are counted, and refused above the limit', async (context) => {
    const { primitive, network } = await open(context, 3)
    await primitive.withPermits(context.lockName, () =>
      primitive.withPermits(
        context.lockName,
        async () => {
          await assert.rejects(primitive.hold(context.lockName, WAITING), { code: 'DEADLOCK' })
        },
        { permits: 2 },
      ),
    )
    assert.equal(network.counts.acquire.requests, 2, 'nothing was sent for the third')
  })
}

type Process = PrimitiveProcess<Semaphore>

const open = (context: TestContext, limit: number): Promise<Process> =>
  context.open((driver) => new Semaphore({ driver, limit, defaults: WAITS }))

const WAITING = { blockingTimeoutSeconds: LONG_MS / 1_000 }
