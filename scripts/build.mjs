// @ts-check
// Builds dist/ from src/: tsc compiles it and writes the declarations, the files of protocol/ and the page of the
// dashboard are embedded, and the modules are joined into few files, as ESM in dist/ and as CommonJS in dist/cjs/. It
// builds into an empty folder, so that no file of an earlier build remains, and replaces dist/ at the end. So dist/ is
// complete at any time.
import { cpSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { bundle, bundleForRequire } from './support/bundle.mjs'
import { isMain, root, tsc } from './support/command.mjs'
import { dashboardAssets } from './support/dashboard-assets.mjs'

/** @returns {Promise<{ code: number, output: string }>} */
export async function build() {
  const modules = `${root}.cache/modules-${process.pid}`
  const fresh = `${root}.cache/build-${process.pid}`
  const old = `${root}.cache/built-before-${process.pid}`
  mkdirSync(`${root}.cache`, { recursive: true })
  try {
    const { code, output } = await tsc(['-p', 'tsconfig.build.json', '--outDir', modules])
    if (code === 0) {
      embedProtocol(modules)
      unwrapImports(modules)
      writeFileSync(`${modules}/dashboard/assets.js`, await dashboardAssets())
      await bundle(modules, fresh)
      await bundleForRequire(modules, `${fresh}/cjs`)
      cpSync(modules, fresh, { recursive: true, filter: (path) => !path.endsWith('.js') })
      swap(fresh, `${root}dist`, old)
    }
    return { code, output }
  } finally {
    for (const folder of [modules, fresh, old]) rmSync(folder, { recursive: true, force: true })
  }
}

/**
 * Replaces each `readProtocol('folder/file')` with the file's text, because a bundle has no protocol/ beside it.
 *
 * @param {string} folder
 */
function embedProtocol(folder) {
  const reader = 'drivers/shared/read-protocol'
  for (const ending of ['js', 'd.ts']) rmSync(`${folder}/${reader}.${ending}`)
  for (const file of readdirSync(folder, { recursive: true, encoding: 'utf8' })) {
    if (!file.endsWith('.js')) continue
    const code = readFileSync(`${folder}/${file}`, 'utf8')
    if (!code.includes('readProtocol')) continue
    const embedded = code
      .replace(/^import \{ readProtocol \} from '.*';\n/m, '')
      .replaceAll(/\breadProtocol\('(.+?)'\)/g, (_, path) => JSON.stringify(protocolText(path)))
    if (embedded.includes('readProtocol')) throw new Error(`${file}: call readProtocol with a literal`)
    writeFileSync(`${folder}/${file}`, embedded)
  }
}

/**
 * Removes the function that `rewriteRelativeImportExtensions` puts around a name that is not a literal. No such import
 * of ours is relative, and bundlers read only the comments that are directly inside of `import()`.
 *
 * @param {string} folder
 */
function unwrapImports(folder) {
  for (const file of readdirSync(folder, { recursive: true, encoding: 'utf8' })) {
    if (!file.endsWith('.js')) continue
    const code = readFileSync(`${folder}/${file}`, 'utf8')
    if (!code.includes(WRAPPER)) continue
    const unwrapped = code
      .replace(new RegExp(`^var ${WRAPPER} = .*?^};\\n`, 'ms'), '')
      .replaceAll(new RegExp(`\\bimport\\(\\s*${WRAPPER}\\((.+?)\\)\\s*\\)`, 'gs'), 'import($1)')
    if (unwrapped.includes(WRAPPER)) throw new Error(`${file}: the import of a computed name has an unknown form`)
    writeFileSync(`${folder}/${file}`, unwrapped)
  }
}

const WRAPPER = '__rewriteRelativeImportExtension'

/**
 * The text without comment lines, which are half of it. Migrations keep theirs, because users read the output of
 * `holdfast migrate --print`.
 *
 * @param {string} path
 */
function protocolText(path) {
  const text = readFileSync(`${root}protocol/${path}`, 'utf8')
  const isPrinted = /^postgres\/(?:schema|functions|fence)\.sql$/.test(path)
  return isPrinted ? text : text.replaceAll(/^[ \t]*--(?! name: ).*\n/gm, '')
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
      // Another build has put its own folder there between the two steps.
      if (tries === 5) throw error
    }
  }
}

if (isMain(import.meta.url)) {
  const { code, output } = await build()
  process.stdout.write(output)
  process.exitCode = code
}
