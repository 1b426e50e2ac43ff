// @ts-check
// Checks the code without running it: types, lint and format, the package as `npm publish` would send it, and
// its public surface. Prints only what is wrong.
import { mkdirSync, rmSync } from 'node:fs'
import { build } from './build.mjs'
import { longLines, MAX_COLUMNS, wordsToAvoid } from './prose.mjs'
import { publicSurface, storedSurface, surfaceHint } from './public-surface.mjs'
import { isMain, root, run, runTool, tsc } from './support/command.mjs'
import { publicEntries } from './support/entries.mjs'

/** @typedef {{ name: string, code: number, output: string }} Finding */

/**
 * Needs a built dist/.
 *
 * @returns {Promise<Finding[]>}
 */
export async function check() {
  return (await Promise.all([types(), lint(), packed(), surface(), columns(), words()])).flat()
}

/** The page of the dashboard has the types of a browser, not those of Node. */
async function types() {
  const projects = ['tsconfig.json', 'src/dashboard/client/tsconfig.json']
  return Promise.all(projects.map(async (file) => ({ name: `types (${file})`, ...(await tsc(['-p', file])) })))
}

/** @returns {Promise<Finding>} */
async function lint() {
  return { name: 'lint and format', ...(await runTool('@biomejs/biome/bin/biome', ['check', '--error-on-warnings'])) }
}

/** @returns {Promise<Finding>} */
async function surface() {
  const same = storedSurface() === publicSurface()
  return { name: 'public surface', code: same ? 0 : 1, output: same ? '' : `${surfaceHint}\n` }
}

/**
 * Lines of code, comments and docs that are too long.
 *
 * @returns {Promise<Finding>}
 */
async function columns() {
  return { name: `lines above ${MAX_COLUMNS} columns`, ...places(longLines()) }
}

/**
 * Words that our prose avoids.
 *
 * @returns {Promise<Finding>}
 */
async function words() {
  return { name: 'words to avoid (scripts/prose.mjs)', ...places(wordsToAvoid()) }
}

/** @param {readonly import('./prose.mjs').Place[]} found */
function places(found) {
  const output = found.map(({ file, line, text }) => `${file}:${line}: ${text}\n`).join('')
  return { code: found.length === 0 ? 0 : 1, output }
}

/**
 * publint and attw check the file that `npm publish` would send.
 *
 * @returns {Promise<Finding[]>}
 */
async function packed() {
  const folder = `${root}.cache/pack-${process.pid}`
  mkdirSync(folder, { recursive: true })
  try {
    const { code, stdout, output } = await run('npm', [
      'pack',
      '--ignore-scripts',
      '--json',
      '--pack-destination',
      folder,
    ])
    if (code !== 0) return [{ name: 'npm pack', code, output }]
    const [{ filename }] = JSON.parse(stdout)
    const tarball = `${folder}/${filename}`
    const entries = publicEntries().map(({ name }) => name.replace(/^holdfast/, '.'))
    const [publint, attw] = await Promise.all([
      runTool('publint/src/cli.js', ['run', tarball, '--strict']),
      runTool('@arethetypeswrong/cli/dist/index.js', [tarball, '--format', 'ascii', '--entrypoints', ...entries]),
    ])
    return [
      { name: 'publint', ...publint },
      { name: 'are the types wrong', ...attw },
    ]
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

/** @param {readonly Finding[]} findings */
export function report(findings) {
  for (const { name, code, output } of findings) {
    if (code !== 0) process.stdout.write(`\n── ${name}\n${output.trimEnd()}\n`)
  }
}

if (isMain(import.meta.url)) {
  const built = await build()
  const findings = built.code === 0 ? await check() : [{ name: 'build', ...built }]
  report(findings)
  process.exitCode = findings.some(({ code }) => code !== 0) ? 1 : 0
}
