import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, expect, test } from 'vitest'
import { run } from '../../scripts/support/command.mjs'
import { publicEntries } from '../../scripts/support/entries.mjs'
import { makeApplication, matrixFolder, matrixTool } from './application.ts'

/** A version of TypeScript with each way to find a module. Only for `npm run matrix`. */

const application = makeApplication()
afterAll(() => application.remove())

const major = Number.parseInt(matrixTool.replace('typescript-', ''), 10)
/** TypeScript 7 has no node10. TypeScript 6 asks for confirmation. */
const node10 = major < 7 ? [{ type: 'commonjs', module: 'commonjs', moduleResolution: 'node10' }] : []

test.each([
  ...node10,
  { type: 'commonjs', module: 'node16', moduleResolution: 'node16' },
  { type: 'module', module: 'node16', moduleResolution: 'node16' },
  { type: 'commonjs', module: 'nodenext', moduleResolution: 'nodenext' },
  { type: 'module', module: 'nodenext', moduleResolution: 'nodenext' },
  { type: 'module', module: 'esnext', moduleResolution: 'bundler' },
])(`${matrixTool}: the types compile in $type with $moduleResolution`, async ({ type, ...options }) => {
  const imports = publicEntries()
    .filter(({ name }) => name !== 'holdfast/nestjs')
    .map(({ name }, index) => `export * as entry${index} from '${name}'`)
  const use = `
    import { DistributedLock, LeaseLostError } from 'holdfast'
    export const lock = new DistributedLock({ url: 'memory:' })
    export const isLost = (error: unknown) => error instanceof LeaseLostError && error.code === 'LEASE_LOST'`
  const compilerOptions = {
    ...options,
    ...(major === 6 && { ignoreDeprecations: '6.0' }),
    target: 'es2022',
    lib: ['es2022', 'esnext.disposable', 'dom'],
    types: [],
    strict: true,
    noEmit: true,
  }
  writeFileSync(join(application.path, 'package.json'), JSON.stringify({ type }))
  writeFileSync(join(application.path, 'use.ts'), `${imports.join('\n')}\n${use}\n`)
  writeFileSync(join(application.path, 'tsconfig.json'), JSON.stringify({ compilerOptions, files: ['use.ts'] }))
  const tsc = join(matrixFolder, 'node_modules/typescript/bin/tsc')
  const { code, output } = await run(process.execPath, [tsc, '-p', application.path])
  expect(code, output).toBe(0)
})
