import { randomUUID } from 'node:crypto'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, expect, test } from 'vitest'
import { run } from '../../scripts/support/command.mjs'
import { EXCLUSION, makeApplication, matrixFolder, matrixTool, storeUrls } from './application.ts'

/** Test runners and loaders of TypeScript, with each module system that they have. Only for `npm run matrix`. */

interface Runner {
  readonly script: string
  readonly args?: readonly string[]
  readonly files: Readonly<Record<string, string>>
}

const REQUIRE = `const { DistributedLock } = require('holdfast')`
const IMPORT = `import { DistributedLock } from 'holdfast'`
const USE = `
  for (const [url, name] of JSON.parse(process.env.STORES)) {
    const found = await exclusion(url, name)
    if (found !== 'false true') throw new Error(url + ' ' + found)
  }`
const program = (header: string): string => `${header}\n${EXCLUSION}\nvoid (async () => {${USE}})()`
const tested = (header: string): string => `${header}\n${EXCLUSION}\nit('excludes', async () => {${USE}}, 60_000)`
const jestConfig = (config: object): Record<string, string> => ({ 'jest.config.json': JSON.stringify(config) })
const tsconfig = {
  'tsconfig.json': JSON.stringify({
    compilerOptions: { module: 'commonjs', moduleResolution: 'node10', target: 'es2022' },
  }),
}
const jest = 'jest/bin/jest.js'
const mocha = 'mocha/bin/mocha.js'

const runners: Record<string, Runner> = {
  jest: { script: jest, files: { 'lock.test.js': tested(REQUIRE) } },
  'jest-esm': {
    script: jest,
    files: { 'lock.test.mjs': tested(IMPORT), ...jestConfig({ testMatch: ['**/*.mjs'] }) },
  },
  'babel-jest': {
    script: jest,
    files: {
      'lock.test.js': tested(IMPORT),
      'babel.config.json': JSON.stringify({ presets: [['@babel/preset-env', { targets: { node: 'current' } }]] }),
    },
  },
  'swc-jest': {
    script: jest,
    files: { 'lock.test.ts': tested(IMPORT), ...jestConfig({ transform: { '\\.ts$': '@swc/jest' } }) },
  },
  'ts-jest': {
    script: jest,
    files: {
      'lock.test.ts': tested(`import { it } from '@jest/globals'\n${IMPORT}`),
      ...jestConfig({ preset: 'ts-jest' }),
      ...tsconfig,
    },
  },
  mocha: { script: mocha, args: ['lock.test.js', '--timeout=60000'], files: { 'lock.test.js': tested(REQUIRE) } },
  'mocha-esm': {
    script: mocha,
    args: ['lock.test.mjs', '--timeout=60000'],
    files: { 'lock.test.mjs': tested(IMPORT) },
  },
  tsx: { script: 'tsx/dist/cli.mjs', args: ['lock.ts'], files: { 'lock.ts': program(IMPORT) } },
  'tsx-esm': { script: 'tsx/dist/cli.mjs', args: ['lock.mts'], files: { 'lock.mts': program(IMPORT) } },
  'ts-node': {
    script: 'ts-node/dist/bin.js',
    args: ['--transpile-only', 'lock.ts'],
    files: { 'lock.ts': program(IMPORT), ...tsconfig },
  },
}

const application = makeApplication()
afterAll(() => application.remove())

test.each(storeUrls(application.path))(`${matrixTool}: a lock excludes on %s`, async (_, url) => {
  const { script, args = [], files } = runners[matrixTool] as Runner
  for (const [name, text] of Object.entries({ 'package.json': '{}', ...files })) {
    writeFileSync(join(application.path, name), text)
  }
  const node = matrixTool === 'jest-esm' ? ['--experimental-vm-modules'] : []
  const { code, output } = await run(process.execPath, [...node, join(matrixFolder, 'node_modules', script), ...args], {
    cwd: application.path,
    env: { ...process.env, STORES: JSON.stringify([[url, randomUUID()]]), NODE_ENV: 'test', VITEST: '' },
  })
  expect(code, output).toBe(0)
})
