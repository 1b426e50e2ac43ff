// @ts-check
import { cpSync, readFileSync, rmSync } from 'node:fs'
import { Session } from 'node:inspector'
import { SourceMap } from 'node:module'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { root, tsc } from '../support/command.mjs'

/** @typedef {Map<string, string[]>} Executed the functions of each file, in their order, as `name:line` of src */
/** @typedef {{ import(file: string): Promise<any>, executed(): Executed }} Code */

/**
 * Compiles src file by file, because the build joins files, and counts every function from its first call on.
 *
 * @returns {Promise<Code>} `executed` returns what has been executed since it was last called
 */
export async function compiled() {
  const folder = `${root}.cache/path-${process.pid}`
  process.on('exit', () => rmSync(folder, { recursive: true, force: true }))
  // Code that is not bundled reads protocol/ beside its folder.
  cpSync(`${root}protocol`, `${folder}/protocol`, { recursive: true })
  const options = ['--outDir', `${folder}/dist`, '--declaration', 'false', '--sourceMap', '--noCheck']
  const { code, output } = await tsc(['-p', 'tsconfig.build.json', ...options])
  if (code !== 0) throw new Error(`cannot compile src:\n${output}`)

  const dist = pathToFileURL(`${folder}/dist/`).href
  const session = new Session()
  session.connect()
  session.post('Profiler.enable')
  session.post('Profiler.startPreciseCoverage', { callCount: true, detailed: false })
  return {
    import: (file) => import(`${dist}${file}`),
    executed() {
      /** @type {import('node:inspector').Profiler.ScriptCoverage[]} */
      let scripts = []
      session.post('Profiler.takePreciseCoverage', (error, { result }) => {
        if (error) throw error
        scripts = result
      })
      const own = scripts.filter(({ url }) => url.startsWith(dist)).sort((a, b) => (a.url < b.url ? -1 : 1))
      return new Map(own.flatMap((script) => functionsOf(script, dist)))
    },
  }
}

/**
 * @param {import('node:inspector').Profiler.ScriptCoverage} script
 * @param {string} dist
 * @returns {[file: string, functions: string[]][]} nothing if no function was called
 */
function functionsOf({ url, functions }, dist) {
  const called = functions
    .map(({ functionName, ranges: [range] }) => ({ functionName, start: range?.startOffset ?? 0, count: range?.count }))
    // What begins at 0 is the module itself.
    .filter(({ start, count }) => start > 0 && count !== 0)
    .sort((a, b) => a.start - b.start)
  if (called.length === 0) return []
  const path = fileURLToPath(url)
  const text = readFileSync(path, 'utf8')
  const map = new SourceMap(JSON.parse(readFileSync(`${path}.map`, 'utf8')))
  const names = called.map(({ functionName, start }) => {
    const before = text.slice(0, start)
    const line = before.split('\n').length - 1
    const entry = map.findEntry(line, start - before.lastIndexOf('\n') - 1)
    return `${functionName || 'function'}:${'originalLine' in entry ? entry.originalLine + 1 : '?'}`
  })
  return [[url.slice(dist.length).replace(/\.js$/, '.ts'), names]]
}
