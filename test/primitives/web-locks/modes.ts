import assert from 'node:assert/strict'
import { setImmediate as turn } from 'node:timers/promises'
import type { LockManager, LockMode } from '../../../src/primitives/web-locks/web-locks.ts'
import { type Holding, hold, isFree, pendingOn, type Section } from './test-context.ts'

/** Sends requests in this order, each in its own turn, and waits until all have a place in the queue. */
async function holdInTurns(locks: LockManager, name: string, modes: readonly LockMode[]): Promise<Holding[]> {
  const holdings: Holding[] = []
  for (const mode of modes) {
    holdings.push(hold(locks, name, { mode }))
    await turn()
  }
  await locks.query()
  return holdings
}

const grantedOf = (holdings: readonly Holding[]): boolean[] => holdings.map(({ isGranted }) => isGranted)

async function endAll(holdings: readonly Holding[]): Promise<void> {
  for (const holding of holdings) holding.end()
  await Promise.all(holdings.map(({ done }) => done))
}

export const exclusive: Section = (test) => {
  test('exclusive is the default', async ({ locks, other, name }) => {
    const holding = hold(locks, name)
    assert.equal((await holding.granted).mode, 'exclusive')
    assert.equal(await isFree(other, name, { mode: 'shared' }), false)
    await endAll([holding])
  })

  test('requests of one turn are granted in their order', async ({ locks, name }) => {
    const order: number[] = []
    await Promise.all(Array.from({ length: 40 }, (_, index) => locks.request(name, () => void order.push(index))))
    assert.deepEqual(order, Array.from(order.keys()))
  })

  test('requests of different turns are granted in their order, over any number of connections', async ({
    locks,
    name,
  }) => {
    const order: number[] = []
    const requests: Promise<void>[] = []
    for (let index = 0; index < 30; index += 1) {
      requests.push(
        locks.request(name, async () => {
          order.push(index)
          await turn()
        }),
      )
      if (index % 3 === 0) await turn()
    }
    await Promise.all(requests)
    assert.deepEqual(order, Array.from(order.keys()))
  })

  test('requests for distinct resources can be granted, while an earlier one waits', async ({ locks, other, open }) => {
    // Each client has resources of its own.
    const orders = await Promise.all(
      [locks, other, open()].map(async (client, index) => {
        const [a, b] = [`a:${index}`, `b:${index}`]
        const order: string[] = []
        for (let round = 0; round < 8; round += 1) {
          let inside: Promise<unknown> = Promise.resolve()
          await client.request(a, async () => {
            // The first waits until this callback has ended, in this turn of the event loop. The second does not.
            inside = Promise.all([
              client.request(a, () => void order.push('a')),
              client.request(b, () => void order.push('b')),
            ])
          })
          await inside
        }
        return order.join('')
      }),
    )
    assert.deepEqual(new Set(orders), new Set(['ba'.repeat(8)]))
  })

  test('one at a time, across clients', async ({ locks, other, name }) => {
    let inside = 0
    let most = 0
    const enter = async (): Promise<void> => {
      inside += 1
      most = Math.max(most, inside)
      await turn()
      inside -= 1
    }
    await Promise.all(Array.from({ length: 20 }, (_, index) => (index % 2 ? locks : other).request(name, enter)))
    assert.equal(most, 1)
  })

  test('clients are served in the order of their requests', ['queue'], async ({ locks, other, name }) => {
    const first = hold(locks, name)
    await first.granted
    const order: string[] = []
    const requests: Promise<unknown>[] = []
    for (const [index, client] of [other, locks, other, other, locks].entries()) {
      requests.push(client.request(name, () => order.push(`${index}`)))
      await client.query()
    }
    first.end()
    await Promise.all(requests)
    assert.deepEqual(order, ['0', '1', '2', '3', '4'])
  })
}

export const shared: Section = (test) => {
  test('shared locks are held together, across clients', async ({ locks, other, name }) => {
    const holdings = [locks, locks, other, other].map((client) => hold(client, name, { mode: 'shared' }))
    for (const { granted } of holdings) assert.equal((await granted).mode, 'shared')
    await endAll(holdings)
  })

  test('shared locks of one client are granted in the order of their requests', async ({ locks, name }) => {
    const order: number[] = []
    const mode = 'shared'
    await Promise.all(
      Array.from({ length: 10 }, (_, index) => locks.request(name, { mode }, () => void order.push(index))),
    )
    assert.deepEqual(order, Array.from(order.keys()))
  })

  test('releasing a shared lock does not affect the others', async ({ locks, other, name }) => {
    const [first, second] = [hold(locks, name, { mode: 'shared' }), hold(other, name, { mode: 'shared' })]
    await Promise.all([first.granted, second.granted])
    await endAll([first])
    assert.equal(await isFree(locks, name), false)
    assert.equal(await isFree(locks, name, { mode: 'shared' }), true)
    await endAll([second])
    assert.equal(await isFree(locks, name), true)
  })
}

export const mixed: Section = (test) => {
  test('an exclusive request waits for every shared lock', async ({ locks, other, name }) => {
    const readers = [hold(locks, name, { mode: 'shared' }), hold(other, name, { mode: 'shared' })]
    await Promise.all(readers.map(({ granted }) => granted))
    const writer = hold(locks, name)
    await locks.query()
    assert.equal(writer.isGranted, false)
    await endAll(readers.slice(0, 1))
    await locks.query()
    assert.equal(writer.isGranted, false)
    await endAll(readers.slice(1))
    await writer.granted
    await endAll([writer])
  })

  test('shared requests wait for an exclusive lock, and are then granted together', async ({ locks, name }) => {
    const [writer, ...readers] = await holdInTurns(locks, name, ['exclusive', 'shared', 'shared', 'shared'])
    assert.deepEqual(grantedOf(readers), [false, false, false])
    await endAll([writer as Holding])
    await Promise.all(readers.map(({ granted }) => granted))
    await endAll(readers)
  })

  test('a shared request does not overtake a waiting exclusive one', async ({ locks, name }) => {
    const [reader, writer, late] = (await holdInTurns(locks, name, ['shared', 'exclusive', 'shared'])) as [
      Holding,
      Holding,
      Holding,
    ]
    assert.deepEqual(grantedOf([reader, writer, late]), [true, false, false])
    await endAll([reader])
    await writer.granted
    assert.equal(late.isGranted, false)
    await endAll([writer])
    await late.granted
    await endAll([late])
  })

  test('a shared request of another client does not overtake it either', ['queue'], async ({ locks, other, name }) => {
    const [reader, writer] = (await holdInTurns(locks, name, ['shared', 'exclusive'])) as [Holding, Holding]
    const late = hold(other, name, { mode: 'shared' })
    assert.equal((await pendingOn(other, name)).length, 2)
    assert.equal(late.isGranted, false)
    await endAll([reader])
    await writer.granted
    await endAll([writer, late])
  })

  test('each run of shared requests between exclusive ones is granted as one', ['queue'], async ({ locks, name }) => {
    const modes: LockMode[] = ['exclusive', 'shared', 'shared', 'exclusive', 'shared', 'exclusive']
    const holdings = modes.map((mode) => hold(locks, name, { mode }))
    const runs = [
      holdings.slice(0, 1),
      holdings.slice(1, 3),
      holdings.slice(3, 4),
      holdings.slice(4, 5),
      holdings.slice(5),
    ]
    for (const [index, run] of runs.entries()) {
      await Promise.all(run.map(({ granted }) => granted))
      await locks.query()
      assert.equal(grantedOf(holdings).filter(Boolean).length, runs.slice(0, index + 1).flat().length)
      await endAll(run)
    }
  })
}
