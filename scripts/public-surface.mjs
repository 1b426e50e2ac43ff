// @ts-check
// Lists the public surface of the package, from the declarations in dist/: the exports of each entry, and then every
// declaration that an export refers to, directly or indirectly. Comments and layout do not count.
//
//   node scripts/public-surface.mjs           fails if test/public-surface.txt is out of date
//   node scripts/public-surface.mjs --write   updates it, after an intended change
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { isMain, root } from './support/command.mjs'
import { publicEntries } from './support/entries.mjs'

export const surfaceFile = `${root}test/public-surface.txt`

/** Shown when the surface has changed. */
export const surfaceHint =
  'The public surface differs from test/public-surface.txt. If this is intended, run "npm run surface" and add ' +
  'a line to CHANGELOG.md.'

/** @returns {string} */
export function publicSurface() {
  /** @type {Map<string, string>} declarations of all entries by their place */
  const declared = new Map()
  const lists = publicExports().map(({ name, names }) => {
    for (const [, place] of names) describe(place, declared)
    const lines = names.map(([exported, { file, name: local }]) => `  ${exported} = ${key(file, local)}`)
    return [`entry ${name}`, ...lines].join('\n')
  })
  const declarations = [...declared].sort(([a], [b]) => (a < b ? -1 : 1)).map(([at, text]) => `${at}\n${text}`)
  return `${[...lists, ...declarations].join('\n\n')}\n`
}

export const storedSurface = () => (existsSync(surfaceFile) ? readFileSync(surfaceFile, 'utf8') : '')

/**
 * What each entry exports, by name, and the file and name where it is declared.
 *
 * @returns {{ name: string, names: [exported: string, place: Place][] }[]}
 */
export function publicExports() {
  return publicEntries().map(({ name, types }) => ({
    name,
    names: [...exportsOf(join(root, types))].sort(([a], [b]) => (a < b ? -1 : 1)),
  }))
}

/**
 * The declarations that a declaration mentions, however deep, and itself.
 *
 * @param {Place} place
 * @returns {Place[]}
 */
export function mentionedBy(place) {
  /** @type {Map<string, string>} */
  const declared = new Map()
  describe(place, declared)
  return [...declared.keys()].map((at) => {
    const [file = '', name = ''] = at.split('#')
    return { file: join(root, 'dist', `${file}.d.ts`), name }
  })
}

/**
 * Where a name is declared that a declaration file uses or imports. Undefined for a name of the platform.
 *
 * @param {string} file
 * @param {string} name
 */
export function declaredAt(file, name) {
  const module = read(file)
  if (!module.imports.has(name) && !module.declarations.has(name)) return undefined
  return origin(module.imports.get(name) ?? { file, name })
}

/** @typedef {{ file: string, name: string }} Place a top-level name in a declaration file */
/**
 * @typedef {object} Module
 * @property {Map<string, string>} declarations
 * @property {Map<string, Place>} imports
 * @property {Map<string, Place>} exports
 */

/**
 * @param {Place} place
 * @param {Map<string, string>} declared
 */
function describe(place, declared) {
  const { file, name } = origin(place)
  const at = key(file, name)
  if (declared.has(at)) return
  const module = read(file)
  const text = module.declarations.get(name)
  if (text === undefined) throw new Error(`${at} is exported, but has no declaration`)
  declared.set(at, text)
  for (const word of new Set(text.match(/[\p{ID_Start}$_][\p{ID_Continue}$]*/gu))) {
    const mentioned = module.imports.get(word) ?? { file, name: word }
    if (word !== name && (module.imports.has(word) || module.declarations.has(word))) describe(mentioned, declared)
  }
}

/**
 * The file that declares a name, after all re-exports.
 *
 * @param {Place} place
 * @returns {Place}
 */
function origin(place) {
  const module = read(place.file)
  if (module.declarations.has(place.name)) return place
  const next = module.exports.get(place.name) ?? module.imports.get(place.name)
  return next === undefined || (next.file === place.file && next.name === place.name) ? place : origin(next)
}

/** @param {string} file */
const exportsOf = (file) => new Map([...read(file).exports].map(([name, place]) => [name, origin(place)]))

/** @param {string} file @param {string} name */
const key = (file, name) => `${relative(join(root, 'dist'), file).replace(/\.d\.ts$/, '')}#${name}`

/** @type {Map<string, Module>} */
const modules = new Map()

/**
 * tsc writes declarations in one format, and each top-level statement begins in the first column. A few patterns can
 * read them without the compiler.
 *
 * @param {string} file
 * @returns {Module}
 */
function read(file) {
  const known = modules.get(file)
  if (known !== undefined) return known
  /** @type {Module} */
  const module = { declarations: new Map(), imports: new Map(), exports: new Map() }
  modules.set(file, module)
  for (const statement of statements(withoutComments(readFileSync(file, 'utf8')))) {
    const named = /^(import|export)\s+(?:type\s+)?\{(.*)\}(?:\s+from\s+'(.+)')?;$/s.exec(statement)
    if (named !== null) {
      const [, verb, list = '', from] = named
      for (const each of list.split(',').map((part) => part.trim().replace(/^type\s+/, ''))) {
        if (each === '') continue
        const [name = '', as = name] = each.split(/\s+as\s+/)
        const place = { file: from === undefined ? file : resolve(file, from), name }
        if (verb === 'export') module.exports.set(as, place)
        else if (from?.startsWith('.')) module.imports.set(as, place)
      }
      continue
    }
    const declaration = DECLARATION.exec(statement)
    if (declaration === null) {
      if (/^import\b/.test(statement)) continue
      throw new Error(`${relative(root, file)}: cannot read the statement: ${statement}`)
    }
    const [, exported, name = ''] = declaration
    // The overloads of a function, and the parts of an interface, have one name.
    const before = module.declarations.get(name)
    module.declarations.set(name, before === undefined ? statement : `${before}\n${statement}`)
    if (exported !== undefined) module.exports.set(name, { file, name })
  }
  return module
}

const KINDS = 'class|interface|type|function|const|let|enum|namespace'
const DECLARATION = new RegExp(
  `^(export\\s+)?(?:(?:default|declare|abstract|async)\\s+)*(?:${KINDS})\\s+([\\p{ID_Continue}$]+)`,
  'u',
)

/** @param {string} file @param {string} specifier */
const resolve = (file, specifier) =>
  specifier.startsWith('.') ? join(dirname(file), specifier.replace(/\.(?:js|ts)$/, '.d.ts')) : specifier

/** @param {string} text */
const withoutComments = (text) =>
  text.replace(/('(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*"|`(?:[^`\\]|\\.)*`)|\/\*.*?\*\/|\/\/[^\n]*/gs, (_, quoted) =>
    quoted === undefined ? '' : quoted,
  )

/** @param {string} text */
function statements(text) {
  /** @type {string[]} */
  const found = []
  for (const line of text.split('\n').map((each) => each.trimEnd())) {
    if (line === '') continue
    if (/^(?:\s|\})/.test(line) && found.length > 0) found.push(`${found.pop()}\n${line}`)
    else found.push(line)
  }
  return found.filter((statement) => statement !== 'export {};')
}

if (isMain(import.meta.url)) {
  if (process.argv.includes('--write')) {
    writeFileSync(surfaceFile, publicSurface())
  } else if (storedSurface() !== publicSurface()) {
    console.error(surfaceHint)
    process.exitCode = 1
  }
}
