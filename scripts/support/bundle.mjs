// @ts-check
import { readFileSync } from 'node:fs'
import { isAbsolute, relative } from 'node:path'
import { build } from 'rolldown'
import { root } from './command.mjs'

/**
 * Joins compiled modules into few files: Node takes about half a millisecond to import a file, and the package has
 * hundreds of modules. No module is in two files, so that classes, channels and contexts exist once.
 *
 * @param {string} modules the folder of the compiled modules
 * @param {string} dist the folder to write to
 */
export async function bundle(modules, dist) {
  const pathOf = (/** @type {string} */ id) => relative(modules, id).replaceAll('\\', '/')
  await build({
    cwd: modules,
    input: Object.fromEntries(entryNames().map((name) => [name, `./${name}.js`])),
    platform: 'node',
    external: (id) => !id.startsWith('.') && !isAbsolute(id),
    // As package.json says it to the bundlers of users.
    treeshake: { moduleSideEffects: false },
    output: {
      dir: dist,
      format: 'esm',
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
  const files = targets([exports, bin]).flatMap((target) => /^(?:\.\/)?dist\/(.+)\.js$/.exec(target)?.[1] ?? [])
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
