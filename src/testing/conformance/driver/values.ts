import assert from 'node:assert/strict'
import {
  acquireOne,
  consumeOne,
  leaseOn,
  mustGrant,
  mustRefuse,
  newCall,
  releaseOne,
  untilGranted,
  waitersOn,
} from '../driver-calls.ts'
import type { Group } from '../runner.ts'
import type { TestContext } from '../test-context.ts'
import { SHORT_MS } from '../timing.ts'
import { requestOn } from './rate-requests.ts'

/** Every value that the public API accepts comes back from the store unchanged. */
export const values: Group = (test) => {
  for (const [what, odd] of Object.entries(ODD_TEXTS)) {
    test(`a lock name with ${what} is kept as it is`, async (context) => {
      const [a, b] = [await context.driver(), await context.driver()]
      const lockName = `${odd}${context.lockName}${odd}`
      const claim = context.claim({ lockName })
      const { fencingToken } = await mustGrant(a, claim)
      assert.equal((await mustRefuse(b, context.claim({ lockName }))).holder?.lockName, lockName)
      assert.equal((await leaseOn(b, lockName)).lockName, lockName)
      assert.equal(await releaseOne(a, claim, fencingToken), true)
      await mustGrant(b, context.claim({ lockName }))
    })
  }

  test('lock names of 255 characters that differ in the last one are different locks', async (context) => {
    const driver = await context.driver()
    await areDifferent(context, [padded(context.lockName, 'x', 'a'), padded(context.lockName, 'x', 'b')])
    await mustRefuse(driver, context.claim({ lockName: padded(context.lockName, 'x', 'a') }))
  })

  test('lock names of 255 characters outside ASCII are kept as they are', async (context) => {
    await areDifferent(context, [padded(context.lockName, 'ü', 'a'), padded(context.lockName, 'ü', 'b')])
    await areDifferent(context, [padded(context.lockName, '🔒', 'a'), padded(context.lockName, '🔒', 'b')])
  })

  test('names that differ in case, spaces or composed letters are different locks', async (context) => {
    const { lockName } = context
    const tails = ['a', 'A', 'a ', ' a', 'é', 'e\u0301', '0', '00', '{a}', 'a:', ':a']
    await areDifferent(
      context,
      tails.map((tail) => `${lockName}:${tail}`),
    )
  })

  test('a name that is part of another, or like a key of the store, is a lock of its own', async (context) => {
    const { lockName } = context
    const tails = [
      '',
      ':token',
      ':queue',
      ':waiters',
      ':leases',
      ':shared',
      ':meta',
      ':fence',
      ':wake',
      ':rate',
      ':x:y',
    ]
    await areDifferent(
      context,
      tails.map((tail) => `${lockName}${tail}`),
    )
    await areDifferent(
      context,
      tails.map((tail) => `lock:${lockName}${tail}`),
    )
  })

  test('names such as constructor and __proto__ are names like any other', async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    const taken = context.name('taken')
    await mustGrant(a, context.claim({ lockName: taken }))
    for (const lockName of NAMES_OF_OBJECTS) {
      // Other runs on the same store use these names, too. So all that is known of a holder is what it looks like.
      const ending = context.claim({ lockName, ttlMs: SHORT_MS })
      await untilGranted(a, ending)
      const next = context.claim({ lockName, waiterTtlMs: 5_000 })
      await acquireOne(b, next)
      await context.leaseEnds(a, SHORT_MS)
      // Nothing is held, and one waits.
      for (const group of context.capabilities.groups ? [undefined, 'group'] : [undefined]) {
        const claims = [lockName, taken].map((each) => context.claim({ lockName: each, ...(group && { group }) }))
        const [answer] = await b.acquire(claims, newCall())
        const holder = answer !== undefined && 'granted' in answer && !answer.granted ? answer.holder : undefined
        if (holder !== undefined) assert.deepEqual([holder.lockName, typeof holder.claimId], [lockName, 'string'])
        for (const each of claims) await releaseOne(b, each)
      }
      await releaseOne(b, next)

      const claim = context.claim({ lockName, ttlMs: 5_000, ...(context.capabilities.metadata && { metadata: ODD }) })
      const { fencingToken } = await untilGranted(a, claim)
      for (const holder of [(await mustRefuse(b, context.claim({ lockName }))).holder, await leaseOn(b, lockName)]) {
        assert.deepEqual([holder?.lockName, holder?.claimId], [lockName, claim.claimId])
        assert.deepEqual(holder?.metadata, claim.metadata)
      }
      const waiter = context.claim({ lockName, waiterTtlMs: 5_000 })
      await mustRefuse(b, waiter)
      if (context.capabilities.queue) {
        const waiters = await waitersOn(a, lockName)
        assert.ok(waiters.some(({ claimId }) => claimId === waiter.claimId))
      }
      await releaseOne(b, waiter)
      assert.equal(await releaseOne(a, claim, fencingToken), true)
      if (!context.capabilities.rate) continue
      const request = requestOn(lockName, { limit: 1_000_000, periodMs: 1_000, burst: 1_000_000 })
      assert.equal((await consumeOne(a, request)).allowed, true)
    }
  })

  test('a holder id of 255 unusual characters is kept as it is', async (context) => {
    const driver = await context.driver()
    const holderId = `host:1:"'{}\\ ü日本🔒${'h'.repeat(255)}`.slice(0, 255)
    await mustGrant(driver, context.claim({ holderId }))
    assert.equal((await leaseOn(driver, context.lockName)).holderId, holderId)
  })

  test('metadata comes back as it went in', ['metadata'], async (context) => {
    const [a, b] = [await context.driver(), await context.driver()]
    await mustGrant(a, context.claim({ metadata: METADATA }))
    assert.deepEqual((await mustRefuse(b, context.claim())).holder?.metadata, METADATA)
    assert.deepEqual((await leaseOn(b, context.lockName)).metadata, METADATA)
  })

  test('16 KiB of metadata come back as they went in', ['metadata'], async (context) => {
    const driver = await context.driver()
    const metadata = { text: 'ü'.repeat(8_000) }
    await mustGrant(driver, context.claim({ metadata }))
    assert.deepEqual((await leaseOn(driver, context.lockName)).metadata, metadata)
  })

  test('a lease shows its own metadata, not that of the lease before it', ['metadata'], async (context) => {
    const driver = await context.driver()
    const first = context.claim({ metadata: { job: 1 } })
    await mustGrant(driver, first)
    await releaseOne(driver, first)
    const second = context.claim()
    await mustGrant(driver, second)
    assert.equal((await leaseOn(driver, context.lockName)).metadata, undefined)
    await releaseOne(driver, second)
    await mustGrant(driver, context.claim({ metadata: { job: 3 } }))
    assert.deepEqual((await leaseOn(driver, context.lockName)).metadata, { job: 3 })
  })
}

