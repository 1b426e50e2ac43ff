// @ts-check
// Runs one of examples/: npm run example payment
//
// Node 20 does not run TypeScript, so tsc compiles them first. `holdfast` is the built package.
import { readdirSync, rmSync } from 'node:fs'
import { pathToFileURL } from 'node:url'
import { build } from './build.mjs'
import { isMain, root, tsc } from './support/command.mjs'

export const exampleNames = namesIn('')

/** These need a server: DATABASE_URL=postgres://… npm run example postgres/fencing */
export const postgresExampleNames = namesIn('postgres/').filter((name) => name !== 'postgres/prisma-client')

/**
 * Compiles all examples. `folder` must be inside the repository, so that `holdfast` is this package.
 *
 * @param {string} folder
 * @returns {Promise<{ code: number, output: string }>}
 */
export function compileExamples(folder) {
  return tsc(['-p', 'examples/tsconfig.json', '--outDir', folder])
}

if (isMain(import.meta.url)) {
  const [name = ''] = process.argv.slice(2)
  const names = [...exampleNames, ...postgresExampleNames]
  if (!names.includes(name)) {
    console.error(`npm run example <name>, where <name> is one of: ${names.join(', ')}`)
    process.exitCode = 1
  } else {
    const folder = `${root}.cache/example-${process.pid}`
    process.on('exit', () => rmSync(folder, { recursive: true, force: true }))
    const built = await build()
    const compiled = built.code === 0 ? await compileExamples(folder) : built
    process.stdout.write(compiled.output)
    if (compiled.code === 0) await import(pathToFileURL(`${folder}/${name}.js`).href)
    else process.exitCode = compiled.code
  }
}

/** @param {string} folder */
function namesIn(folder) {
  return readdirSync(`${root}examples/${folder}`)
    .filter((file) => file.endsWith('.ts'))
    .map((file) => folder + file.slice(0, -'.ts'.length))
    .sort()
}
