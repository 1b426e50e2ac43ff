// @ts-check
import { readFileSync, writeFileSync } from 'node:fs'
import { isAbsolute, relative } from 'node:path'
import { build } from 'rolldown'
import { root } from './command.mjs'
import { publicEntries } from './entries.mjs'

/**
 * Joins compiled modules into few files: Node takes about half a millisecond to import a file, and the package has
 * hundreds of modules. No module is in two files, so that classes, channels and contexts exist once.
 *
 * @param {string} modules the folder of the compiled modules
 * @param {string} dist the folder to write to
 */
export async function bundle(modules, dist) {
  await join(modules, { dir: dist, format: 'esm' }, entryNames())
}

/**
 * The same as CommonJS, for tools that run modules in their own way, such as Jest. Node itself never uses it, because
 * package.json names the ESM files for `require` as well, see docs/decisions/0033-commonjs-for-jest.md. Without
 * comments, because no one reads it; the names stay, for stack traces.
 *
 * @param {string} modules the folder of the compiled modules
 * @param {string} dist the folder to write to
 */
export async function bundleForRequire(modules, dist) {
  const names = entryNames().filter((name) => !name.startsWith('cli/'))
  const minify = { compress: false, mangle: false, codegen: { removeWhitespace: true } }
  await join(modules, { dir: dist, format: 'cjs', exports: 'named', minify, comments: false }, names, [requireClients])
  writeFileSync(`${dist}/package.json`, '{ "type": "commonjs", "sideEffects": false }\n')
  for (const { types } of publicEntries()) {
    const file = types.replace('./dist/', '')
    const original = `${'../'.repeat(file.split('/').length)}${file.replace(/\.d\.ts$/, '.js')}`
    writeFileSync(`${dist}/${file}`, `${DECLARATIONS}export * from '${original}'\n`)
  }
}

/** The types of both builds are the same, so that a value of one can be passed to the other. */
const DECLARATIONS = '// @ts-ignore: some modes of TypeScript do not know that Node can require an ES module.\n'

/** Jest has no `import()` in CommonJS. What `require` returns gets the shape of what `import()` resolves to. */
const requireClients = {
  name: 'require clients',
  transform(/** @type {string} */ code, /** @type {string} */ id) {
    if (!id.endsWith('drivers/shared/optional-client.js')) return undefined
    const required = code.replace(/\bawait import\([^()]*\bname\)/, 'namespaceOf(require(name))')
    if (required === code) throw new Error(`${id}: there is no import of a client`)
    return `${required}\nconst namespaceOf = (module) => ({ ...module, default: module })\n`
  },
}

/**
 * @param {string} modules
 * @param {import('rolldown').OutputOptions} output
 * @param {string[]} names the entries
 * @param {import('rolldown').Plugin[]} plugins
 */
async function join(modules, output, names, plugins = []) {
  const pathOf = (/** @type {string} */ id) => relative(modules, id).replaceAll('\\', '/')
  await build({
    cwd: modules,
    input: Object.fromEntries(names.map((name) => [name, `./${name}.js`])),
    platform: 'node',
    external: (id) => !id.startsWith('.') && !isAbsolute(id),
    // As package.json says it to the bundlers of users.
    treeshake: { moduleSideEffects: false },
    plugins,
    output: {
      ...output,
      entryFileNames: '[name].js',
      // A module that is imported on demand keeps its path.
      chunkFileNames: ({ name, facadeModuleId }) =>
        facadeModuleId == null ? `${name.includes('/') ? '' : 'chunks/'}${name}.js` : pathOf(facadeModuleId),
      // A heartbeat's thread opens its driver by the name of a function (`Reopen`), in the file that has it.
      minifyInternalExports: false,
      codeSplitting: {
        groups: GROUPS.map(({ name, members }, index) => ({
          name,
          test: (id) => members.test(pathOf(id)),
          priority: GROUPS.length - index,
        })),
      },
    },
  })
}

/**
 * Modules that share a file, each with all that it imports. The first group that contains a module has it. Modules of
 * no group are in the entry that needs them, or in a file of their own if several entries do.
 */
const GROUPS = [
  { name: 'engine', members: /^(?:lock\.js$|core\/(?!lease\/heartbeat-thread(?:-entry)?\.js))/ },
  // Its place is how it notices that it is in the bundle of an application, and how it finds its worker.
  { name: 'core/lease/heartbeat-thread', members: /^core\/lease\/heartbeat-thread\.js$/ },
  // The page as text, which is large and needed only by a dashboard that runs.
  { name: 'dashboard/assets', members: /^dashboard\/assets\.js$/ },
  // With the adapter to node:http, which is small and in two entries that are used beside the root.
  { name: 'primitives', members: /^(?:index\.js$|primitives\/lock\/|dashboard\/node-handler\.js$)/ },
  { name: 'drivers', members: /^drivers\/shared\// },
  { name: 'redis', members: /^drivers\/redis[./]/ },
  { name: 'postgres', members: /^drivers\/postgres[./]/ },
]

/** What is imported or started by its path: the files that package.json names, and the heartbeat's worker. */
function entryNames() {
  const { exports, bin } = JSON.parse(readFileSync(`${root}package.json`, 'utf8'))
  const files = targets([exports, bin]).flatMap(
    (target) => /^(?:\.\/)?dist\/(?!cjs\/)(.+)\.js$/.exec(target)?.[1] ?? [],
  )
  return [...new Set(files), 'core/lease/heartbeat-thread-entry']
}

/**
 * @param {unknown} value a part of `exports` or `bin`
 * @returns {string[]}
 */
function targets(value) {
  if (typeof value === 'string') return [value]
  return typeof value === 'object' && value !== null ? Object.values(value).flatMap(targets) : []
}
