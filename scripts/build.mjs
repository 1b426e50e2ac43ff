// @ts-check
// Builds dist/ from src/ with plain tsc. From nothing, so that a file that was renamed leaves no ghost behind; and beside
// the old one until it is done, so that a build that fails, or somebody who reads dist/ meanwhile, finds it whole.
import { mkdirSync, renameSync, rmSync } from 'node:fs'
import { isMain, root, tsc } from './support/command.mjs'

/** @returns {Promise<{ code: number, output: string }>} */
export async function build() {
  const fresh = `${root}.cache/build-${process.pid}`
  const old = `${root}.cache/built-before-${process.pid}`
  mkdirSync(`${root}.cache`, { recursive: true })
  try {
    const { code, output } = await tsc(['-p', 'tsconfig.build.json', '--outDir', fresh])
    if (code === 0) swap(fresh, `${root}dist`, old)
    return { code, output }
  } finally {
    for (const folder of [fresh, old]) rmSync(folder, { recursive: true, force: true })
  }
}

/**
 * @param {string} fresh
 * @param {string} place
 * @param {string} old
 */
function swap(fresh, place, old) {
  for (let tries = 1; ; tries += 1) {
    try {
      rmSync(old, { recursive: true, force: true })
      try {
        renameSync(place, old)
      } catch (error) {
        if (/** @type {NodeJS.ErrnoException} */ (error).code !== 'ENOENT') throw error
      }
      renameSync(fresh, place)
      return
    } catch (error) {
      // Another build put its own there between the two steps.
      if (tries === 5) throw error
    }
  }
}

if (isMain(import.meta.url)) {
  const { code, output } = await build()
  process.stdout.write(output)
  process.exitCode = code
}
