// @ts-check
// Counts the lines above 120 columns and the words that our prose avoids, for each folder.
//
//   node scripts/prose.mjs                  the counts
//   node scripts/prose.mjs --list           each place as well
//   node scripts/prose.mjs --list src/core  only the places below these paths
import { readdirSync, readFileSync } from 'node:fs'
import { isMain, root } from './support/command.mjs'

export const MAX_COLUMNS = 120

const folders = ['src', 'test', 'chaos', 'bench', 'scripts', 'examples', 'protocol', 'python', 'docs', '.github']
const endings = /\.(ts|mts|mjs|js|sql|lua|py|c|md)$/
/** The link to protocol/, what Python's tools write, and what the benchmarks install. */
const excludedFolders = /^(?:bench\/node_modules|python\/(?:src\/holdfast\/protocol|(?:.+\/)?(?:\.\w+|build|dist)))\//
const excluded = [
  // What an old release wrote into databases. It is kept as it was.
  'test/drivers/postgres/version-10.sql',
  // They name the words.
  'scripts/prose.mjs',
  'test/prose.test.ts',
]

/** Private or heavy words. Name the client, process, waiter or caller; write "at most", "otherwise", `@default`. */
const avoided = [
  'whoever',
  'whatever',
  'somebody',
  'nobody',
  'is told',
  'are told',
  'stand',
  'stands',
  'if not said',
  'unless said otherwise',
  'in vain',
  'at the most',
  'pays no heed',
]
/** Words with another meaning: the Unix user nobody. */
const allowed = new Map([['test/harness/postgres.ts', 'nobody']])
/** Between two words: a space, or the end of a line and the mark of the next comment line. */
const gap = '\\s+(?:(?:\\*|//|--|#)\\s+)?'
const avoidedWords = new RegExp(`\\b(${avoided.map((each) => each.replaceAll(' ', gap)).join('|')})\\b`, 'gi')

/** @typedef {{ file: string, text: string }} TextFile */
/** @typedef {{ file: string, line: number, text: string }} Place */

/**
 * Lines that are too long. Tables, code blocks and the targets of links in Markdown do not count: they cannot be
 * wrapped.
 *
 * @param {readonly TextFile[]} [files]
 * @returns {Place[]}
 */
export function longLines(files = textFiles()) {
  return files.flatMap(({ file, text }) => {
    const lines = text.split('\n')
    const countable = file.endsWith('.md') ? wrappable(lines) : lines
    return countable.flatMap((line, index) =>
      [...line].length > MAX_COLUMNS ? [{ file, line: index + 1, text: line.trim() }] : [],
    )
  })
}

/**
 * @param {readonly TextFile[]} [files]
 * @returns {Place[]}
 */
export function wordsToAvoid(files = textFiles()) {
  return files.flatMap(({ file, text }) =>
    [...text.matchAll(avoidedWords)]
      .filter(([word]) => allowed.get(file) !== word)
      .map((match) => {
        const line = text.slice(0, match.index).split('\n').length
        return { file, line, text: text.split('\n')[line - 1]?.trim() ?? '' }
      }),
  )
}

/** @returns {TextFile[]} */
function textFiles() {
  const inFolders = folders.flatMap((folder) =>
    readdirSync(`${root}${folder}`, { recursive: true, encoding: 'utf8' }).map((file) => `${folder}/${file}`),
  )
  return [...readdirSync(root), ...inFolders]
    .filter((file) => endings.test(file) && !excluded.includes(file) && !excludedFolders.test(file))
    .sort()
    .map((file) => ({ file, text: readFileSync(`${root}${file}`, 'utf8') }))
}

/**
 * The same lines, without what cannot be wrapped.
 *
 * @param {readonly string[]} lines
 */
function wrappable(lines) {
  let inCode = false
  return lines.map((line) => {
    const isFence = /^\s*(```|~~~)/.test(line)
    if (isFence) inCode = !inCode
    if (isFence || inCode || /^\s*(\||<|\[[^\]]+\]: )/.test(line)) return ''
    return line.replaceAll(/\]\([^)]*\)/g, ']').replaceAll(/https?:\/\/\S+/g, '')
  })
}

/** @param {readonly string[]} below */
function printCounts(below) {
  const found = [longLines(), wordsToAvoid()].map((places) => places.filter(({ file }) => isBelow(file, below)))
  const parts = [...new Set(found.flat().map(({ file }) => partOf(file)))].sort()
  const rows = [...parts, 'total'].map((part) => [
    part,
    ...found.map((places) => places.filter(({ file }) => part === 'total' || partOf(file) === part).length),
  ])
  for (const [part, long, words] of [['', `above ${MAX_COLUMNS}`, 'words'], ...rows]) {
    console.log(`${String(part).padEnd(28)}${String(long).padStart(10)}${String(words).padStart(8)}`)
  }
}

/** @param {readonly string[]} below */
function printPlaces(below) {
  for (const { file, line, text } of [...longLines(), ...wordsToAvoid()]) {
    if (isBelow(file, below)) console.log(`${file}:${line}: ${text.slice(0, 100)}`)
  }
}

/**
 * The first two folders of a path.
 *
 * @param {string} file
 */
const partOf = (file) => file.split('/').slice(0, -1).slice(0, 2).join('/') || 'pages at the root'

/**
 * @param {string} file
 * @param {readonly string[]} below
 */
const isBelow = (file, below) => below.length === 0 || below.some((path) => file.startsWith(path))

if (isMain(import.meta.url)) {
  const args = process.argv.slice(2)
  const below = args.filter((arg) => !arg.startsWith('--'))
  if (args.includes('--list')) printPlaces(below)
  printCounts(below)
}
