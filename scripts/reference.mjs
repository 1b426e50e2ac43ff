// @ts-check
// Writes the pages of docs/reference/ that list the public API, from the declarations and doc comments in dist/.
//
//   node scripts/reference.mjs           writes them
//   node scripts/reference.mjs --check   only reports whether they are up to date
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { mentionedBy, publicExports } from './public-surface.mjs'
import { allMembers, declaration } from './reference/declarations.mjs'
import { remedies } from './reference/errors.mjs'
import { bullet, cell, firstSentence, paragraph, slug } from './reference/markdown.mjs'
import { isMain, root } from './support/command.mjs'

/** @typedef {import('./public-surface.mjs').Place} Place */
/** @typedef {import('./reference/declarations.mjs').Declaration} Declaration */
/** @typedef {import('./reference/declarations.mjs').Member} Member */

/**
 * The pages that are not what the declarations say, with the text that they should have. Expects that dist/ is built.
 *
 * @returns {{ file: string, text: string }[]}
 */
export function stalePages() {
  const pages = { api: apiPage(), options: optionsPage(), errors: errorsPage() }
  return Object.entries(pages).flatMap(([name, text]) => {
    const file = `docs/reference/${name}.md`
    const before = existsSync(`${root}${file}`) ? readFileSync(`${root}${file}`, 'utf8') : ''
    return text === before ? [] : [{ file, text }]
  })
}

const generated = '<!-- Generated from the doc comments in src/ by npm run reference. Do not edit. -->'

/** @param {Place} place */
const keyOf = ({ file, name }) => `${file}#${name}`

/** @param {string} name */
const isOptions = (name) => /(?:Options|Defaults)$/.test(name)

/** @param {Place} place */
const isError = (place) => place.name.endsWith('Error') && declaration(place).kind === 'class'

/** @param {string} name */
const errorAnchor = (name) => (name === 'HoldfastError' ? '' : `#${slug(name)}`)

/**
 * Each public name once, with the first entry that exports it. Options that no entry exports, and that an exported name
 * takes, are public too.
 */
function names() {
  /** @type {Map<string, { entry: string, exported: string, place: Place }>} */
  const found = new Map()
  for (const { name: entry, names: list } of publicExports()) {
    for (const [exported, place] of list) {
      if (!found.has(keyOf(place))) found.set(keyOf(place), { entry, exported, place })
    }
    for (const place of list.flatMap(([, each]) => mentionedBy(each))) {
      if (isOptions(place.name) && !found.has(keyOf(place)))
        found.set(keyOf(place), { entry, exported: place.name, place })
    }
  }
  return found
}

/** @type {[title: string, kinds: readonly string[]][]} */
const kinds = [
  ['Classes', ['class']],
  ['Functions and constants', ['function', 'const']],
  ['Types', ['interface', 'type']],
]

function apiPage() {
  const first = names()
  const titles = optionTitles()
  const sections = publicExports().map(({ name: entry, names: list }) => {
    const own = list.filter(([, place]) => first.get(keyOf(place))?.entry === entry)
    const shared = list.filter((each) => !own.includes(each)).map(([exported]) => `\`${exported}\``)
    const errors = own
      .filter(([, place]) => isError(place))
      .map(([name]) => `[\`${name}\`](errors.md${errorAnchor(name)})`)
    const options = own
      .filter(([name]) => isOptions(name))
      .map(([name, place]) => `[\`${name}\`](options.md#${slug(titles.get(keyOf(place)) ?? name)})`)
    const parts = kinds.flatMap(([title, wanted]) => {
      const here = own.filter(
        ([name, place]) => !isError(place) && !isOptions(name) && wanted.includes(declaration(place).kind),
      )
      return here.length === 0
        ? []
        : [`### ${title} of ${entry}`, ...here.map(([name, place]) => apiEntry(name, place))]
    })
    const lists = Object.entries({
      Options: options,
      Errors: errors,
      'Also exported here, and described above': shared,
    })
      .filter(([, list]) => list.length > 0)
      .map(([title, list]) => paragraph(`${title}: ${list.join(', ')}.`))
    return [`## ${entry}`, ...lists, ...parts].join('\n\n')
  })
  return page(
    'API',
    'Every public name, by the entry that you import it from, with its signature. Options are listed with their ' +
      'defaults in [Options](options.md), and errors in [Errors](errors.md). Your editor shows the complete text of ' +
      'each doc comment.',
    sections,
  )
}

/**
 * @param {string} exported
 * @param {Place} place
 */
function apiEntry(exported, place) {
  const { kind, comment, signatures, bases } = declaration(place)
  const title = `#### ${exported}`
  const parts = [title]
  if (comment.text !== '') parts.push(paragraph(firstSentence(comment.text)))
  if (kind === 'class' || kind === 'interface') {
    const base = bases.filter((each) => !/^AsyncDisposable$/.test(each) && declaration(place).kind === 'interface')
    if (base.length > 0) parts.push(paragraph(`Extends ${base.map((each) => `\`${each}\``).join(', ')}.`))
    const members = kind === 'class' ? allMembers(place) : declaration(place).members
    parts.push(members.map((member) => bullet(memberText(member))).join('\n'))
  } else {
    parts.push(signatures.map((each) => bullet(`\`${each.replace(/;$/, '')}\``)).join('\n'))
  }
  return parts.filter((part) => part !== '').join('\n\n')
}

/** @param {Member} member */
function memberText({ signature, comment }) {
  const sentence = firstSentence(comment.text)
  return `\`${signature}\`${sentence === '' ? '' : `: ${sentence}`}`
}

