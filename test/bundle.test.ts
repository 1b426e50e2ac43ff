import { randomUUID } from 'node:crypto'
import { cpSync, mkdirSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { gzipSync } from 'node:zlib'
import { type BuildOptions, build } from 'esbuild'
import { afterAll, describe, expect, inject, it } from 'vitest'
import { run } from '../scripts/support/command.mjs'
import { makeFolder } from './harness/folders.ts'

/** Bundles of an application in which the package is installed, but no client. */

const root = join(import.meta.dirname, '..')
const folder = makeFolder('bundle')
afterAll(() => folder.remove())

const application = join(folder.path, 'application')
const installed = join(application, 'node_modules/holdfast')
for (const part of ['dist', 'package.json']) cpSync(join(root, part), join(installed, part), { recursive: true })

/** The folder in which bundles run. It has the clients, but not the package. */
const place = join(folder.path, 'deployed')
mkdirSync(join(place, 'node_modules'), { recursive: true })
for (const client of ['ioredis', 'redis', 'pg', 'postgres', 'libsql']) {
  symlinkSync(join(root, 'node_modules', client), join(place, 'node_modules', client))
}

/** Rejects if the bundler warns. */
async function bundle(contents: string, options: BuildOptions = {}): Promise<Uint8Array> {
  const { outputFiles = [], warnings } = await build({
    stdin: { contents, resolveDir: application },
    bundle: true,
    minify: true,
    platform: 'node',
    format: 'esm',
    outdir: place,
    write: false,
    logLevel: 'silent',
    ...options,
  })
  expect(warnings).toEqual([])
  const entry = outputFiles.find(({ path }) => path.endsWith('stdin.js'))
  return entry?.contents ?? new Uint8Array()
}

async function runBundle(code: Uint8Array, ending: 'mjs' | 'cjs', ...args: string[]): Promise<string> {
  const file = join(place, `${randomUUID()}.${ending}`)
  writeFileSync(file, code)
  const { stdout, output, code: exitCode } = await run(process.execPath, [file, ...args], { cwd: place })
  // If a bundle throws, Node's output begins with all of its code.
  expect(exitCode, output.slice(-2_000)).toBe(0)
  return stdout.trim()
}

const { redis, postgres = '' } = inject('servers')
const nodes = (redis ?? []).slice(0, 3).map((url) => new URL(url).host)
const urls: [name: string, url: string][] = [
  ['memory', 'memory:'],
  ['sqlite', `sqlite:${join(folder.path, 'locks.db')}`],
  ['postgres', postgres],
  ['postgres-advisory', postgres.replace(/^postgres(ql)?:/, 'postgres+advisory:')],
  ['redis', redis?.[0] ?? ''],
  ['redlock', `redlock://${nodes.join(',')}?persistent=1&prefix=bundle:`],
]

describe('a bundle of holdfast', () => {
  const program = `
    import { DistributedLock, UnsupportedError } from 'holdfast'
    const [, , url, name] = process.argv
    try {
      new DistributedLock({ url, heartbeatThread: true })
    } catch (error) {
      console.log(error instanceof UnsupportedError ? error.message.slice(0, 41) : error)
    }
    const lock = new DistributedLock({ url })
    const other = new DistributedLock({ url })
    const { acquired } = await lock.withLock(name, () => other.acquire(name))
    console.log(acquired, await lock.withLock(name, (lease) => lease.held))
    await Promise.all([lock.close(), other.close()])`
  const bundled = bundle(program)

  it.each(urls)('opens %s by its URL, with a client that is installed only where the bundle runs', async (_, url) => {
    const printed = await runBundle(await bundled, 'mjs', url, randomUUID())
    expect(printed).toBe('heartbeatThread does not work in a bundle\nfalse true')
  })

  it('says which client to install if there is none', async () => {
    const file = join(application, 'lonely.mjs')
    writeFileSync(file, await bundled)
    const { output } = await run(process.execPath, [file, 'redis://localhost', 'a'], { cwd: application })
    expect(output).toContain('npm install ioredis')
  })
})

describe('a bundle of holdfast/lock and one driver', () => {
  const exclusion = `
    const lock = new DistributedLock({ driver })
    const other = new DistributedLock({ driver })
    const [, , , name] = process.argv
    const { acquired } = await lock.withLock(name, () => other.acquire(name))
    console.log(acquired, await lock.withLock(name, (lease) => lease.held))
    await Promise.all([lock.close(), other.close()])
    await driver.close()`
  const withClient: [name: string, program: string, url: string][] = [
    [
      'redis',
      `const client = new Redis(process.argv[2])
      const driver = redisDriver({ client })
      ${exclusion}
      client.disconnect()`,
      redis?.[0] ?? '',
    ],
    [
      'postgres',
      `const client = new pg.Pool({ connectionString: process.argv[2] })
      const driver = postgresDriver({ client })
      ${exclusion}
      await client.end()`,
      postgres,
    ],
    ['memory', `const driver = memoryDriver()\n${exclusion}`, ''],
    [
      'sqlite',
      `const driver = await openSqlite('sqlite:' + process.argv[2])\n${exclusion}`,
      join(folder.path, 'driver.db'),
    ],
  ]

  it.each(withClient)('runs on %s as CommonJS, with the client in the bundle', async (name, program, url) => {
    const imports = {
      redis: `import { redisDriver } from 'holdfast/drivers/redis'\nimport { Redis } from 'ioredis'`,
      postgres: `import { postgresDriver } from 'holdfast/drivers/postgres'\nimport pg from 'pg'`,
      memory: `import { memoryDriver } from 'holdfast/drivers/memory'`,
      sqlite: `import { openSqlite } from 'holdfast/drivers/sqlite'`,
    }[name]
    const source = `import { DistributedLock } from 'holdfast/lock'\n${imports}\nvoid (async () => {${program}})()`
    const code = await bundle(source, {
      format: 'cjs',
      external: ['pg-native'],
      nodePaths: [join(root, 'node_modules')],
    })
    expect(await runBundle(code, 'cjs', url || 'none', randomUUID())).toBe('false true')
  })

  // docs/guides/bundlers.md has the sizes. The bounds are a little larger, so that not every new line changes them.
  it.each([
    ['memory', 'memoryDriver', 37],
    ['sqlite', 'sqliteDriver', 46],
    ['postgres-advisory', 'postgresAdvisoryDriver', 52],
    ['redis', 'redisDriver', 59],
    ['postgres', 'postgresDriver', 80],
  ])('has no other driver and no thread: with %s', async (name, driver, maxKilobytes) => {
    const code = await bundle(
      `export { DistributedLock } from 'holdfast/lock'
      export { ${driver} } from 'holdfast/drivers/${name}'`,
    )
    expect(gzipSync(code, { level: 9 }).length / 1_000).toBeLessThan(maxKilobytes)
    expect(Buffer.from(code).includes('heartbeat-thread-entry')).toBe(false)
  })

  it('rejects a URL, a missing driver and a heartbeat thread', async () => {
    const code = await bundle(`
      import { DistributedLock } from 'holdfast/lock'
      import { memoryDriver } from 'holdfast/drivers/memory'
      const make = [{ url: 'redis://localhost' }, {}, { driver: memoryDriver(), heartbeatThread: true }]
      for (const options of make) {
        try {
          new DistributedLock(options)
        } catch (error) {
          console.log(error.code, /import DistributedLock from holdfast/i.test(error.message))
        }
      }`)
    const printed = await runBundle(code, 'mjs')
    expect(printed).toBe('INVALID_ARGUMENT true\nINVALID_ARGUMENT true\nUNSUPPORTED true')
  })
})