/** All of them can be held at once, and each is shown under its own name. */
async function areDifferent(context: TestContext, lockNames: readonly string[]): Promise<void> {
  const driver = await context.driver()
  for (const lockName of lockNames) await mustGrant(driver, context.claim({ lockName }))
  for (const lockName of lockNames) assert.equal((await leaseOn(driver, lockName)).lockName, lockName)
}

/** Exactly 255 UTF-16 code units, the last of them `last`. */
function padded(lockName: string, filler: string, last: string): string {
  const room = 254 - lockName.length
  return `${lockName}${filler.repeat(Math.floor(room / filler.length))}${'.'.repeat(room % filler.length)}${last}`
}

/** What every object of JavaScript has, and an attribute of those of Python. */
const NAMES_OF_OBJECTS = ['constructor', '__proto__', 'toString', 'hasOwnProperty', '__class__']

/** With own properties of these names. */
const ODD = JSON.parse('{"__proto__":{"a":1},"constructor":2,"toString":[3],"__class__":null}')

const ODD_TEXTS = {
  spaces: '  a b ',
  colons: 'lock:user:7:profile:',
  braces: '{a}b{c',
  'closing braces first': '}{}',
  quotes: `'"\``,
  'a backslash, a percent sign and an underscore': '\\%_',
  'a question mark, a star and brackets': '?*[x]^',
  'a dollar sign and SQL': `$1'; DROP TABLE distributed_locks; --`,
  'a slash and dots': '../..//',
  'line breaks and a tab': 'a\nb\r\n\t',
  'control characters': '\u0001\u001f\u007f',
  'letters outside ASCII': 'Äµß日本語العربية',
  'characters outside the basic plane': '🔒👩‍👩‍👧𝔘',
  'a byte order mark and other invisible ones': '\ufeff\u200b\u202e',
  'text that looks like a number': '007',
  'text that looks like JSON': '{"a":[null]}',
}

const METADATA = {
  text: 'Zürich "日本" \\ \n 🔒 \u0001',
  empty: '',
  numbers: [0, -1, 0.1, 1e21, 1e-7, 9_007_199_254_740_991, -1.5],
  flags: [true, false, null],
  emptyList: [],
  emptyObject: {},
  listOfEmpty: [[], {}, [[]]],
  'odd name ü.$': { 'a.b': 1, '': 2 },
  nested: { a: { b: { c: { d: [{ e: [1, [2, [3]]] }] } } } },
}
