// @ts-check
// Writes the test vectors of protocol/vectors from the TypeScript client. Tests of every language check them.
//
//   npm run vectors   writes the files
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { pathToFileURL } from 'node:url'
import { isDeepStrictEqual } from 'node:util'
import { build } from 'esbuild'
import { isMain, root, runTool } from './support/command.mjs'

/**
 * The files that are not what the client computes.
 *
 * @param {Record<string, { about: string }>} files of `vectors/files.mjs`
 * @returns {{ file: string, text: string }[]}
 */
export function staleVectors(files) {
  return Object.entries(files).flatMap(([name, content]) => {
    const file = `protocol/vectors/${name}`
    const text = `${JSON.stringify(content, null, 2)}\n`
    const stored = existsSync(`${root}${file}`) ? JSON.parse(readFileSync(`${root}${file}`, 'utf8')) : undefined
    return isDeepStrictEqual(stored, JSON.parse(text)) ? [] : [{ file, text }]
  })
}

/**
 * Node 20 does not run TypeScript, so the modules are bundled first.
 *
 * @returns {Promise<Record<string, { about: string }>>}
 */
async function computeVectors() {
  const outfile = `${root}.cache/vectors-${process.pid}.mjs`
  mkdirSync(`${root}.cache`, { recursive: true })
  try {
    const entryPoints = [`${root}scripts/vectors/files.mjs`]
    await build({ entryPoints, outfile, bundle: true, platform: 'node', format: 'esm', logLevel: 'error' })
    return (await import(pathToFileURL(outfile).href)).vectorFiles()
  } finally {
    rmSync(outfile, { force: true })
  }
}

if (isMain(import.meta.url)) {
  const stale = staleVectors(await computeVectors())
  for (const { file, text } of stale) writeFileSync(`${root}${file}`, text)
  const files = stale.map(({ file }) => file)
  const formatted = files.length > 0 && (await runTool('@biomejs/biome/bin/biome', ['format', '--write', ...files]))
  if (formatted && formatted.code !== 0) throw new Error(formatted.output)
  for (const file of files) console.log(`wrote ${file}`)
}
