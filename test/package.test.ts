import { execFileSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { run, tsc } from '../scripts/support/command.mjs'
import { publicEntries } from '../scripts/support/entries.mjs'

const root = join(import.meta.dirname, '..')
const manifest = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as Record<string, unknown>

/** A user's project outside of this repository, with the package as npm would install it. */
let consumer: string
let files: string[]

beforeAll(async () => {
  consumer = mkdtempSync(join(tmpdir(), 'holdfast-consumer-'))
  const { stdout, output, code } = await run('npm', [
    'pack',
    '--ignore-scripts',
    '--json',
    '--pack-destination',
    consumer,
  ])
  expect(code, output).toBe(0)
  const [packed] = JSON.parse(stdout) as [{ filename: string; files: { path: string }[] }]
  files = packed.files.map(({ path }) => path)
  const installed = join(consumer, 'node_modules/holdfast')
  mkdirSync(installed, { recursive: true })
  execFileSync('tar', ['xzf', join(consumer, packed.filename), '-C', installed, '--strip-components=1'])
  writeFileSync(join(consumer, 'package.json'), JSON.stringify({ name: 'consumer', type: 'module', private: true }))
})

afterAll(() => rmSync(consumer, { recursive: true, force: true }))

describe('what is published', () => {
  test('is the built code, the stored format, docs, examples and project files, and nothing else', () => {
    const allowed = new RegExp(
      [
        String.raw`^(?:dist/.+\.(?:js|d\.ts)|dist/cjs/package\.json|protocol/.+`,
        String.raw`docs/.+\.(?:md|svg|png)|examples/.+\.(?:md|ts|mjs|json|yml)`,
        String.raw`(?:README|CHANGELOG|CONTRIBUTING|SECURITY)\.md|LICENSE|package\.json)$`,
      ].join('|'),
    )
    expect(files.filter((file) => !allowed.test(file))).toEqual([])
    for (const needed of ['README.md', 'LICENSE', 'CHANGELOG.md', 'dist/index.js', 'dist/index.d.ts']) {
      expect(files).toContain(needed)
    }
  })

  test('has declarations for every file but those that several entries share', () => {
    const modules = files.filter((file) => /^dist\/(?!cjs\/|chunks\/).+\.js$/.test(file))
    expect(modules.map((file) => file.replace(/\.js$/, '.d.ts')).filter((file) => !files.includes(file))).toEqual([])
  })

  test('refers to no file that is not in it', () => {
    const installed = join(consumer, 'node_modules/holdfast')
    const pointing = files
      .filter((file) => /^dist\/.+\.(?:js|d\.ts)$/.test(file))
      .filter((file) => /sourceMappingURL|\.\.\/src\//.test(readFileSync(join(installed, file), 'utf8')))
    expect(pointing).toEqual([])
  })

  test('has no required dependency, and declares no side effects', () => {
    expect(manifest['dependencies']).toBeUndefined()
    expect(manifest['optionalDependencies']).toBeUndefined()
    const peers = Object.keys((manifest['peerDependencies'] as object | undefined) ?? {})
    const optional = (manifest['peerDependenciesMeta'] ?? {}) as Record<string, { optional?: boolean }>
    expect(peers.filter((name) => optional[name]?.optional !== true)).toEqual([])
    expect(manifest['sideEffects']).toBe(false)
    expect(manifest['type']).toBe('module')
  })

  test('runs no script on installation', () => {
    const scripts = Object.keys(manifest['scripts'] as Record<string, string>)
    expect(scripts.filter((name) => /^(?:pre|post)?install$|^prepare$/.test(name))).toEqual([])
  })
})

describe('the lock file', () => {
  const lock = readFileSync(join(root, 'package-lock.json'), 'utf8')

  test('contains no download address', () => {
    expect(lock).not.toMatch(/"resolved"/)
  })

  test('has every platform package that it mentions, because `npm ci` refuses it otherwise', () => {
    type Locked = { optionalDependencies?: Record<string, string> }
    const { packages } = JSON.parse(lock) as { packages: Record<string, Locked> }
    const missing = Object.entries(packages).flatMap(([at, { optionalDependencies = {} }]) =>
      Object.keys(optionalDependencies).filter(
        (name) =>
          packages[`node_modules/${name}`] === undefined && packages[`${at}/node_modules/${name}`] === undefined,
      ),
    )
    expect(missing, 'a version that the registry has for every platform is needed, see CONTRIBUTING.md').toEqual([])
  })
})

describe('a clean installation', () => {
  test('has no engine warning on the oldest Node that the package supports', () => {
    type Locked = { engines?: { node?: string } }
    const { packages } = JSON.parse(readFileSync(join(root, 'package-lock.json'), 'utf8')) as {
      packages: Record<string, Locked>
    }
    const oldest = (manifest['engines'] as { node: string }).node.replace('>=', '')
    const refusing = Object.entries(packages).filter(([, { engines }]) => !isIn(oldest, engines?.node ?? '*'))
    expect(refusing.map(([name, { engines }]) => `${name} needs ${engines?.node}`)).toEqual([])
  })
})

const LIB = ['ES2022', 'ESNext.Disposable', 'DOM']

const hasSqlite = (): boolean => process.getBuiltinModule?.('node:sqlite') !== undefined

/** Whether a version is in a range. Supports the ranges that our dependencies use. */
function isIn(version: string, range: string): boolean {
  const numbers = (text: string): number[] =>
    [0, 1, 2].map((at) => Number.parseInt(text.split('.')[at] ?? '0', 10) || 0)
  const compared = (other: string): number => {
    const [a, b] = [numbers(version), numbers(other)]
    return a.map((each, at) => each - (b[at] as number)).find((difference) => difference !== 0) ?? 0
  }
  return range.split('||').some((part) =>
    [...part.matchAll(/([<>=^~]*)\s*v?([\d.]+)/g)].every(([, operator = '', other = '']) => {
      if (operator === '>=') return compared(other) >= 0
      if (operator === '>') return compared(other) > 0
      if (operator === '<') return compared(other) < 0
      if (operator === '<=') return compared(other) <= 0
      return numbers(version)[0] === numbers(other)[0] && compared(other) >= 0
    }),
  )
}

describe('in a project that installed it', () => {
  test('every entry can be imported without a peer, except that of Nest, and a lock can be held', async () => {
    const program = `
      ${publicEntries()
        .filter(({ name }) => name !== 'holdfast/nestjs')
        .map(({ name }) => `await import('${name}')`)
        .join('\n')}
      import { DistributedLock } from 'holdfast'
      import { memoryDriver } from 'holdfast/drivers/memory'
      const lock = new DistributedLock({ driver: memoryDriver() })
      console.log(await lock.withLock('a', async (lease) => lease.held))
    `
    writeFileSync(join(consumer, 'use.js'), program)
    const { stdout, output } = await run(process.execPath, ['use.js'], { cwd: consumer })
    expect(stdout, output).toBe('true\n')
  })

  test('require() returns what import does, so that no class exists twice in a process', async () => {
    const names = publicEntries().map(({ name }) => name)
    const program = `
      const names = ${JSON.stringify(names.filter((name) => name !== 'holdfast/nestjs'))}
      const different = async (name) => {
        const [required, imported] = [require(name), await import(name)]
        return Object.keys(imported).some((key) => required[key] !== imported[key]) ? [name] : []
      }
      Promise.all(names.map(different)).then((found) => console.log(names.length, found.flat()))
    `
    writeFileSync(join(consumer, 'use.cjs'), program)
    const { stdout, output } = await run(process.execPath, ['use.cjs'], { cwd: consumer })
    expect(stdout, output).toBe(`${names.length - 1} []\n`)
  })

  test('the command exists, and prints its version', async () => {
    const { stdout, output } = await run(process.execPath, ['node_modules/holdfast/dist/cli/main.js', '--version'], {
      cwd: consumer,
    })
    expect(stdout, output).toBe(`${manifest['version']}\n`)
  })

  test('a missing client is the same error on every driver, with the command that installs it', async () => {
    const urls = [
      'redis://h',
      'redis+cluster://h',
      'redlock://h',
      'postgres://h/d',
      'postgres+advisory://h/d',
      'sqlite:x.db',
    ]
    const program = `
      import { connect, MissingClientError } from 'holdfast'
      for (const url of ${JSON.stringify(urls)}) {
        const error = await connect(url).then((driver) => driver.close(), (error) => error)
        console.log(url, error instanceof MissingClientError, error?.code, error?.message)
      }`
    const { stdout, output } = await run(process.execPath, ['--input-type=module', '-e', program], { cwd: consumer })
    const lines = stdout.trimEnd().split('\n')
    expect(lines, output).toHaveLength(urls.length)
    const commands = {
      redis: 'ioredis, or npm install redis',
      redlock: 'ioredis, or npm install redis',
      postgres: 'pg, or',
    }
    for (const line of lines) {
      const [scheme = ''] = /^[a-z]+/.exec(line) ?? []
      // Node has its own SQLite client from 22.13 on.
      const command =
        scheme === 'sqlite' ? (hasSqlite() ? undefined : 'libsql') : commands[scheme as keyof typeof commands]
      if (command === undefined) expect(line).toMatch(/ false undefined/)
      else
        expect(line).toMatch(
          new RegExp(` true MISSING_CLIENT .* needs a client that is not installed: npm install ${command}`),
        )
    }
  })

  test('the stored format is in the installed package', async () => {
    const program = `
      import { connect } from 'holdfast'
      const driver = await connect('sqlite:locks.db')
      console.log((await driver.inspect({})).leases.length)
      await driver.close()`
    symlinkSync(join(root, 'node_modules/libsql'), join(consumer, 'node_modules/libsql'))
    const { stdout, output } = await run(process.execPath, ['--input-type=module', '-e', program], { cwd: consumer })
    expect(stdout, output).toBe('0\n')
  })

  test('a module that is not an entry cannot be imported', async () => {
    for (const inner of ['holdfast/core/driver', 'holdfast/dist/core/driver.js', 'holdfast/drivers/redis/open']) {
      const { code, output } = await run(process.execPath, ['--input-type=module', '-e', `await import('${inner}')`], {
        cwd: consumer,
      })
      expect(code).not.toBe(0)
      expect(output).toContain('ERR_PACKAGE_PATH_NOT_EXPORTED')
    }
  })

  test('a process that only imports it ends by itself', async () => {
    const { code, stdout } = await run(
      process.execPath,
      ['--input-type=module', '-e', `await import('holdfast'); console.log(process.getActiveResourcesInfo().length)`],
      { cwd: consumer },
    )
    expect(code).toBe(0)
    expect(Number(stdout)).toBeLessThanOrEqual(2) // its own standard output and error
  })

  test.each([
    { type: 'module', module: 'node16', moduleResolution: 'node16', lib: LIB, types: [] },
    {
      type: 'module',
      module: 'nodenext',
      moduleResolution: 'nodenext',
      lib: ['ES2022', 'ESNext.Disposable'],
      types: ['node'],
    },
    { type: 'module', module: 'esnext', moduleResolution: 'bundler', lib: LIB, types: [] },
    { type: 'commonjs', module: 'node16', moduleResolution: 'node16', lib: LIB, types: [] },
    { type: 'commonjs', module: 'commonjs', moduleResolution: 'bundler', lib: LIB, types: [] },
  ])(
    'its types compile in $type with $moduleResolution resolution, types: $types, and skipLibCheck off',
    async ({ type, ...options }) => {
      const folder = mkdtempSync(join(consumer, 'types-'))
      if (options.types.length > 0) {
        mkdirSync(join(folder, 'node_modules'))
        for (const name of ['@types', 'undici-types']) {
          symlinkSync(join(root, 'node_modules', name), join(folder, 'node_modules', name))
        }
      }
      const imports = publicEntries().map(({ name }, index) => `import * as entry${index} from '${name}'`)
      writeFileSync(
        join(folder, 'use.ts'),
        `${imports.join('\n')}
      import { DistributedLock, type Lease, LeaseLostError } from 'holdfast'
      import { memoryDriver } from 'holdfast/drivers/memory'
      export const entries = [${imports.map((_, index) => `entry${index}`).join(', ')}]
      const lock = new DistributedLock({ driver: memoryDriver() })
      export async function use(): Promise<[number, string]> {
        const length = await lock.withLock('a', async (lease: Lease) => lease.lockName.length)
        const result = await lock.acquire('a')
        return [length, result.acquired ? result.lock.holderId : result.error]
      }
      export const isLost = (error: unknown) => error instanceof LeaseLostError && error.code === 'LEASE_LOST'
      `,
      )
      writeFileSync(
        join(folder, 'tsconfig.json'),
        JSON.stringify({
          compilerOptions: {
            ...options,
            target: 'ES2022',
            strict: true,
            exactOptionalPropertyTypes: true,
            noEmit: true,
            skipLibCheck: false,
          },
          files: ['use.ts'],
        }),
      )
      writeFileSync(join(folder, 'package.json'), JSON.stringify({ type }))
      const { code, output } = await tsc(['-p', folder])
      expect(output).toBe('')
      expect(code).toBe(0)
    },
  )
})
