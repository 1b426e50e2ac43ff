// @ts-check
// Node 20 does not run TypeScript, so tsc first compiles a program of this folder and the test harness that it uses.
import { cpSync, existsSync, mkdirSync, rmSync } from 'node:fs'
import { pathToFileURL } from 'node:url'
import { root, tsc } from '../scripts/support/command.mjs'

/**
 * Compiles a project and runs the `main` of one of its files, with the arguments of this process.
 *
 * @param {string} project its tsconfig.json
 * @param {string} file the compiled file, from the root of the repository
 */
export async function runCompiled(project, file) {
  // The tests compile it once, and run it several times.
  const shared = process.env['HOLDFAST_CHAOS_COMPILED']
  const folder = shared ?? `${root}.cache/chaos-${process.pid}`
  if (shared === undefined) process.on('exit', () => rmSync(folder, { recursive: true, force: true }))
  for (const [signal, code] of /** @type {const} */ ([
    ['SIGINT', 130],
    ['SIGTERM', 143],
    ['SIGHUP', 129],
  ])) {
    // The harness ends all servers and client processes when this process has ended.
    process.on(signal, () => process.exit(code))
  }
  if (!existsSync(`${folder}/${file}`)) await compile(project, folder)
  const { main } = await import(pathToFileURL(`${folder}/${file}`).href)
  process.exit(await main(process.argv.slice(2), root))
}

/**
 * @param {string} project
 * @param {string} folder
 */
async function compile(project, folder) {
  mkdirSync(`${folder}/test`, { recursive: true })
  // The compiled harness needs its other programs and the source of the clock shim beside it.
  cpSync(`${root}test/harness`, `${folder}/test/harness`, { recursive: true, filter: (path) => !path.endsWith('.ts') })
  const { code, output } = await tsc(['-p', project, '--outDir', folder])
  process.stdout.write(output)
  if (code !== 0) process.exit(2)
}
