import assert from 'node:assert/strict'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { describe, it } from 'vitest'
import type { Capabilities } from '../src/core/driver.ts'
import { LeaderElection, ReadWriteLock, Semaphore } from '../src/index.ts'
import { DistributedLock } from '../src/primitives/lock/distributed-lock.ts'
import { driverConformance, type TestRunner } from '../src/testing/index.ts'

const root = new URL('../', import.meta.url)
const has = (path: string): boolean => existsSync(new URL(path, root))

describe('the matrix has no hole', () => {
  for (const name of driverNames()) {
    it(`${name} has a test file that runs the conformance suite`, () => {
      assert.ok(has(`test/drivers/${name}/conformance.test.ts`), `test/drivers/${name}/conformance.test.ts is missing`)
      assert.match(
        readFileSync(new URL(`test/drivers/${name}/conformance.test.ts`, root), 'utf8'),
        /driverConformance\(/,
      )
    })

    it(`${name} has a page in the docs`, () => {
      assert.ok(has(`docs/drivers/${name}.md`), `docs/drivers/${name}.md is missing`)
    })

    it(`${name} exports its capabilities`, async () => {
      const { capabilities } = (await import(`../src/drivers/${name}.ts`)) as { capabilities?: Capabilities }
      assert.equal(typeof capabilities, 'object', `src/drivers/${name}.ts exports no \`capabilities\``)
    })

    it(`${name} is in the README’s capability table`, () => {
      const readme = has('README.md') ? readFileSync(new URL('README.md', root), 'utf8') : ''
      const table = /<!-- capabilities:begin -->(.*)<!-- capabilities:end -->/s.exec(readme)?.[1]
      assert.ok(table !== undefined, 'the README has no capability table between its two markers')
      // A complete name: `postgres-advisory` does not count as `postgres`.
      assert.match(table, new RegExp(`(?<![\\w-])${name}(?![\\w-])`))
    })
  }
})

describe('the conformance suite', () => {
  it('can be registered with any runner, and every test has a unique title', () => {
    const { titles, skips } = registered(ALL)
    assert.ok(titles.length > 200, `${titles.length} tests`)
    assert.equal(new Set(titles).size, titles.length)
    // No driver has both: leases that end by time, and leases that end with their session.
    assert.ok(skips.length > 0 && skips.every((title) => title.includes('its leases end by time')))
  })

  it('skips no test without a reason that a user can read', () => {
    const { skips } = registered(NONE)
    assert.ok(skips.length > 50, `${skips.length} skips`)
    for (const title of skips) assert.match(title, /\(skipped: it[s ].{10,}\)$/)
  })

  it('tests a driver that can only exclude', () => {
    const { titles, skips } = registered(NONE)
    assert.ok(titles.length - skips.length > 100)
  })

  it('runs every method that can act as a mutex through the mutex group', () => {
    const titles = registered(ALL).titles.join('\n')
    const forms = [DistributedLock, ReadWriteLock, Semaphore, LeaderElection].flatMap(({ name, prototype }) =>
      Object.getOwnPropertyNames(prototype)
        .filter((method) => /^(acquire|hold(?!erId)|with|campaign)/.test(method) && !method.endsWith('Read'))
        .map((method) => `${name}.${method}`),
    )
    assert.ok(forms.length >= 11, `${forms}`)
    for (const form of forms) assert.match(titles, new RegExp(`mutex by ${form}: exclusion`))
  })

  it('names every safety rule that a driver or the core can break', () => {
    const titles = registered(ALL).titles.join('\n')
    for (const rule of [1, 2, 3, 5, 6, 7, 8, 10, 12, 13]) assert.match(titles, new RegExp(`rule ${rule}\\b`))
  })
})

function driverNames(): string[] {
  return readdirSync(new URL('src/drivers/', root), { withFileTypes: true })
    .filter((entry) => entry.isFile() && entry.name.endsWith('.ts'))
    .map((entry) => entry.name.slice(0, -'.ts'.length))
}

function registered(capabilities: Capabilities): { titles: string[]; skips: string[] } {
  const path: string[] = []
  const titles: string[] = []
  const skips: string[] = []
  const register = (title: string): void => {
    titles.push([...path, title].join(' > '))
  }
  const skip = (title: string): void => {
    register(title)
    skips.push(title)
  }
  const runner: TestRunner = {
    describe(title, body) {
      path.push(title)
      body()
      path.pop()
    },
    it: Object.assign(register, { skip }),
    beforeAll: () => {},
    afterAll: () => {},
  }
  const open = () => assert.fail('registering opens nothing')
  driverConformance({
    runner,
    name: 'some driver',
    capabilities,
    open,
    breakable: { open, loseData: open, restart: open, stepClock: open },
  })
  return { titles, skips }
}

const FLAGS = ['fencing', 'shared', 'limit', 'queue', 'wake', 'metadata', 'rate', 'groups'] as const
const flags = (value: boolean) =>
  Object.fromEntries(FLAGS.map((flag) => [flag, value])) as Record<(typeof FLAGS)[number], boolean>

const ALL: Capabilities = { expiry: 'ttl', scope: 'network', force: 'claim', ...flags(true) }
const NONE: Capabilities = { expiry: 'session', scope: 'process', force: false, ...flags(false) }
