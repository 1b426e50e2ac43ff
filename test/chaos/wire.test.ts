import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, describe, inject, test } from 'vitest'
import { readCase } from '../../chaos/wire/case.ts'
import { explore } from '../../chaos/wire/explore.ts'
import { SCENES } from '../../chaos/wire/scenes/index.ts'
import { ALL } from '../../chaos/wire/scenes/scene.ts'

const root = join(import.meta.dirname, '../..')
const portOf = (url: string | undefined): number => Number(new URL(url ?? '').port)
const { redis, postgres } = inject('servers')
/** The nodes of Redlock are its own: those of other tests remember longer leases, and would not vote. */
const servers = { redis: [portOf(redis?.[0])], postgres: portOf(postgres) }
const settings = { stores: ALL, jobs: 16, seed: '1', pairs: 2, servers }
/** Those that need no servers of their own. */
const scenes = SCENES.filter(({ ground }) => ground === undefined)

const copies: string[] = []
afterAll(() => {
  for (const each of copies) rmSync(each, { recursive: true, force: true })
})

// At the same time: each of them waits much more than it computes.
describe.concurrent('a sample of messages and faults', { timeout: 300_000 }, () => {
  test('breaks nothing', async ({ expect }) => {
    const { rows, violations } = await explore({ ...settings, dist: join(root, 'dist'), scenes, rows: 12, sample: 36 })
    expect(violations).toEqual([])
    const hits = rows.map(({ faults, majorities, pairs, missed }) => faults + majorities + pairs - missed)
    expect(hits.reduce((sum, count) => sum + count, 0)).toBeGreaterThan(18)
  })

  test('finds a release that compares nothing', async ({ expect }) => {
    const dist = brokenCopy('chunks/redis.js', {
      search: 'sub(text, 1, #head) == head and not ours[plain]',
      replace: 'not ours[plain]',
    })
    // One of these is the last release of client a, which arrives when the next client holds the lock. On a busy
    // machine client a asks more often before it.
    const counts = Array.from({ length: 10 }, (_, at) => at + 3)
    const only = counts.map((count) => readCase(`redis/release/a0.0q${count}:overtaken`, SCENES))
    const { violations } = await explore({ ...settings, dist, scenes, only })
    const found = violations.flatMap((each) => each.violations).join('\n')
    expect(found).toMatch(/the fresh client lost|but the store shows/)
  })
})

/** The built package with one change. */
function brokenCopy(name: string, { search, replace }: { search: string; replace: string }): string {
  mkdirSync(join(root, '.cache'), { recursive: true })
  // In the repository, so that it finds the client packages.
  const copy = mkdtempSync(join(root, '.cache', 'wire-test-'))
  copies.push(copy)
  cpSync(join(root, 'dist'), copy, { recursive: true })
  const text = readFileSync(join(copy, name), 'utf8')
  if (text.split(search).length !== 2) throw new Error(`${name} does not contain exactly one ${search}`)
  writeFileSync(
    join(copy, name),
    text.replace(search, () => replace),
  )
  return copy
}
