import { randomUUID } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, describe, expect, inject, it } from 'vitest'
import { run } from '../scripts/support/command.mjs'
import { makeFolder } from './harness/folders.ts'

/** `dist/cjs/`: what tools such as Jest load, which have modules of their own. Node loads `dist/` for `require`. */

const root = join(import.meta.dirname, '..')
const folder = makeFolder('commonjs')
afterAll(() => folder.remove())

type Targets = Record<'module-sync' | 'require', string>
const manifest = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as { exports: Record<string, Targets> }
const entries = Object.entries(manifest.exports).flatMap(([name, targets]) =>
  typeof targets === 'string'
    ? []
    : [{ name, esm: join(root, targets['module-sync']), cjs: join(root, targets.require) }],
)

async function print(program: string): Promise<string> {
  const { stdout, output, code } = await run(process.execPath, ['--input-type=commonjs', '-e', program], { cwd: root })
  expect(code, output).toBe(0)
  return stdout.trim()
}

describe('the CommonJS build', () => {
  it('has every export of every entry', async () => {
    const program = `
      const missing = async ({ name, esm, cjs }) => {
        const required = require(cjs)
        return Object.keys(await import(esm)).filter((key) => !(key in required)).map((key) => name + ' ' + key)
      }
      Promise.all(${JSON.stringify(entries)}.map(missing)).then((found) => console.log(found.flat()))`
    expect(await print(program)).toBe('[]')
  })

  it('imports nothing: Jest has no import() in CommonJS', async () => {
    const program = `
      for (const { cjs } of ${JSON.stringify(entries)}) require(cjs)
      const own = Object.keys(require.cache).filter((file) => file.includes('/dist/'))
      console.log(own.filter((file) => !file.includes('/dist/cjs/')))
      console.log(own.filter((file) => /\\bimport[(.]/.test(require('node:fs').readFileSync(file, 'utf8'))))`
    expect(await print(program)).toBe('[]\n[]')
  })

  const { redis = [], postgres = '' } = inject('servers')
  const nodes = redis.slice(0, 3).map((url) => new URL(url).host)

  it.each([
    ['sqlite', `sqlite:${join(folder.path, 'locks.db')}`],
    ['redis', redis[0] ?? ''],
    ['redlock', `redlock://${nodes.join(',')}?persistent=1&prefix=commonjs:`],
    ['postgres', postgres],
  ])('excludes a client of the ESM build on %s, and renews in a thread', async (_, url) => {
    const [{ esm = '', cjs = '' } = {}] = entries
    const program = `
      const [url, name] = ${JSON.stringify([url, randomUUID()])}
      const { DistributedLock } = require(${JSON.stringify(cjs)})
      import(${JSON.stringify(esm)}).then(async (other) => {
        const alive = setInterval(() => {}, 1_000)
        const lock = new DistributedLock({ url, heartbeatThread: true })
        const rival = new other.DistributedLock({ url })
        lock.on('heartbeatFailed', ({ error }) => console.log(error))
        const renewed = new Promise((resolve) => lock.on('renewed', resolve))
        const locked = lock.withLock(name, async (lease) => {
          await renewed
          return [lease.held, (await rival.acquire(name)).acquired]
        }, { timeoutSeconds: 3 })
        console.log(...(await locked))
        await Promise.all([lock.close(), rival.close()])
        clearInterval(alive)
      })`
    expect(await print(program)).toBe('true false')
  })
})
