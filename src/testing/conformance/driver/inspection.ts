import assert from 'node:assert/strict'
import type { Driver, InspectPage, InspectQuery } from '../../../core/driver.ts'
import { leaseOn, mustGrant, mustRefuse, newCall, unwrap, waitersOn } from '../driver-calls.ts'
import type { Group } from '../runner.ts'
import { LONG_MS } from '../timing.ts'

export const inspection: Group = (test) => {
  test('a lease is shown to another process as it was claimed', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const claim = context.claim()
    const { fencingToken, acquiredAtMs } = await mustGrant(a, claim)
    const { expiresAtMs, session: _, ...shown } = await leaseOn(b, context.lockName)
    const { lockName, claimId, holderId, mode, permits } = claim
    assert.deepEqual(shown, { lockName, claimId, holderId, mode, permits, fencingToken, acquiredAtMs })
    if (context.capabilities.expiry === 'session') assert.equal(expiresAtMs, undefined)
    else assert.ok(Number.isFinite(expiresAtMs))
  })

  test('a shared lease is shown with its limit and permits', ['limit'], async (context) => {
    const driver = await context.driver()
    await mustGrant(driver, context.claim({ mode: 'shared', limit: 5, permits: 2 }))
    const { mode, limit, permits } = await leaseOn(driver, context.lockName)
    assert.deepEqual({ mode, limit, permits }, { mode: 'shared', limit: 5, permits: 2 })
  })

  test('a name that is not held shows nothing', async (context) => {
    const driver = await context.driver()
    assert.deepEqual(await driver.inspect({ lockName: context.lockName }), { leases: [], waiters: [] })
  })

  test('waiters are shown in the order in which they will be served', ['queue'], async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    await mustGrant(a, context.claim())
    const claims = [1, 2, 3].map(() => context.claim({ waiterTtlMs: LONG_MS }))
    for (const [index, claim] of claims.entries()) await mustRefuse(index % 2 === 0 ? a : b, claim)
    const waiters = await waitersOn(b, context.lockName)
    assert.deepEqual(
      waiters.map(({ lockName, claimId, holderId, mode, permits }) => ({ lockName, claimId, holderId, mode, permits })),
      claims.map(({ lockName, claimId, holderId, mode, permits }) => ({ lockName, claimId, holderId, mode, permits })),
    )
    const since = waiters.map(({ waitingSinceMs }) => waitingSinceMs)
    assert.deepEqual(
      since,
      since.toSorted((x, y) => x - y),
    )
  })

  test('every one of 150 waiters is shown, in order', ['queue'], async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    await mustGrant(a, context.claim())
    const claims = Array.from({ length: 150 }, () => context.claim({ waiterTtlMs: LONG_MS }))
    for (const answer of await a.acquire(claims, newCall())) assert.equal(unwrap(answer).granted, false)
    const shown = (await pagesOf(b, { lockName: context.lockName })).flatMap(({ waiters }) => waiters)
    assert.deepEqual(
      shown.map(({ claimId }) => claimId),
      claims.map(({ claimId }) => claimId),
    )
  })

  test('a long queue is shown completely and in order, over several pages', ['queue'], async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    await mustGrant(a, context.claim())
    const claims = Array.from({ length: 600 }, () => context.claim({ waiterTtlMs: LONG_MS }))
    await a.acquire(claims, newCall())
    for (const query of [{ lockName: context.lockName }, { prefix: context.lockName }]) {
      const pages = await pagesOf(b, query)
      assert.equal(pages.flatMap(({ leases }) => leases).length, 1)
      assert.deepEqual(
        pages.flatMap(({ waiters }) => waiters).map(({ claimId }) => claimId),
        claims.map(({ claimId }) => claimId),
      )
    }
    assert.equal(
      pagesWithLeases(await pagesOf(b, { lockName: context.lockName })),
      '1',
      'the holder is on the first page',
    )
  })

  test('a query for a lock name shows that name alone, not those that begin with it', async (context) => {
    const driver = await context.driver()
    await mustGrant(driver, context.claim())
    await mustGrant(driver, context.claim({ lockName: context.name('longer') }))
    const { leases } = await driver.inspect({ lockName: context.lockName })
    assert.deepEqual(
      leases.map(({ lockName }) => lockName),
      [context.lockName],
    )
  })

  test('a query for a prefix shows the names that begin with it', async (context) => {
    const driver = await context.driver()
    const [inside, outside] = [context.name('in:'), context.name('out:')]
    const names = [`${inside}1`, `${inside}2`, inside]
    for (const lockName of [...names, `${outside}1`]) await mustGrant(driver, context.claim({ lockName }))
    assert.deepEqual(await namesIn(driver, { prefix: inside }), names.toSorted())
  })

  test('a prefix is taken literally, including wildcards of the store’s own language', async (context) => {
    const driver = await context.driver()
    await mustGrant(driver, context.claim({ lockName: context.name('a!') }))
    for (const wild of ['%', '_', '*', '?', '[a-z]', '\\', '.', "'"]) {
      const prefix = context.name(wild)
      await mustGrant(driver, context.claim({ lockName: `${prefix}!` }))
      assert.deepEqual(await namesIn(driver, { prefix }), [`${prefix}!`], wild)
    }
  })

  test('no page holds more names than asked for, and all pages hold every name once', async (context) => {
    const driver = await context.driver()
    const names = Array.from({ length: 7 }, (_, index) => context.name(`${index}`))
    for (const lockName of names) await mustGrant(driver, context.claim({ lockName }))
    const pages = await pagesOf(driver, { prefix: context.lockName, pageSize: 3 })
    for (const page of pages) assert.ok(page.leases.length <= 3)
    assert.deepEqual(pages.flatMap((page) => page.leases.map(({ lockName }) => lockName)).sort(), names)
  })

  test('a page size that is not a whole number from 1 to 10000 is refused', async (context) => {
    const driver = await context.driver()
    await mustGrant(driver, context.claim())
    for (const pageSize of [0, -1, 1.5, 10_001, Number.NaN, Number.POSITIVE_INFINITY, '10', null]) {
      const query = { prefix: context.lockName, pageSize: pageSize as number }
      await assert.rejects(driver.inspect(query), { code: 'INVALID_ARGUMENT', argument: 'pageSize' }, String(pageSize))
    }
    assert.deepEqual(await namesIn(driver, { prefix: context.lockName, pageSize: 10_000 }), [context.lockName])
    assert.deepEqual(await namesIn(driver, { prefix: context.lockName, pageSize: 1 }), [context.lockName])
  })

  for (const argument of ['lockName', 'prefix', 'after'] as const) {
    test(`a query whose ${argument} has a lone surrogate or NUL is refused`, async (context) => {
      const driver = await context.driver()
      await mustGrant(driver, context.claim())
      const tooLong = argument === 'after' ? [] : ['x'.repeat(256)]
      const empty = argument === 'prefix' ? [] : ['']
      for (const text of ['\ud800', `${context.lockName}\udc00`, 'nul\0', 7, null, ...tooLong, ...empty]) {
        const query = { [argument]: text } as InspectQuery
        await assert.rejects(driver.inspect(query), { code: 'INVALID_ARGUMENT', argument }, JSON.stringify(text))
      }
    })
  }

  test('leases and waiters of one name are on one page', ['queue'], async (context) => {
    const driver = await context.driver()
    const names = ['a', 'b', 'c'].map((suffix) => context.name(suffix))
    for (const lockName of names) {
      await mustGrant(driver, context.claim({ lockName }))
      await mustRefuse(driver, context.claim({ lockName, waiterTtlMs: LONG_MS }))
      await mustRefuse(driver, context.claim({ lockName, waiterTtlMs: LONG_MS }))
    }
    const pages = await pagesOf(driver, { prefix: context.lockName, pageSize: 1 })
    const shown = pages.filter(({ leases, waiters }) => leases.length + waiters.length > 0)
    for (const { leases, waiters } of shown) assert.deepEqual([leases.length, waiters.length], [1, 2])
    assert.equal(shown.length, 3)
  })
}

const pagesWithLeases = (pages: readonly InspectPage[]): string =>
  pages.flatMap(({ leases }, at) => (leases.length > 0 ? [at + 1] : [])).join()

const namesIn = async (driver: Driver, query: InspectQuery): Promise<string[]> =>
  (await pagesOf(driver, query)).flatMap((page) => page.leases.map(({ lockName }) => lockName)).sort()

/** Follows `next` to the last page, and fails if the pages never end. */
async function pagesOf(driver: Driver, query: InspectQuery): Promise<InspectPage[]> {
  const pages: InspectPage[] = []
  let after: string | undefined
  do {
    const page = await driver.inspect({ ...query, ...(after !== undefined && { after }) })
    pages.push(page)
    after = page.next
    assert.ok(pages.length < 100_000, 'the pages never end')
  } while (after !== undefined)
  return pages
}
