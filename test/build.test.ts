import { readdirSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { afterAll, describe, expect, inject, it, test } from 'vitest'
import { publicEntries } from '../scripts/support/entries.mjs'
import { makeFolder } from './harness/folders.ts'

/** `dist/`: what scripts/support/bundle.mjs makes of the compiled modules. */

const root = join(import.meta.dirname, '..')
const dist = join(root, 'dist')
const textOf = (file: string): string => readFileSync(join(dist, file), 'utf8')
const namesIn = (folder: string): string[] => readdirSync(folder, { recursive: true, encoding: 'utf8' })

/** The files that Node reads for an import of `file`. */
function filesOf(file: string): string[] {
  const files = new Set([file])
  for (const each of files) {
    for (const [, path = ''] of textOf(each).matchAll(/^(?:import|export)\b[^"]*"(\.[^"]+)"/gm)) {
      files.add(join(dirname(each), path))
    }
  }
  return [...files]
}

const entries = publicEntries().map(({ name, types }): [name: string, file: string] => [
  name,
  types.replace(/^\.\/dist\//, '').replace(/\.d\.ts$/, '.js'),
])

describe('the built package', () => {
  it('has no module in two files', () => {
    const files = namesIn(dist).filter((name) => name.endsWith('.js'))
    const modules = files.flatMap((file) => [...textOf(file).matchAll(/^\/\/#region (\S+)$/gm)].map(([, name]) => name))
    expect(modules).toContain('core/errors.js')
    expect(modules.filter((name, index) => modules.indexOf(name) !== index)).toEqual([])
  })

  // Each file takes about half a millisecond. For fewer, add to a group of scripts/support/bundle.mjs.
  it.each(entries)('is imported as %s in few files', (_, file) => {
    expect(filesOf(file).length).toBeLessThanOrEqual(6)
  })

  it('loads a driver only on demand, and the thread only with the root', () => {
    const others = /^(?:drivers|cli|doctor|testing)\/|^chunks\/(?:drivers|redis|redlock|postgres)/
    expect(filesOf('index.js').filter((file) => others.test(file))).toEqual([])
    expect(filesOf('index.js')).toContain('core/lease/heartbeat-thread.js')
    expect(filesOf('lock.js')).toEqual(['lock.js', 'chunks/engine.js'])
    expect(filesOf('drivers/sqlite.js').filter((file) => /redis|postgres|primitives/.test(file))).toEqual([])
  })

  // In dist/, import.meta.url is the file that a module was joined into.
  it('depends on the place of a module only where the build takes care of it', () => {
    const src = join(root, 'src')
    const using = namesIn(src).filter(
      (name) => name.endsWith('.ts') && /\bimport\.meta\b/.test(readFileSync(join(src, name), 'utf8')),
    )
    const allowed = /^(?:core\/lease\/heartbeat-thread|drivers\/shared\/read-protocol|drivers\/[^/]+)\.ts$/
    expect(using.filter((name) => !allowed.test(name))).toEqual([])
  })
})

describe('a thread opens a driver again, from the file that has its code', () => {
  const folder = makeFolder('build')
  afterAll(() => folder.remove())
  const { redis = [], postgres = '' } = inject('servers')
  const nodes = redis.slice(0, 3).map((url) => new URL(url).host)

  test.each([
    ['sqlite', `sqlite:${join(folder.path, 'locks.db')}`],
    ['redis', redis[0] ?? ''],
    ['redlock', `redlock://${nodes.join(',')}?persistent=1&prefix=build:`],
    ['postgres', postgres],
  ])('%s', async (name, url) => {
    const { connect } = (await import(join(dist, 'index.js'))) as typeof import('../src/index.ts')
    const driver = await connect(url)
    const { module = '', name: opener = '', args = [] } = driver.extensions?.reopen ?? {}
    const again = await (await import(module))[opener](...args)
    expect(again).toMatchObject({ name, extensions: { reopen: driver.extensions?.reopen } })
    await Promise.all([driver.close(), again.close()])
  })
})
