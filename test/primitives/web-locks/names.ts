import assert from 'node:assert/strict'
import { heldOn, hold, isFree, type Section, shown } from './test-context.ts'

const LONG = 'n'.repeat(300)

/** Any string is a name, and different strings are different names. */
const NAMES: readonly string[] = [
  '',
  ' ',
  '\t\r\n',
  '\0',
  'a\0b',
  'a\0',
  '%',
  '%%',
  '%0000',
  '%#',
  '%…',
  'a-b',
  'null',
  'undefined',
  '\ud800',
  '\udfff',
  '\udc00\ud800',
  'x\ud83dy',
  '😀',
  '😀\ude00',
  '\ufffd',
  'é',
  'e\u0301',
  'NAME',
  'name',
  'Name',
  '{tag}name',
  '*?[a]',
  '"\'\\/`$(x)',
  '\u202eright to left',
  `${LONG}`,
  `${LONG}x`,
  `${'%'.repeat(60)}`,
  `\0${LONG}`,
]

export const names: Section = (test) => {
  test('a lock has the requested name, code unit by code unit', async ({ locks }) => {
    for (const name of NAMES) assert.equal(await locks.request(name, (lock) => lock?.name), name)
  })

  test('different names are different locks', async ({ locks }) => {
    const holdings = NAMES.map((name) => hold(locks, name))
    await Promise.all(holdings.map(({ granted }) => granted))
    for (const holding of holdings) holding.end()
    await Promise.all(holdings.map(({ done }) => done))
  })

  test('each name is the same lock for another client', async ({ locks, other }) => {
    const holdings = NAMES.map((name) => hold(locks, name))
    await Promise.all(holdings.map(({ granted }) => granted))
    assert.deepEqual(
      await Promise.all(NAMES.map((name) => isFree(other, name))),
      NAMES.map(() => false),
    )
    for (const holding of holdings) holding.end()
    await Promise.all(holdings.map(({ done }) => done))
  })

  test('another client’s query shows them as they are', ['metadata'], async (scene) => {
    const { locks, other } = scene
    const holdings = NAMES.map((name) => hold(locks, name))
    await Promise.all(holdings.map(({ granted }) => granted))
    const found = (await shown(scene, other, NAMES.length)).map(({ name }) => name)
    assert.deepEqual(found.sort(), NAMES.toSorted())
    for (const holding of holdings) holding.end()
    await Promise.all(holdings.map(({ done }) => done))
  })

  test(
    'a name of a hundred thousand code units is a name; query shows where it begins',
    ['metadata'],
    async (scene) => {
      const { locks, other } = scene
      const name = '\0long'.repeat(20_000)
      const [holding, neighbour] = [hold(locks, name), hold(locks, `${name}!`)]
      assert.equal((await holding.granted).name, name)
      await neighbour.granted
      assert.equal(await isFree(other, name), false)
      const [first] = await shown(scene, other, 2)
      assert.ok(first?.name.endsWith('…') && name.startsWith(first.name.slice(0, -1)))
      assert.deepEqual(await heldOn(other, name), [])
      const waiting = hold(locks, name)
      const { held, pending } = await locks.query()
      assert.deepEqual(new Set(held.map((info) => info.name)), new Set([name, `${name}!`]), 'its own it knows')
      assert.equal(pending[0]?.name, name)
      for (const each of [holding, neighbour, waiting]) each.end()
      await Promise.all([holding.done, neighbour.done, waiting.done])
    },
  )
}
