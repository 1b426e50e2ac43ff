// @ts-check
import { gzipSync } from 'node:zlib'
import { build } from 'esbuild'

/** Clients that an application has anyway. */
const CLIENTS = ['ioredis', 'redis', 'pg', 'postgres', 'libsql', 'better-sqlite3', 'knex', 'kysely']

/**
 * What a bundler makes of a module: the part that is loaded at once, and the parts that are imported on demand.
 *
 * @param {string} source
 * @param {string} folder where its imports are resolved
 */
export async function gzippedSize(source, folder) {
  const { outputFiles, metafile } = await build({
    stdin: { contents: source, resolveDir: folder },
    bundle: true,
    minify: true,
    splitting: true,
    platform: 'node',
    format: 'esm',
    target: 'node20',
    external: CLIENTS,
    outdir: folder,
    write: false,
    metafile: true,
    logLevel: 'silent',
  })
  const sizes = new Map(outputFiles.map(({ path, contents }) => [path.slice(folder.length), gzipSync(contents).length]))
  /** @param {string} path */
  const named = (path) => /** @type {string} */ (path.split('/').at(-1))
  const outputs = new Map(Object.entries(metafile.outputs).map(([path, output]) => [named(path), output]))
  const entry = [...outputs].find(([, { entryPoint }]) => entryPoint === '<stdin>')?.[0] ?? ''
  const atOnce = new Set([entry])
  for (const path of atOnce) {
    for (const { path: imported, kind, external } of outputs.get(path)?.imports ?? []) {
      if (kind === 'import-statement' && !external) atOnce.add(named(imported))
    }
  }
  let loaded = 0
  let all = 0
  for (const [path, size] of sizes) {
    all += size
    if (atOnce.has(named(path))) loaded += size
  }
  return { loaded, lazy: all - loaded }
}
