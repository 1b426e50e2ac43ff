import { randomUUID } from 'node:crypto'
import { readFileSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { run } from '../../scripts/support/command.mjs'
import { EXCLUSION, makeApplication, matrixFolder, matrixTool, storeUrls } from './application.ts'

/**
 * Each bundler builds an application of the package, which then takes a lock. The clients are not in the bundle.
 * test/bundle.test.ts has more on esbuild.
 */

const root = join(import.meta.dirname, '../..')
const application = makeApplication()
afterAll(() => application.remove())

interface Bundler {
  readonly configuration: string
  readonly text: string
  /** The script that starts the bundler, in its package. */
  readonly script: string
  readonly args: readonly string[]
  readonly bundle: string
}

const development: Record<string, Bundler> = {
  rolldown: {
    configuration: 'rolldown.config.mjs',
    text: `export default { input: 'main.mjs', platform: 'node', output: { dir: 'rolldown' } }`,
    script: 'rolldown/bin/cli.mjs',
    args: ['--config'],
    bundle: 'rolldown/main.js',
  },
  vite: {
    configuration: 'vite.config.mjs',
    text: `export default {
      ssr: { noExternal: true },
      build: {
        ssr: 'main.mjs',
        outDir: 'vite',
        minify: true,
        rolldownOptions: { output: { entryFileNames: 'main.js' } },
      },
    }`,
    script: 'vite/bin/vite.js',
    args: ['build'],
    bundle: 'vite/main.js',
  },
}

const further: Record<string, Bundler> = {
  webpack: {
    configuration: 'webpack.config.mjs',
    text: `export default {
      mode: 'production',
      target: 'node',
      entry: './main.mjs',
      output: { path: import.meta.dirname + '/webpack', filename: 'main.cjs' },
    }`,
    script: 'webpack/bin/webpack.js',
    args: [],
    bundle: 'webpack/main.cjs',
  },
  rollup: {
    configuration: 'rollup.config.mjs',
    text: `import commonjs from '@rollup/plugin-commonjs'
    import resolve from '@rollup/plugin-node-resolve'
    export default { input: 'main.mjs', plugins: [resolve(), commonjs()], output: { dir: 'rollup' } }`,
    script: 'rollup/dist/bin/rollup',
    args: ['--config'],
    bundle: 'rollup/main.js',
  },
}

beforeAll(() => {
  writeFileSync(join(application.path, 'package.json'), '{ "type": "module" }\n')
  writeFileSync(
    join(application.path, 'main.mjs'),
    `import { DistributedLock } from 'holdfast'
    ${EXCLUSION}
    console.log(await exclusion(process.argv[2], process.argv[3]))`,
  )
})

/** Without the matrix, those that are development dependencies. */
const bundlers = Object.entries({ ...development, ...further }).filter(([name]) =>
  matrixTool === '' ? name in development : name === matrixTool,
)

describe.each(bundlers)('a bundle of %s', (_, { configuration, text, script, args, bundle }) => {
  const path = join(application.path, bundle)

  test('is built without an error, and has the package in it', async () => {
    writeFileSync(join(application.path, configuration), text)
    const [name = ''] = script.split('/')
    const tools = createRequire(pathToFileURL(join(name in development ? root : matrixFolder, 'package.json')))
    const program = join(tools.resolve(`${name}/package.json`), '..', script.slice(name.length))
    const { code, output } = await run(process.execPath, [program, ...args], { cwd: application.path })
    expect(code, output).toBe(0)
    expect(readFileSync(path, 'utf8')).not.toMatch(/(?:from|import|require\()\s*["']holdfast/)
  })

  test.each(storeUrls(application.path))('excludes on %s', async (_, url) => {
    const { stdout, output } = await run(process.execPath, [path, url, randomUUID()], { cwd: application.path })
    expect(stdout.trim(), output.slice(-2_000)).toBe('false true')
  })
})
