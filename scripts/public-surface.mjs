// @ts-check
// Writes down everything that a user of the package can name and call, from the declarations in dist/: for each entry its
// exports, and then each declaration that an export is or mentions, however deep. Comments and layout do not count.
//
//   node scripts/public-surface.mjs           says whether test/public-surface.txt is as it should be
//   node scripts/public-surface.mjs --write   makes it so, when the surface was changed on purpose
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { isMain, root } from './support/command.mjs'
import { publicEntries } from './support/entries.mjs'

export const surfaceFile = `${root}test/public-surface.txt`

/** What to say to whoever finds that it differs. */
export const surfaceHint =
  'The public surface is not as test/public-surface.txt has it. If that is meant: npm run surface, and a line in CHANGELOG.md.'

/** @returns {string} */
export function publicSurface() {
  /** @type {Map<string, string>} declaration by where it stands, for all entries together */
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
  if (text === undefined) throw new Error(`${at} is exported, but no declaration of it was found`)
  declared.set(at, text)
  for (const word of new Set(text.match(/[\p{ID_Start}$_][\p{ID_Continue}$]*/gu))) {
    const mentioned = module.imports.get(word) ?? { file, name: word }
    if (word !== name && (module.imports.has(word) || module.declarations.has(word))) describe(mentioned, declared)
  }
}

/**
 * Where a name that a file exports is really declared.
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
 * tsc writes declarations in one way only, with each statement of the top level beginning in the first column; so a few patterns
 * read them, and the compiler is not needed.
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
    const declaration =
      /^(export\s+)?(?:default\s+)?(?:declare\s+)?(?:abstract\s+)?(?:async\s+)?(?:class|interface|type|function|const|let|enum|namespace)\s+([\p{ID_Continue}$]+)/u.exec(
        statement,
      )
    if (declaration === null) {
      if (/^import\b/.test(statement)) continue
      throw new Error(`${relative(root, file)}: cannot read the statement: ${statement}`)
    }
    const [, exported, name = ''] = declaration
    // The overloads of a function, and an interface in parts, stand under one name.
    const before = module.declarations.get(name)
    module.declarations.set(name, before === undefined ? statement : `${before}\n${statement}`)
    if (exported !== undefined) module.exports.set(name, { file, name })
  }
  return module
}

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
