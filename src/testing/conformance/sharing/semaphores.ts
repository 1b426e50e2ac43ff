import assert from 'node:assert/strict'
import { Semaphore } from '../../../primitives/semaphore.ts'
import { leasesOn, waitersOn } from '../asking.ts'
import type { Group } from '../runner.ts'
import { type PrimitiveProcess, type Scene, WAITS } from '../scene.ts'
import { BRIEF_SECONDS, LONG_MS, until, within } from '../timing.ts'

/** What `Semaphore` makes of shared claims with a limit, over processes. */
export const semaphores: Group = (test) => {
  test('never more permits out than the limit, and all get their turns', async (scene) => {
    const processes = [await open(scene, 3), await open(scene, 3), await open(scene, 3)]
    let out = 0
    const work = async ({ primitive }: Process, permits: number): Promise<void> => {
      for (let round = 0; round < 4; round += 1) {
        const run = async (): Promise<void> => {
          out += permits
          assert.ok(out <= 3, `${out} of 3 permits are out`)
          await new Promise(setImmediate) // gives others the chance to be seen
          out -= permits
        }
        await primitive.withPermits(scene.lockName, run, { ...WAITING, permits })
      }
    }
    const tasks = processes.flatMap((process) => [work(process, 1), work(process, 2)])
    await within('all to have their turns', Promise.all(tasks))
    assert.deepEqual(await leasesOn((processes[0] as Process).realDriver, scene.lockName), [])
  })

  test('all permits can be out at once, and the next claim says who holds one', async (scene) => {
    const [a, b] = [await open(scene, 2), await open(scene, 2)]
    await Promise.all([a, b].map(({ primitive }) => primitive.hold(scene.lockName, { blocking: false })))
    const refused = await a.primitive.acquire(scene.lockName, { blocking: false })
    assert.ok(!refused.acquired)
    assert.ok([a, b].some(({ primitive }) => primitive.holderId === refused.holder?.holderId))
  })

  test('rule 10: a claim for many permits is not overtaken by claims for few', ['queue'], async (scene) => {
    const [a, b] = [await open(scene, 3), await open(scene, 3)]
    const [first, second] = [await a.primitive.hold(scene.lockName), await a.primitive.hold(scene.lockName)]
    const many = b.primitive.hold(scene.lockName, { ...WAITING, permits: 3 })
    await until('it to wait', async () => (await waitersOn(a.realDriver, scene.lockName)).length === 1)
    assert.equal((await a.primitive.acquire(scene.lockName, { blocking: false })).acquired, false, 'one permit is free')
    await first.release()
    await second.release()
    const lease = await within('its turn', many)
    assert.equal((await a.primitive.acquire(scene.lockName, { blocking: false })).acquired, false)
    await lease.release()
    assert.equal((await a.primitive.acquire(scene.lockName, { blocking: false })).acquired, true)
  })

  test('rule 7: permits are given back once, however often their lease is released', async (scene) => {
    const [a, b] = [await open(scene, 2), await open(scene, 2)]
    const lease = await a.primitive.hold(scene.lockName)
    await b.primitive.hold(scene.lockName)
    assert.equal(await lease.release(), true)
    assert.equal(await lease.release(), false)
    await a.primitive.hold(scene.lockName, { blocking: false })
    assert.equal((await a.primitive.acquire(scene.lockName, { blocking: false })).acquired, false)
  })

  test('the permits of a holder that was cut off come back when its lease is over', async (scene) => {
    const [a, b] = [await open(scene, 2), await open(scene, 2)]
    const stale = await a.primitive.hold(scene.lockName, { permits: 2, timeoutSeconds: BRIEF_SECONDS })
    const next = b.primitive.hold(scene.lockName, { ...WAITING, permits: 2 })
    await scene.cutOff(a)
    const lease = await within('the permits to come back', next)
    assert.ok(lease.held && !stale.held)
  })

  test('inside its own callback further permits are counted, and more than there could be are refused', async (scene) => {
    const { primitive, wire } = await open(scene, 3)
    await primitive.withPermits(scene.lockName, () =>
      primitive.withPermits(
        scene.lockName,
        async () => {
          await assert.rejects(primitive.hold(scene.lockName, WAITING), { code: 'DEADLOCK' })
        },
        { permits: 2 },
      ),
    )
    assert.equal(wire.counts.acquire.requests, 2, 'nothing was sent for the third')
  })
}

type Process = PrimitiveProcess<Semaphore>

const open = (scene: Scene, limit: number): Promise<Process> =>
  scene.open((driver) => new Semaphore({ driver, limit, defaults: WAITS }))

const WAITING = { blockingTimeoutSeconds: LONG_MS / 1_000 }