/** The heading of each options type: its name, with the entry where two entries have the same name. */
function optionTitles() {
  const all = [...names().values()].filter(({ exported }) => isOptions(exported))
  return new Map(
    all.map(({ exported, entry, place }) => {
      const first = all.find((other) => other.exported === exported)
      return [keyOf(place), first?.entry === entry ? exported : `${exported} of ${entry}`]
    }),
  )
}

function optionsPage() {
  const all = [...names().values()].filter(({ exported }) => isOptions(exported))
  const titles = optionTitles()
  const listed = new Set(all.map(({ place }) => keyOf(place)))
  const entries = [...new Set(all.map(({ entry }) => entry))]
  const sections = entries.map((wanted) => {
    const here = all.filter(({ entry }) => entry === wanted)
    const parts = here.map(({ exported, place }) => optionsEntry(titles.get(keyOf(place)) ?? exported, place, listed))
    return [`## Options of ${wanted}`, ...parts].join('\n\n')
  })
  return page(
    'Options',
    'Every option of the public API, with its type and default. An option name means the same everywhere, and an ' +
      'unknown option is an `InvalidArgumentError` that names the nearest known one.',
    sections,
  )
}

/**
 * @param {string} title
 * @param {Place} place
 * @param {ReadonlySet<string>} listed the options that have a section of their own
 */
function optionsEntry(title, place, listed) {
  const { kind, comment, bases, signatures } = declaration(place)
  const parts = [`### ${title}`]
  if (comment.text !== '') parts.push(paragraph(comment.text))
  if (kind === 'type') return [...parts, bullet(`\`${signatures[0]?.replace(/;$/, '')}\``)].join('\n\n')
  const others = bases.filter((base) => isOptions(base.replace(/<.*$/, '')) || base.includes('<'))
  if (others.length > 0) parts.push(paragraph(`Also takes the options of ${others.map(linked).join(' and ')}.`))
  const rows = allMembers(place, (base) => listed.has(keyOf(base))).map((member) => optionRow(member))
  if (rows.length > 0) parts.push(['| option | type | default | |\n| --- | --- | --- | --- |', ...rows].join('\n'))
  return parts.join('\n\n')
}

/** @param {string} base */
const linked = (base) => (/^\w+$/.test(base) ? `[\`${base}\`](#${slug(base)})` : `\`${base}\``)

/** @param {Member} member */
function optionRow({ name, signature, comment }) {
  const required = !/^(?:readonly\s+)?[\w$]+\?/.test(signature)
  const type = signature.replace(/^(?:readonly\s+)?[\w$]+\??(?::\s*|(?=\())/, '')
  const stated = comment.tags['default'] ?? ''
  const value = stated === '' || /[\s`]/.test(stated) ? stated : `\`${stated}\``
  const preset = required ? '(required)' : value
  const throws = comment.tags['throws'] === undefined ? '' : ` Throws ${comment.tags['throws']}`
  return `| \`${name}\` | \`${cell(type)}\` | ${cell(preset)} | ${cell(comment.text + throws)} |`
}

function errorsPage() {
  const classes = [...names().values()].filter(
    ({ exported }) => exported.endsWith('Error') && exported !== 'HoldfastError',
  )
  const used = new Set()
  const rows = []
  const sections = []
  for (const { exported, place } of classes) {
    const { kind, comment, members } = declaration(place)
    const code = /code = "(\w+)"/.exec(members.find(({ name }) => name === 'code')?.signature ?? '')?.[1]
    if (kind !== 'class' || code === undefined) continue
    const remedy = remedies[code]
    if (remedy === undefined) throw new Error(`scripts/reference/errors.mjs says nothing of ${code}`)
    used.add(code)
    rows.push(`| \`${code}\` | [\`${exported}\`](#${slug(exported)}) | ${cell(firstSentence(comment.text))} |`)
    const fields = members.filter(({ name }) => !['name', 'code', 'constructor'].includes(name))
    sections.push(
      [
        `## ${exported}`,
        `Code: \`${code}\``,
        paragraph(comment.text),
        paragraph(`**What to do.** ${remedy}`),
        ...(fields.length === 0 ? [] : [fields.map((field) => bullet(memberText(field))).join('\n')]),
      ].join('\n\n'),
    )
  }
  const unused = Object.keys(remedies).filter((code) => !used.has(code))
  if (unused.length > 0) throw new Error(`scripts/reference/errors.mjs has codes that no error has: ${unused}`)
  const intro =
    'Contention is a value: `acquire` returns `acquired: false`. Everything else that keeps a lock from being held ' +
    'is an error. Every error is a `HoldfastError` with a literal `code`. Compare the code where `instanceof` does ' +
    'not work: with two copies of the package, or across a worker boundary. No error shows a password, neither in ' +
    'its message nor in its `cause`.'
  return page('Errors', intro, [['| code | class | |\n| --- | --- | --- |', ...rows].join('\n'), ...sections])
}

/**
 * @param {string} title
 * @param {string} intro
 * @param {readonly string[]} sections
 */
const page = (title, intro, sections) => `${[`# ${title}`, generated, paragraph(intro), ...sections].join('\n\n')}\n`

if (isMain(import.meta.url)) {
  const stale = stalePages()
  if (process.argv.includes('--check')) {
    for (const { file } of stale) console.error(`${file} is out of date: npm run reference`)
    process.exitCode = stale.length === 0 ? 0 : 1
  } else {
    for (const { file, text } of stale) writeFileSync(`${root}${file}`, text)
  }
}
