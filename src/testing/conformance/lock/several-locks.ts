import assert from 'node:assert/strict'
import type { NotAcquiredError } from '../../../core/errors.ts'
import { MAX_LOCKS_AT_ONCE } from '../../../core/limits.ts'
import { callsFor, leasesOn } from '../driver-calls.ts'
import { losesReply } from '../faulty-network.ts'
import type { Group } from '../runner.ts'
import { BRIEF_SECONDS, deferred, KEPT_SECONDS, LONG_MS, timersRun, until, VAIN_SECONDS, within } from '../timing.ts'

/** `withLocks` acquires all of the names, or none. */
export const severalLocks: Group = (test) => {
  test('all are held while the function runs, and none after it', async (context) => {
    const { lock, realDriver } = await context.lock()
    const names = ['b', 'ä', 'a', 'b'].map(context.name)
    const tokens = await lock.withLocks(names, async (leases) => {
      assert.deepEqual(
        leases.map(({ lockName }) => lockName),
        names,
      )
      assert.equal(leases[0], leases[3], 'a name that is given twice is taken once')
      for (const { lockName, fencingToken } of leases) {
        assert.deepEqual(await tokensOn(lockName), [fencingToken])
      }
      return leases.map(({ fencingToken }) => fencingToken)
    })
    assert.equal(tokens.length, 4)
    for (const name of names) assert.deepEqual(await tokensOn(name), [])

    async function tokensOn(name: string): Promise<number[]> {
      return (await leasesOn(realDriver, name)).map(({ fencingToken }) => fencingToken)
    }
  })

  test('free locks are acquired in one call to each part of the store, and released in one', async (context) => {
    const { lock, network, realDriver } = await context.lock()
    const names = ['c', 'a', 'b'].map(context.name)
    await lock.withLocks(names, () => {})
    const calls = callsFor(realDriver, names)
    assert.deepEqual([network.counts.acquire.calls, network.counts.release.calls], [calls, calls])
  })

  test('the loss of a re-entered lease ends the wait for the others', ['ttl'], async (context) => {
    const [{ lock: a }, { lock: b }] = [await context.lock(), await context.lock()]
    const other = context.name('other')
    await b.hold(other)
    const options = { blockingTimeoutSeconds: KEPT_SECONDS }
    const both = () => a.withLocks([context.lockName, other], () => assert.fail('it ran'), options)
    const brief = { heartbeat: false, timeoutSeconds: BRIEF_SECONDS }
    const lost = { code: 'LEASE_LOST', lockName: context.lockName }
    await assert.rejects(
      a.withLock(context.lockName, () => assert.rejects(both(), lost), brief),
      lost,
    )
  })

  test(
    'the function does not run if a re-entered lease is lost before the others are granted',
    ['ttl'],
    async (context) => {
      const [{ lock: a, network }, { lock: b }] = [await context.lock(), await context.lock()]
      const other = context.name('other')
      const brief = { heartbeat: false, timeoutSeconds: BRIEF_SECONDS }
      const lost = { code: 'LEASE_LOST', lockName: context.lockName }
      const job = a.withLock(
        context.lockName,
        async (outer) => {
          const ended = deferred()
          outer.signal.addEventListener('abort', () => ended.resolve())
          network.once('acquire', async (forward) => {
            await ended.promise
            return forward()
          })
          await assert.rejects(
            a.withLocks([context.lockName, other], () => assert.fail('it ran')),
            lost,
          )
        },
        brief,
      )
      await assert.rejects(job, lost)
      assert.equal((await b.acquire(other)).acquired, true, 'what was granted too late was not released')
    },
  )

  test('a call that waits for more locks keeps the one that it re-entered, awaited or not', async (context) => {
    const [{ lock: a }, { lock: b, realDriver }] = [await context.lock(), await context.lock()]
    const other = context.name('other')
    const held = await b.hold(other)
    let inner: Promise<boolean> | undefined
    const outer = a.withLock(context.lockName, () => {
      inner = a.withLocks([context.lockName, other], async ([first]) => {
        await timersRun()
        return first?.held === true && !(await b.acquire(context.lockName, { blocking: false })).acquired
      })
    })
    await until('the lock that is entered', async () => (await leasesOn(realDriver, context.lockName)).length === 1)
    await timersRun()
    assert.equal((await b.acquire(context.lockName, { blocking: false })).acquired, false)
    await held.release()
    assert.equal(await within('the inner call', inner as Promise<boolean>), true)
    await outer
  })

  test('if one is held and the call does not wait, none is kept', async (context) => {
    const [{ lock: a }, { lock: b, realDriver }] = [await context.lock(), await context.lock()]
    const [first, second, third] = ['1', '2', '3'].map(context.name) as [string, string, string]
    await a.hold(second)
    await assert.rejects(
      b.withLocks([first, second, third], () => assert.fail('it ran'), { blocking: false }),
      {
        code: 'NOT_ACQUIRED',
        lockName: second,
      },
    )
    for (const name of [first, third]) assert.deepEqual(await leasesOn(realDriver, name), [])
  })

  test('if one is held, the others are neither granted nor released', ['groups'], async (context) => {
    const [{ lock: a }, { lock: b, network }] = [await context.lock(), await context.lock()]
    const names = ['1', '2', '3'].map(context.name) as [string, string, string]
    await a.hold(names[1])
    const granted: string[] = []
    b.on('acquired', ({ lockName }) => granted.push(lockName))
    const job = b.withLocks(names, () => assert.fail('it ran'), { blocking: false })
    await assert.rejects(job, ({ lockName, holder }: NotAcquiredError) => {
      assert.deepEqual([lockName, holder?.holderId], [names[1], a.holderId])
      return true
    })
    await b.close()
    assert.deepEqual(granted, [])
    assert.equal(network.counts.release.requests, 0, 'something was released')
  })

  test(
    'while one is held and the call does not wait, no client is ever refused the others',
    ['groups'],
    async (context) => {
      const [{ lock: a }, { lock: b }] = [await context.lock(), await context.lock()]
      const names = ['1', '2', '3'].map(context.name) as [string, string, string]
      await a.hold(names[1])
      let isOver = false
      const asking = async (): Promise<void> => {
        for (let round = 0; round < 20; round += 1) {
          await assert.rejects(
            b.withLocks(names, () => assert.fail('it ran'), { blocking: false }),
            { code: 'NOT_ACQUIRED' },
          )
        }
        isOver = true
      }
      const watching = async (name: string): Promise<void> => {
        while (!isOver) await a.withLock(name, () => {}, { blocking: false })
      }
      await Promise.all([asking(), watching(names[0]), watching(names[2])])
    },
  )

  test('the largest allowed group is not split beside other claims of the same turn', ['groups'], async (context) => {
    const [{ lock: a }, { lock: b, network, realDriver }] = [await context.lock(), await context.lock()]
    const names = Array.from({ length: MAX_LOCKS_AT_ONCE }, (_, at) => context.name(`member ${at}`))
    await a.hold(names.at(-1) as string)
    const others = Array.from({ length: 150 }, (_, at) => b.hold(context.name(`other ${at}`)))
    const refused = assert.rejects(
      b.withLocks(names, () => assert.fail('it ran'), { blocking: false }),
      { lockName: names.at(-1) },
    )
    const late = Array.from({ length: 20 }, (_, at) => b.hold(context.name(`late ${at}`)))
    await refused
    assert.equal(network.counts.release.requests, 0, 'something was released')
    const { leases } = await realDriver.inspect({ prefix: context.name('member'), pageSize: 1_000 })
    assert.equal(leases.length, 1)
    await Promise.all([...others, ...late])
  })

  test('failure 11: a lost reply leaves nothing behind, and the next call gets all of them', async (context) => {
    const [{ lock: a, network }, { lock: b }] = [await context.lock(), await context.lock()]
    const names = ['1', '2', '3'].map(context.name)
    network.once('acquire', losesReply)
    await assert.rejects(
      a.withLocks(names, () => assert.fail('it ran'), { blocking: false }),
      { code: 'STORE_UNAVAILABLE' },
    )
    assert.equal(
      await within(
        'the names',
        b.withLocks(names, () => 'ran', WAITING),
      ),
      'ran',
    )
  })

  test('a wait that times out names the lock in the way, and leaves nothing behind', async (context) => {
    const [{ lock: a }, { lock: b, realDriver }] = [await context.lock(), await context.lock()]
    const [first, second] = ['1', '2'].map(context.name) as [string, string]
    await a.hold(second)
    const options = { blockingTimeoutSeconds: VAIN_SECONDS }
    await assert.rejects(
      b.withLocks([second, first], () => assert.fail('it ran'), options),
      { lockName: second },
    )
    // The caller waits for the release within a bound, which a busy machine may exceed.
    await until('the lock that it got to be released', async () => (await leasesOn(realDriver, first)).length === 0)
  })

  test('opposing orders do not deadlock: every call gets all of its locks, repeatedly', async (context) => {
    const locks = [await context.lock(), await context.lock(), await context.lock()].map(({ lock }) => lock)
    const names = ['x', 'y', 'z'].map(context.name)
    const inside = new Set<string>()
    let turns = 0
    const work = locks.flatMap((lock, index) =>
      [0, 1].map(async (task) => {
        for (let round = 0; round < 3; round += 1) {
          // Two of the three, in every order.
          const wanted = names.filter((_, each) => each !== (index + round) % 3)
          const run = async (): Promise<void> => {
            for (const name of wanted) assert.ok(!inside.has(name), `another task holds ${name}`)
            for (const name of wanted) inside.add(name)
            await new Promise(setImmediate) // lets another holder run, if there is one
            for (const name of wanted) inside.delete(name)
            turns += 1
          }
          await lock.withLocks(task === 0 ? wanted : wanted.toReversed(), run, WAITING)
        }
      }),
    )
    await within('all to have their turns', Promise.all(work))
    assert.equal(turns, 18)
  })

  test('leases that are held while the call waits for the rest are renewed', async (context) => {
    const [{ lock: a, realDriver }, { lock: b }] = [await context.lock(), await context.lock()]
    const [first, second] = ['1', '2'].map(context.name) as [string, string]
    const inTheWay = await a.hold(second)
    const entered = deferred()
    const leave = deferred()
    const options = { ...WAITING, timeoutSeconds: KEPT_SECONDS }
    const job = b.withLocks(
      [first, second],
      async (leases) => {
        assert.ok(leases.every((lease) => lease.held))
        entered.resolve()
        await leave.promise
      },
      options,
    )
    await until('the first to be held', async () => (await leasesOn(realDriver, first)).length === 1)
    const startedMs = performance.now()
    await until('longer than its time to live', () => performance.now() - startedMs > 1_100 * KEPT_SECONDS)
    assert.equal((await a.acquire(first, { blocking: false })).acquired, false)
    await inTheWay.release()
    await within('the rest', entered.promise)
    leave.resolve()
    await job
  })

  test('names that the running function holds are re-entered', async (context) => {
    const { lock } = await context.lock()
    const [held, other] = ['held', 'other'].map(context.name) as [string, string]
    await lock.withLock(held, async (outer) => {
      await lock.withLocks([other, held], ([, inner]) => assert.equal(inner?.fencingToken, outer.fencingToken))
      assert.equal(outer.held, true)
    })
    await lock.withLocks([held, other], () => lock.withLock(other, ({ held: isHeld }) => assert.equal(isHeld, true)))
  })
}

const WAITING = { blockingTimeoutSeconds: LONG_MS / 1_000 }
