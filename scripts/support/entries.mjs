// @ts-check
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { root } from './command.mjs'

/**
 * The entries of the package: each path of package.json's `exports`, with wildcards filled in from dist/.
 *
 * @returns {{ name: string, types: string }[]} the name to import, and its declarations below the root
 */
export function publicEntries() {
  /** @type {{ name: string, exports: Record<string, { types: { default: string } } | string | null> }} */
  const manifest = JSON.parse(readFileSync(`${root}package.json`, 'utf8'))
  const hidden = Object.keys(manifest.exports).filter((path) => manifest.exports[path] === null)
  return Object.entries(manifest.exports).flatMap(([path, target]) => {
    if (target === null || typeof target === 'string') return []
    const types = target.types.default
    return fill(types).flatMap((star) => {
      const at = path.replace('*', star)
      if (hidden.some((pattern) => at.startsWith(pattern.replace('*', '')))) return []
      return [{ name: at.replace(/^\./, manifest.name), types: types.replace('*', star) }]
    })
  })
}

/**
 * The values of `*` in a pattern such as `./dist/drivers/*.d.ts`. One empty string for a pattern without `*`.
 *
 * @param {string} pattern
 */
function fill(pattern) {
  const [folder, ending] = pattern.split('*')
  if (folder === undefined || ending === undefined) return ['']
  if (!existsSync(`${root}${folder}`)) return []
  return readdirSync(`${root}${folder}`)
    .filter((file) => file.endsWith(ending))
    .map((file) => file.slice(0, -ending.length))
    .sort()
}
